"""Results: honest counting, exact round trips, errors that name file and key, tables that fit a narrow terminal."""

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gagpo.data import Episode, Turn
from gagpo.envs.lookup import creator_of, find_spec
from gagpo.eval.results import EvalResult, EvaluatedTaskSet
from gagpo.eval.statistics import wilson
from gagpo.eval.summary import result_lines
from gagpo.runs.reading import BadResult
from tests.folders import needs
from tests.rejections import rejects


def turn(reward=0.0, valid=True):
    return Turn("You see a mug.", "<action>take mug</action>", "take mug", reward, "" if valid else "refused")


def episode(task, sample=0, success=False, kind="pick", turns=3, invalid=0, outcome="terminated", reward=None, **more):
    paid = float(success) if reward is None else reward
    played = [turn(valid=i >= invalid) for i in range(turns - 1)] + [turn(paid, turns - 1 >= invalid)] if turns else []
    return Episode(task, kind, "test", sample=sample, turns=played, success=success, outcome=outcome, **more)


def panel(tasks, tries=1, **more):
    return EvaluatedTaskSet("gagpo/ALFWorld-v0", "valid_unseen", "0123456789abcdef", tasks, tries, **more)


def four_tasks():
    return [
        episode("a", success=True, turns=4, invalid=1),
        episode("b", success=False, turns=6, outcome="truncated"),
        episode("c", success=True, turns=2, kind="heat", restarts=2),
        episode("d", success=True, turns=1, kind="heat", outcome="failed", reward=0.0),  # broke after its last turn
    ]


def test_failed_episodes_count_as_no_success_and_are_shown():
    result = EvalResult.from_episodes(four_tasks(), panel(4), "model", 0.4)
    assert (result.successes, result.episodes, result.failed, result.truncated, result.restarts) == (2, 4, 1, 1, 2)
    assert result.success == wilson(2, 4)
    assert result.by_type == {"heat": wilson(1, 2), "pick": wilson(1, 2)}
    assert result.mean_turns == pytest.approx((4 + 6 + 2) / 3)  # the failed one did not run its course
    assert result.invalid_rate == pytest.approx(1 / 13)
    assert result.mean_reward.value == pytest.approx(0.5)
    assert "1 failed, 2 restarts" in " ".join(" ".join(result_lines(result)).split())


def test_tasks_played_too_often_or_not_at_all_are_an_error():
    with rejects(ValueError, "5 tasks", "4 were run"):
        EvalResult.from_episodes(four_tasks(), panel(5), "model", 0.4)
    with rejects(ValueError, "'a'", "2 times"):
        EvalResult.from_episodes([*four_tasks(), episode("a", 1)], panel(4), "model", 0.4)


def test_an_empty_panel_is_refused():
    for number, tries in ((0, 1), (1, 0)):
        with pytest.raises(ValueError, match="greater than or equal to 1"):
            panel(number, tries)


def test_the_order_of_the_episodes_does_not_matter():
    eval_result = EvalResult.from_episodes(four_tasks(), panel(4), "model", 0.4)
    other = EvalResult.from_episodes(four_tasks()[::-1], panel(4), "model", 0.4)
    assert eval_result.to_json() == other.to_json()
    several = [episode("a", i, success=i == 2, turns=i + 1) for i in range(4)]
    eval_result = EvalResult.from_episodes(several, panel(1, tries=4), "model", 0.4)
    assert eval_result == EvalResult.from_episodes(several[::-1], panel(1, tries=4), "model", 0.4)
    assert [eval_result.turns for eval_result in eval_result.tasks[0].tries] == [1, 2, 3, 4]


def test_pass_by_hand():
    """Task a: 2 of 4 right; task b: never right."""
    solved = {"a": (True, True, False, False), "b": (False,) * 4}
    episodes = [episode(task, i, success=right) for task, tries in solved.items() for i, right in enumerate(tries)]
    result = EvalResult.from_episodes(episodes, panel(2, tries=4), "model", 1.0)
    assert result.pass_at_k == pytest.approx({1: 0.25, 2: (5 / 6) / 2, 4: 0.5})
    lines = [line.split() for line in result_lines(result)]
    output = {line[0]: line[1] for line in lines if line and line[0] in ("1", "2", "4")}
    assert output == {"1": "25.0", "2": "41.7", "4": "50.0"}
    assert EvalResult.from_episodes(four_tasks(), panel(4), "model", 0.4).pass_at_k == {}


def test_an_agent_that_samples_nothing_has_no_temperature():
    result = EvalResult.from_episodes(four_tasks(), panel(4), "expert", None)
    assert "temperature" not in " ".join(result_lines(result))
    assert EvalResult.from_json(result.to_json()) == result


tries = st.builds(
    dict,
    success=st.booleans(),
    turns=st.integers(1, 5),
    invalid=st.integers(0, 1),
    outcome=st.sampled_from(["terminated", "truncated", "failed"]),
    reward=st.floats(-10, 10),
    restarts=st.integers(0, 3),
)


@given(st.lists(st.lists(tries, min_size=2, max_size=2), min_size=1, max_size=5), st.text(max_size=20))
@settings(deadline=None, max_examples=10)
def test_a_result_survives_its_file(tmp_path_factory, tasks, model):
    episodes = [episode(f"task {i}", j, **item) for i, pair in enumerate(tasks) for j, item in enumerate(pair)]
    result = EvalResult.from_episodes(
        episodes, panel(len(tasks), 2, kwargs={"max_turns": 5, "pair": (1, 2)}), model, 0.7
    )
    assert EvalResult.from_json(result.to_json()) == result
    path = tmp_path_factory.mktemp("evals") / "after.json"
    result.save(path)
    assert EvalResult.load(path) == result
    assert [p.name for p in path.parent.iterdir()] == ["after.json"]
    summary = json.loads(result.to_json())["summary"]
    assert summary["success_rate"] == pytest.approx(result.successes / result.episodes)


def edited(*path, value):
    """A good file in which one value is replaced, or removed when the value is ``...``."""
    record = json.loads(EvalResult.from_episodes(four_tasks(), panel(4), "model", 0.4).to_json())
    location = record
    for key in path[:-1]:
        location = location[key]
    if value is ...:
        del location[path[-1]]
    else:
        location[path[-1]] = value
    return json.dumps(record)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "x.json: "),
        ("[1]", "the document must be a mapping, got [1]"),
        (edited("format", value="other"), "key 'format' must be 'gagpo evaluation 1', got 'other'"),
        (edited("panel", value=...), "key 'panel' is missing"),
        (edited("panel", "split_hash", value=5), "key 'panel.split_hash' must be text, got 5"),
        (edited("panel", "tasks", value=5), "key 'panel.tasks' must be 4"),
        (edited("panel", "tries", value=0), "key 'panel.tries' must be at least 1"),
        (edited("panel", "tries", value=2), "key 'tasks[0].tries' must hold 2 tries, got 1"),
        (edited("temperature", value="hot"), "key 'temperature' must be a number, got 'hot'"),
        (edited("tasks", 2, "tries", 0, "reward", value=math.nan), "key 'tasks[2].tries[0].reward' must be a finite"),
        (edited("tasks", 2, "tries", 0, "reward", value=10**400), "key 'tasks[2].tries[0].reward'"),
        (edited("tasks", 0, "tries", 0, "success", value=1), "key 'tasks[0].tries[0].success' must be true or false"),
        (edited("tasks", 0, "tries", 0, "turns", value=True), "key 'tasks[0].tries[0].turns' must be an integer"),
        (edited("tasks", 0, "tries", 0, "outcome", value="won"), "must be 'terminated', 'truncated' or 'failed'"),
        (edited("tasks", 1, "task", value="a"), "key 'tasks' lists a task twice"),
        (edited("summary", "successes", value=4), "key 'summary.successes' must be 2, the successes of the tries"),
        (edited("model", value="x" * 500 and ["x" * 500]), "key 'model' must be text"),
    ],
)
def test_a_bad_file_is_refused_in_one_short_line_with_file_and_key(text, complaint):
    with pytest.raises(BadResult) as caught:
        EvalResult.from_json(text, "x.json")
    message = str(caught.value)
    assert complaint in message and message.startswith("x.json: ")
    assert "\n" not in message and len(message) < 250


def test_files_that_cannot_be_read(tmp_path):
    (tmp_path / "latin.json").write_bytes(b'"caf\xe9"')
    with rejects(BadResult, "UTF-8", where="latin.json"):
        EvalResult.load(tmp_path / "latin.json")
    with rejects(BadResult, "No such file", where="none.json"):
        EvalResult.load(tmp_path / "none.json")


def test_arguments_that_json_cannot_hold_are_refused():
    with pytest.raises(ValueError, match="plain JSON values"):
        panel(1, kwargs={"callback": print})


@given(
    st.lists(st.text(max_size=80), min_size=1, max_size=4, unique=True),
    st.text(max_size=90),
    st.integers(1, 3),
    st.integers(30, 100),
)
@settings(deadline=None, max_examples=80)
def test_the_table_is_ascii_and_never_wider_than_asked(kinds, model, number, width):
    episodes = [
        episode(f"t{i}", j, success=j == 0, kind=type_name) for i, type_name in enumerate(kinds) for j in range(number)
    ]
    lines = result_lines(EvalResult.from_episodes(episodes, panel(len(kinds), number), model, 0.4), width)
    assert all(len(line) <= width and line.isascii() and (line.isprintable() or not line) for line in lines)


def test_the_table_says_what_was_measured():
    text = "\n".join(result_lines(EvalResult.from_episodes(four_tasks(), panel(4), "tiny", 0.4)))
    for segment in (
        "valid_unseen, 4 tasks once each",
        "0123456789abcdef",
        "50.0 [15.0, 85.0]",
        "heat",
        "2 of 4",
        "tiny",
    ):
        assert segment in text


def test_results_under_unlike_prompts_do_not_compare():
    from dataclasses import replace

    from gagpo.eval.results import EvaluatedTaskSet

    spoken = {
        "prompt": "plain",
        "history": 2,
        "template": {"date": "2026-01-01"},
        "temperature": 0.4,
        "dtype": "float32",
    }
    panel = EvaluatedTaskSet("e", "test", "h", 3, conditions=spoken)
    other = replace(panel, conditions={**spoken, "history": "full", "dtype": "bfloat16"})
    assert panel.difference(other) == "dtype 'float32' against 'bfloat16', history 2 against 'full'"
    assert panel.difference(panel) is None
    assert panel.difference(replace(panel, conditions={})) is None  # an agent without a prompt
    served = {"prompt": "plain", "history": 2, "temperature": 0.4, "reasoning": "drop"}  # knows of no dtype
    assert panel.difference(replace(panel, conditions=served)) is None
    hot = replace(panel, conditions={**served, "temperature": 1.0})
    assert panel.difference(hot) == "temperature 0.4 against 1.0"


# Panels: which results can be compared --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "mine", "theirs"),
    [
        ("gagpo/ALFWorld-v0", {"games": "official", "size": "full"}, {"games": "official", "size": "small", "seed": 3}),
        (
            "gagpo/ALFWorld-v0",
            {"games": "official"},
            {"games": "/data/json_2.1.1", "verb": "put", "counts": {"test": 9}},
        ),
        ("gagpo/Math-v0", {"data": "test.jsonl", "size": 20_000}, {"data": "test.jsonl", "levels": [1], "size": 20}),
        pytest.param(
            "gagpo/SQL-v0",
            {"data": "spider", "test_size": 200},
            {"data": "spider", "seed": 1},
            marks=needs("envs/sql"),
        ),
        ("gagpo/WebShop-v0", {"data": "files", "products": 1_000}, {"data": "files", "products": 20_000}),
    ],
)
def test_the_same_tasks_are_the_same_panel_whatever_was_asked_for_to_get_them(environment, mine, theirs):
    both = {"max_turns": 30}
    item, other = (replace(panel(2), environment=environment, kwargs=both | kwargs) for kwargs in (mine, theirs))
    assert item.difference(other) is None and other.difference(item) is None
    played_otherwise = replace(other, kwargs=both | theirs | {"max_turns": 50})
    assert item.difference(played_otherwise) == "kwargs {'max_turns': 30} against {'max_turns': 50}"
    assert item.difference(replace(other, split_hash="f" * 16)).startswith("split hash")


def test_what_changes_how_a_task_is_played_tells_panels_apart():
    for environment, item, other in (
        ("gagpo/ALFWorld-v0", {"banner": True}, {"banner": False}),
        ("gagpo/WebShop-v0", {"search": "lucene"}, {}),
        ("gagpo/Math-v0", {"attempts": 1}, {"attempts": 3}),
        ("gagpo/SQL-v0", {"rows": 5}, {"rows": 1}),
    ):
        panels = [replace(panel(2), environment=environment, kwargs=kwargs) for kwargs in (item, other)]
        assert panels[0].difference(panels[1]).startswith("kwargs")


@pytest.mark.parametrize(
    ("env_id", "kwargs"),
    [
        *(("gagpo/Web-v0", {"form": format}) for format in ("names", "tools")),
        ("gagpo/Web-v0", {"timeout": 1.0}),
        ("gagpo/Program-v0", {"timeout": 1.0}),
        ("gagpo/Program-v0", {"memory": 100}),
        ("gagpo/Program-v0", {"environment": "MODE"}),
        ("gagpo/MCP-v0", {"environment": ["MODE"]}),
        ("gagpo/MCP-v0", {"start_timeout": 0.1}),
        ("CartPole-v1", {"render_mode": "ansi"}),
        ("http://127.0.0.1:1", {"field": "text"}),
    ],
)
def test_two_results_with_another_condition_cannot_be_compared(env_id, kwargs):
    env = creator_of(find_spec(env_id))
    item, other = (replace(panel(2), environment=env_id, kwargs=env.material(arguments)) for arguments in ({}, kwargs))
    (name,) = kwargs
    default = {name: env.material({})[name]}
    assert item.difference(other) == f"kwargs {default} against {kwargs}".replace("()", "[]")  # as in a file
    assert item.difference(item) is None


def test_comparing_results_imports_nothing_that_a_file_names(tmp_path, monkeypatch):
    (tmp_path / "trap.py").write_text("raise SystemExit('imported')", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    for environment in ("trap:Trap-v0", "Unknown-v0", "trap"):
        item, other = (replace(panel(2), environment=environment, kwargs={"size": size}) for size in (1, 2))
        assert item.difference(other) == "kwargs {'size': 1} against {'size': 2}"
