"""Suites: several task sets in one command, resumable, with one table."""

import pytest
import yaml

from gagpo.base.errors import InvalidArgument
from gagpo.envs.arguments import require_arguments
from gagpo.eval.models import evaluate, measure_all, request_of
from gagpo.eval.suite import read_suite, requests_of, shipped_suites
from tests.rejections import rejects

CORRIDOR = "gagpo.envs.testing:gagpo-test/Corridor-v0"


@pytest.fixture
def suite(tmp_path):
    entries = {
        "short": {"environment": CORRIDOR, "split": "test", "kwargs": {"max_turns": 4}, "tasks": 2},
        "long": {"environment": CORRIDOR, "split": "train", "episodes_per_task": 2, "temperature": 0.7},
    }
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(entries, sort_keys=False))
    return str(path)


@pytest.mark.parametrize("name", shipped_suites())
def test_shipped_suites_name_environments_and_arguments_that_exist(name):
    entries = read_suite(name)
    assert len(entries) >= 2
    for entry in entries.values():
        require_arguments(entry.environment, entry.kwargs)


def test_every_task_set_is_measured_as_the_suite_says_and_resumes(suite, tmp_path):
    request = request_of("random", suite=suite, workers=0, quiet=True, journals=tmp_path / "journals")
    outcomes = measure_all(request)
    assert list(outcomes) == ["short", "long"]
    short, long = (outcome.result.task_set for outcome in outcomes.values())
    assert (short.split, short.tasks, short.tries, short.kwargs["max_turns"]) == ("test", 2, 1, 4)
    assert (long.split, long.tasks, long.tries) == ("train", 8, 2)
    again = measure_all(request)
    assert [outcome.stored for outcome in again.values()] == [2, 16]
    assert [outcome.result for outcome in again.values()] == [outcome.result for outcome in outcomes.values()]


def test_options_of_the_command_count_more_than_those_of_the_suite(suite):
    requests = requests_of(request_of("random", suite=suite))
    assert [each.temperature for each in requests.values()] == [None, 0.7]
    assert [each.episodes_per_task for each in requests.values()] == [1, 2]
    requests = requests_of(request_of("random", suite=suite, temperature=0.0, episodes_per_task=3))
    assert {(each.temperature, each.episodes_per_task) for each in requests.values()} == {(0.0, 3)}


def test_some_task_sets_of_a_suite_can_be_chosen(suite):
    assert list(read_suite(f"{suite}:long")) == ["long"]
    assert list(read_suite("agents:sql,math")) == ["sql", "math"]
    for name, wrong, advice in (("agents:maths", "'maths'", "math"), ("agent:math", "'agent'", "agents")):
        with rejects(InvalidArgument, wrong, advice=advice):
            read_suite(name)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: {environment: X, task: 3}", "mine.yaml: a: unknown option 'task'"),
        ("a: {split: test}", "mine.yaml: a: environment is missing"),
        ("a: {environment: X, tasks: 0}", "tasks must be at least 1"),
        ("a: 3", "a must be a mapping"),
        ("../a: {environment: X}", "must be a name"),
        ("{}", "at least one task set"),
    ],
)
def test_a_wrong_suite_is_one_line(tmp_path, text, message):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(InvalidArgument) as caught:
        measure_all(request_of("random", suite=str(path)))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_the_suite_decides_and_unknown_suites_are_refused(suite):
    with rejects(InvalidArgument, key="split"):
        measure_all(request_of("random", suite=suite, split="test"))
    with rejects(InvalidArgument, "'agent'", advice="agents"):
        measure_all(request_of("random", suite="agent"))
    with rejects(InvalidArgument, "several results", advice="--suite"):
        evaluate("random", suite=suite)
