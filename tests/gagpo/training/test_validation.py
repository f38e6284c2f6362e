"""Test tasks are evaluated before and after training; during it, those of a validation split are."""

import json

import pytest

from gagpo.agents.setup import make_env
from gagpo.eval.results import EvalResult
from gagpo.eval.runs import load_run
from gagpo.eval.study import row_of
from gagpo.runs.run_folder import RunFolder
from gagpo.settings import load
from gagpo.training.evaluation import panels_of
from gagpo.training.trainer import train

CHOSEN = "tests.gagpo.training.split_envs:gagpo-test/Chosen-v0"
EMPTY = "tests.gagpo.training.split_envs:gagpo-test/Empty-v0"
PLAIN = "gagpo.envs.testing:gagpo-test/Corridor-v0"


def chosen(settings):
    environments = {env.name: make_env(env.environment.id, env.environment.kwargs) for env in settings.all_environments}
    return {name: len(tasks) for name, (_, tasks) in panels_of(settings, environments).validation.items()}


@pytest.mark.parametrize(
    ("env", "overrides", "panels"),
    [
        (CHOSEN, [], {"validation": 2}),
        (CHOSEN, ["evaluation.splits=[test, validation]"], {"validation": 2}),
        (CHOSEN, ["evaluation.splits=[validation]"], {"validation": 2}),
        (CHOSEN, ["evaluation.tasks=1"], {"validation": 1}),
        (CHOSEN, ["environment.split=validation"], {"test": 4}),  # what is trained on shows nothing
        (CHOSEN, ["evaluation.every=0"], {}),
        (CHOSEN, ["evaluation.splits=[]"], {}),
        (EMPTY, [], {"test": 4}),
        (PLAIN, [], {"test": 4}),
        (PLAIN, ["evaluation.splits=[test, train]"], {"test": 4, "train": 8}),
    ],
)
def test_which_split_is_evaluated_during_training(corridor, env, overrides, panels):
    config = corridor(environment={"id": env}, evaluation={"every": 1})
    assert chosen(load(config, overrides)) == panels


def test_several_environments_each_choose_theirs(corridor):
    rows = [{"name": "a", "id": CHOSEN}, {"name": "b", "id": PLAIN}]
    config = corridor(environment=None, environments=rows, evaluation={"every": 1})
    assert chosen(load(config)) == {"a.validation": 2, "b.test": 4}


def test_shipped_configs_do_not_look_at_test_tasks_during_training():
    for name, split in (("alfworld-quickstart", "valid_seen"), ("math-small", "validation")):
        settings = load(name, ["evaluation.tasks=2"])
        assert chosen(settings) == {split: 2}


def test_a_run_has_its_test_result_from_its_ends_alone(corridor, tmp_path):
    config = corridor(environment={"id": CHOSEN}, evaluation={"every": 1}, training={"iterations": 3})
    folder = RunFolder.create(tmp_path / "run-seed1", load(config))
    train(folder, quiet=True)
    evals = folder.path / "evals"
    during = {"iteration-0001-validation", "iteration-0002-validation"}
    assert {path.stem for path in evals.iterdir()} == {"before-test", "after-test", "average-test"} | during
    assert folder.finished
    for number in (1, 2):  # a name that comes before that of the test split
        (evals / f"iteration-000{number}-validation.json").rename(evals / f"iteration-000{number}-dev.json")
    run = load_run(folder.path)
    assert run.splits() == ["test", "dev"] and run.last().label == "after-test"
    assert row_of("a", run).split == "test"


@pytest.mark.parametrize(("count", "held"), [(9, None), (10, 1), (300, 27)])
def test_own_data_without_a_validation_split_holds_tasks_out(tmp_path, corridor, count, held):
    """The test tasks were evaluated while training."""
    for split, rows in (("train", count), ("test", 4)):
        lines = [json.dumps({"problem": f"{split}: {number} + 1?", "answer": number + 1}) for number in range(rows)]
        (tmp_path / f"{split}.jsonl").write_text("\n".join(lines))
    data = {split: str(tmp_path / f"{split}.jsonl") for split in ("train", "test")}
    config = corridor(environment={"id": "gagpo/Math-v0", "kwargs": {"data": data}}, evaluation={"every": 1})
    settings = load(config, ["evaluation.splits=[test]"])
    environment = make_env("gagpo/Math-v0", {"data": data})
    panels = [panels_of(settings, {"": environment}) for _ in range(2)]
    training = panels[0].training[""]
    if held is None:
        assert (panels[0].validation, len(training)) == (panels[0].final, count)
        return
    ((name, (_, tasks)),) = panels[0].validation.items()
    assert (name, tasks.split, len(tasks)) == ("validation", "validation", held)
    assert not set(tasks.ids) & set(training.ids) and set(tasks.ids) | set(training.ids) == set(
        environment.tasks("train").ids
    )
    assert panels[1].validation[name][1].hash == tasks.hash
    off = panels_of(load(config, ["evaluation.splits=[test]", "evaluation.every=0"]), {"": environment})
    assert len(off.training[""]) == count, "without evaluations during training nothing is held out"


def test_held_out_tasks_of_own_data_are_evaluated_and_not_trained_on(tmp_path, corridor):
    from gagpo.data import read_episodes

    lines = [json.dumps({"problem": f"{number} + 1?", "answer": number + 1}) for number in range(12)]
    (tmp_path / "train.jsonl").write_text("\n".join(lines))
    (tmp_path / "test.jsonl").write_text(json.dumps({"problem": "5 + 5?", "answer": 10}))
    data = {split: str(tmp_path / f"{split}.jsonl") for split in ("train", "test")}
    environment = {"id": "gagpo/Math-v0", "kwargs": {"data": data, "max_turns": 1}}
    training = {"iterations": 4, "save_episodes_every": 1}
    config = corridor(environment=environment, evaluation={"every": 1}, training=training)
    folder = RunFolder.create(tmp_path / "run", load(config))
    train(folder, quiet=True)
    names = {path.stem for path in (folder.path / "evals").glob("*.json")}
    assert {"before-test", "after-test", "iteration-0001-validation"} <= names
    assert not any("iteration" in name and "test" in name for name in names)
    held = EvalResult.load(folder.path / "evals" / "iteration-0001-validation.json").tasks
    files = sorted((folder.path / "episodes").glob("train-*"))
    trained = {episode["task"] for path in files for episode in read_episodes(path)}
    assert trained and not trained & {result.task for result in held}
