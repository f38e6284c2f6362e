"""Of every family: the untouched tree fails, two solutions pass, and a wrong one fails."""

import shutil

import pytest

from gagpo.base.errors import InvalidArgument
from gagpo.envs.tasks import UnknownTask
from gagpo.envs.terminal.exercise import PREPARE_SECONDS, judge, prepared_tree
from gagpo.envs.terminal.families.family import FAMILIES
from gagpo.envs.terminal.families.words import _STEMS
from gagpo.envs.terminal.generate import HELD_OUT, SPLITS, exercise, families_of, generate_tasks
from tests.rejections import rejects

LEVELS = [(name, level) for name, kind in FAMILIES.items() for level in range(1, kind.levels + 1)]


def task_id(name, level, number=0, seed=0):
    return f"{name}-{level}-{'unseen' if name in HELD_OUT else 'train'}-{number:06}-{seed}"


def verdict(sandbox, task, commands):
    """Whether the commands solve the task, and those that failed."""
    sandbox.start(prepared_tree(sandbox, task))
    if task.services:
        assert sandbox.run(task.services, PREPARE_SECONDS).status == 0
    failures = []
    for command in commands:
        result = sandbox.run(command, 10.0)
        if result.status != 0 or result.restarted:
            failures.append((command, result.status, result.errors.text()))
    return judge(sandbox, task.check), failures


@pytest.mark.parametrize(("name", "level"), LEVELS)
def test_solutions_pass_and_wrong_ones_fail(sandbox, name, level):
    if FAMILIES[name].needs and not shutil.which(FAMILIES[name].needs):
        pytest.skip(f"{FAMILIES[name].needs} is not installed")
    task = exercise(task_id(name, level, number=level))
    assert verdict(sandbox, task, ()) == (False, [])
    assert verdict(sandbox, task, task.solution) == (True, [])
    assert verdict(sandbox, task, task.second) == (True, [])
    assert not verdict(sandbox, task, task.wrong)[0]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "level"), LEVELS)
def test_many_tasks_of_a_family(sandbox, name, level):
    for number in range(10, 16):
        task = exercise(task_id(name, level, number, seed=1))
        verdicts = [verdict(sandbox, task, commands) for commands in ((), task.solution, task.second)]
        assert verdicts == [(False, []), (True, []), (True, [])], task.text
        assert not verdict(sandbox, task, task.wrong)[0], task.text


def test_there_are_enough_families_and_tasks():
    assert len(FAMILIES) >= 20
    tasks = generate_tasks("train", 100_000, "all", (1, 2, 3), 0)
    assert len(tasks) == 100_000
    assert exercise(tasks.ids[-1]).text


def test_a_task_is_made_from_its_id_alone():
    first = exercise("set-json-2-train-000007-3")
    exercise.cache_clear()
    second = exercise("set-json-2-train-000007-3")
    assert first is not second
    assert (first.text, first.tree, first.solution) == (second.text, second.tree, second.solution)


@pytest.mark.parametrize(
    "name",
    [
        "set-json-2-train-7",
        "set-env-1+nothing-1-train-000000-0",
        "set-env-1+-train-000000-0",
        "nothing-1-train-000000-0",
        "set-json-x-train-000000-0",
        "",
        "-" * 9,
    ],
)
def test_other_ids_are_unknown(name):
    with rejects(UnknownTask, "generated task"):
        exercise(name)


def test_texts_differ_within_and_between_splits():
    texts = {}
    for split in SPLITS:
        tasks = generate_tasks(split, 300, "all", (1, 2, 3), 0)
        texts[split] = {(exercise(name).text, repr(sorted(exercise(name).tree.items()))) for name in tasks.ids}
        assert len(texts[split]) >= 295, split
    assert not texts["train"] & (texts["test"] | texts["validation"] | texts["unseen"])


def test_invented_words_are_in_no_list():
    tasks = generate_tasks("train", 50, "all", (1,), 0, True)
    listed = {stem for text in _STEMS.values() for stem in text.split()}
    for name in tasks.ids:
        paths = "/".join(exercise(name).tree).replace(".", "/").split("/")
        assert not listed & set(paths), name


def test_splits_share_no_word():
    stems = [set(text.split()) for text in _STEMS.values()]
    assert sum(map(len, stems)) == len(set.union(*stems))


def test_held_out_families_are_in_no_other_split():
    names = {split: {type_name.name for type_name in families_of("all", split)} for split in SPLITS}
    assert names["unseen"] == set(HELD_OUT)
    assert names["train"] == names["test"] == set(FAMILIES) - set(HELD_OUT)
    assert [type_name.name for type_name in families_of("set-env", "train")] == ["set-env"]
    assert {type_name.name for type_name in families_of(["set-env"], "unseen")} == set(HELD_OUT)


CHAINS = [
    "set-env-1+move-by-ending-2+count-lines-2",
    "git-conflict-1+stop-process-1+pack-archive-2",  # a setup, services, a folder packed
    "mend-links-2+ask-port-2+mend-python-1",
]


@pytest.mark.parametrize("names", CHAINS)
def test_a_chain_is_solved_by_all_its_tasks_alone(sandbox, names):
    task = exercise(f"{names}-train-000003-0")
    assert verdict(sandbox, task, ()) == (False, [])
    assert verdict(sandbox, task, task.solution) == (True, [])
    assert verdict(sandbox, task, task.second) == (True, [])
    assert not verdict(sandbox, task, task.wrong)[0]
    starts = [i for i, command in enumerate(task.solution) if command.startswith("cd ")]
    assert len(starts) == 3
    for first, last in zip(starts, [*starts[1:], len(task.solution)], strict=True):  # each task left out
        partial = [line for i, line in enumerate(task.solution) if i in starts or not first < i < last]
        assert verdict(sandbox, task, partial) == (False, []), partial


def test_a_hard_link_in_a_chain_counts_by_its_content(sandbox):
    """A checker sees the folder of its task; a link from there may lead to a file of another."""
    task = exercise("count-lines-1+most-frequent-1-train-000000-0")
    first, second = (line.rpartition(" ")[2] for line in task.solution if " > " in line)
    folders = [line.rpartition("/")[2].removeprefix("cd ") for line in task.solution if line.startswith("cd ")]
    answers = [f"{folders[0]}/{first}", f"{folders[1]}/{second}"]
    for i, name in enumerate(answers):
        linked = [*task.solution, "cd ..", f"cp {name} {folders[1 - i]}/copy", f"ln -f {folders[1 - i]}/copy {name}"]
        assert verdict(sandbox, task, linked) == (True, [])


def test_chains_differ_within_and_between_splits():
    texts = {}
    for split in SPLITS:
        tasks = generate_tasks(split, 150, "all", (1, 2, 3), 0, split == "train", 3)
        texts[split] = {(exercise(name).text, repr(sorted(exercise(name).tree.items()))) for name in tasks.ids}
        assert len(texts[split]) == 150, split
        names = {part.rpartition("-")[0] for name in tasks.ids for part in name.rsplit("-", 3)[0].split("+")}
        assert names == set(HELD_OUT) if split == "unseen" else not names & set(HELD_OUT)
    assert not texts["train"] & (texts["test"] | texts["validation"] | texts["unseen"])


def test_a_chain_has_different_families():
    tasks = generate_tasks("train", 50, ("set-env", "set-ini", "count-lines"), (1, 2), 0, False, 3)
    for name in tasks.ids:
        assert {part.rpartition("-")[0] for part in name.rsplit("-", 3)[0].split("+")} == {
            *("set-env", "set-ini", "count-lines")
        }
    with rejects(InvalidArgument, "2", "3", key="chain"):
        generate_tasks("train", 50, ("set-env", "set-ini"), (1, 2), 0, False, 3)
