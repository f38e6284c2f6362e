"""The request: named once, refused in one line, completed from a run or config, and all of it in a journal's key."""

import inspect
from contextlib import contextmanager

import pytest
import yaml

import gagpo
from gagpo.agents.api.settings import ApiSettings
from gagpo.agents.prompts import find_prompt
from gagpo.base.errors import InvalidArgument
from gagpo.base.progress import track
from gagpo.eval.conditions import conditions_of, settings_like
from gagpo.eval.models import evaluate
from gagpo.eval.request import ContextOptions, EvaluationRequest
from gagpo.settings import ContextSettings, SettingsError
from tests.gagpo.conftest import CORRIDOR
from tests.rejections import rejects

ENVIRONMENT = "gagpo.envs.testing:gagpo-test/Corridor-v0"


def test_python_takes_the_requests_own_arguments_and_all_are_described():
    names = inspect.signature(EvaluationRequest).parameters.keys()
    assert inspect.signature(gagpo.evaluate).parameters.keys() == names
    assert [name for name, field in EvaluationRequest.model_fields.items() if not field.description] == []


def test_options_of_the_prompt_are_keys_of_a_runs_context():
    assert ContextOptions.model_fields.keys() <= ContextSettings.model_fields.keys()
    request = EvaluationRequest(model="random", environment=ENVIRONMENT, context=ContextSettings(history=2))
    assert request.context.keys() == {"history": 2}
    assert conditions_of(request, None, None).context == ContextSettings(history=2)
    with rejects(InvalidArgument, key="context.styl"):
        gagpo.evaluate("random", environment=ENVIRONMENT, context={"styl": "plain"})


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"episodes_per_task": 0}, "key 'episodes_per_task' must be at least 1, got 0"),
        ({"splitt": "test"}, "key 'splitt' is unknown"),
        ({"context": {"history": "some"}}, "history must be full or a number of turns, got 'some'"),
        ({"context": {"prompt": "fancy"}}, "unknown prompt 'fancy'; choose one of action, plain, tags, think-act"),
        ({"server": ApiSettings("m")}, "server is for a model behind a server (openai:MODEL), and random is not"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(arguments, said):
    with pytest.raises(InvalidArgument) as caught:
        gagpo.evaluate("random", environment=ENVIRONMENT, **arguments)
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_what_is_not_given_comes_from_like_and_what_is_given_stays(tmp_path):
    context = {"history": 1, "prompt": "tags", "admissible": True, "template": {"date": "2026-01-01"}}
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump({**CORRIDOR, "context": context, "model": "nowhere"}))
    like = settings_like(path)
    request = EvaluationRequest(model="random", like=path, context={"prompt": "plain"}, kwargs={"max_turns": 9})
    completed = conditions_of(request, None, like)
    assert (completed.environment, completed.split) == (ENVIRONMENT, "test")
    assert completed.context == like.context.model_copy(update={"prompt": find_prompt("plain")})
    assert (completed.temperature, completed.max_tokens) == (like.evaluation.temperature, like.rollout.max_tokens)
    assert completed.kwargs == {**like.environment.kwargs, "max_turns": 9}
    request = EvaluationRequest(model="random", like=path, environment="gagpo/Math-v0")
    other = conditions_of(request, None, like)
    assert (other.kwargs, other.split) == ({}, None)  # those of another environment
    with rejects(SettingsError, key="--env"):
        conditions_of(EvaluationRequest(model="random"), None, None)


def test_a_run_that_measures_no_split_is_played_on_the_environments_last_one(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump({**CORRIDOR, "evaluation": {"splits": []}, "model": "nowhere"}))
    assert conditions_of(EvaluationRequest(model="random", like=path), None, settings_like(path)).split is None
    result = evaluate("random", like=path, workers=0, quiet=True)
    assert result.task_set.split == "test"


def test_episodes_of_an_interrupted_evaluation_do_not_count_for_the_rate(tmp_path, monkeypatch):
    meters = []

    @contextmanager
    def watched(*arguments, **options):
        with track(*arguments, **options) as meter:
            meters.append((meter, meter.done))
            yield meter

    monkeypatch.setattr("gagpo.eval.evaluate.track", watched)
    for _ in range(2):
        evaluate("random", environment=ENVIRONMENT, workers=0, quiet=True, journals=tmp_path)
    assert [(done, meter.first, meter.done) for meter, done in meters] == [(0, 0, 4), (4, 4, 4)]


def test_models_in_this_process_and_at_a_server_have_their_own_defaults():
    usual = {"environment": ENVIRONMENT, "split": "test"}
    requests = [EvaluationRequest(model=name, **usual) for name in ("random", "openai:m")]
    here, there = (conditions_of(request, None, None) for request in requests)
    assert (here.context.prompt.name, here.temperature, here.max_tokens) == ("plain", 0.4, 512)
    assert (there.context.prompt.name, there.temperature, there.max_tokens) == ("tags", 0.4, 512)


def test_a_journal_is_used_again_by_the_same_request_alone(tmp_path):
    def journals(**changes):
        arguments = {"environment": ENVIRONMENT, "split": "test", "workers": 0, "quiet": True, **changes}
        evaluate("random", journals=tmp_path, **arguments)
        return {path.name for path in tmp_path.glob("*.jsonl")}

    results = journals()
    for change in (
        {},
        {"workers": 1},
        {"episodes_per_task": 2},
        {"episodes": tmp_path / "all.json"},
        {"concurrency": 1},
    ):
        assert journals(**change) == results, change
    for change in (
        {"split": "train"},
        {"kwargs": {"max_turns": 40}},
        {"tasks": 3},
        {"seed": 1},
        {"temperature": 0.5},
        {"max_tokens": 9},
        {"context": {"prompt": "tags"}},
        {"context": {"history": 2}},
        {"context": {"template": {"date": "2026-01-01"}}},
    ):
        more = journals(**change)
        assert len(more) == len(results) + 1, change
        results = more
