"""Runs of studies are the same as those of `gagpo train` with the same settings."""

import json
import shutil

import pytest
import yaml

from benchmarks.learning import with_earlier
from benchmarks.studies import study
from benchmarks.studies.mixture import specialist_of
from gagpo.eval.study import RunRow
from gagpo.settings import load
from gagpo.settings.derived import RECIPE
from gagpo.training.launch import new_run
from tests.gagpo.conftest import CORRIDOR
from tests.gagpo.training.test_mixture import ENVIRONMENTS_TRIED

DERIVED = {"optimizer.learning_rate": 3e-3, "rollout.max_tokens": 5}


@pytest.fixture
def config(tmp_path, warm_model):
    """Write a config that leaves rate and length open, of a model for which both were derived; gives its path."""
    model = tmp_path / "model"
    shutil.copytree(warm_model, model)
    (model / RECIPE).write_text(json.dumps({"derived": DERIVED}))
    open_ones = {**CORRIDOR, "model": str(model), "rollout": {"tasks": 4, "group_size": 2, "workers": 0}}
    del open_ones["optimizer"]

    def write(**changes):
        path = tmp_path / "open.yaml"
        path.write_text(yaml.safe_dump({**open_ones, **changes}))
        return path

    return write


@pytest.fixture
def begun(tmp_path, monkeypatch):
    """The settings of the run that a study would play."""

    def of(settings):
        monkeypatch.setattr(study, "train", lambda config, runs, quiet: new_run(config, (), runs).settings)
        return study.finished(settings, tmp_path / "runs")

    return of


def test_what_was_left_open_is_derived(config, begun):
    results = begun(load(config()))
    assert (results.optimizer.learning_rate, results.rollout.max_tokens) == (3e-3, 5)


def test_what_was_set_stays(config, begun):
    requests = load(config(), ["optimizer.learning_rate=1e-4", "rollout.max_tokens=7"])
    assert begun(requests) == requests


def test_a_specialist_has_the_rate_of_its_mixture(config, begun):
    mixture = load(config(environment=None, environments=ENVIRONMENTS_TRIED))
    results = begun(specialist_of(mixture, "long", 400))
    assert (results.optimizer.learning_rate, results.rollout.max_tokens) == (3e-3, 5)
    assert results.training.max_turns == 400


def test_rows_that_were_not_run_again_stay():
    def row(label, seed, after):
        facts = {"split": "test", "split_hash": "a" * 16, "tasks": 10, "tries": 2, "tokens_total": 5.0}
        return RunRow(label=label, seed=seed, after=after, reward_after=after, area=after, **facts)

    earlier = [row("b", 1, 0.5), row("b", 2, 0.5), row("gone", 1, 0.5), row("a, averaged", 1, 0.5)]
    results = with_earlier([row("b", 2, 0.7), row("a", 1, 0.7)], earlier, ["a", "b"])
    assert [(result.label, result.seed, result.after) for result in results] == [
        *(("a", 1, 0.7), ("a, averaged", 1, 0.5), ("b", 1, 0.5), ("b", 2, 0.7))
    ]
