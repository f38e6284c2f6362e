"""The estimate of the time left, against runs whose iterations and evaluations take scripted seconds."""

import pytest

from gagpo.settings import parse
from gagpo.training.events import IterationFinished
from gagpo.training.time_left import TimeLeft

RUN = {"name": "x", "model": "m", "environment": {"id": "gagpo/Math-v0"}, "algorithm": {"preset": "gagpo"}}


def left_of(training, evaluation):
    settings = {**RUN, "training": {"ema": False, **training}, "evaluation": evaluation}
    return TimeLeft(parse(settings, "these settings"))


def test_iterations_and_the_evaluations_to_come_are_added():
    remaining = left_of({"iterations": 20}, {"splits": ["test"], "every": 5})
    remaining.evaluation(30.0)
    for seconds in (90.0, 10.0, 10.0, 12.0, 8.0):  # the first one warms up
        remaining.iteration(seconds, 100)
    assert remaining.seconds(5, 500) == 15 * 10.0 + (3 + 1) * 30.0  # after 5, 10 and 15, and at the end
    assert remaining.seconds(20, 2000) == 30.0


def test_one_slow_iteration_hardly_changes_it_and_a_slower_run_soon_does():
    remaining = left_of({"iterations": 100}, {"splits": ["test"]})
    for seconds in (10.0, 10.0, 300.0, 10.0, 10.0):
        remaining.iteration(seconds, 100)
    assert remaining.seconds(5, 500) == 950.0
    for _ in range(3):
        remaining.iteration(20.0, 100)
    assert remaining.seconds(8, 800) == 92 * 20.0


@pytest.mark.parametrize(("turns", "iterations"), [(None, 95), (800, 3), (850, 4), (400, 0)])
def test_a_limit_of_turns_ends_a_run_earlier(turns, iterations):
    remaining = left_of({"iterations": 100, "max_turns": turns}, {"splits": ["test"]})
    for _ in range(5):
        remaining.iteration(10.0, 100)
    assert remaining.seconds(5, 500) == iterations * 10.0


def test_the_line_of_an_iteration_shows_it(monkeypatch):
    names = ["iteration", "success_rate", "mean_turns", "invalid_rate", "tokens_per_second"]
    names += ["seconds_env", "seconds_generate", "seconds_train"]
    fromkeys = dict.fromkeys(names, 1.0)
    monkeypatch.setenv("COLUMNS", "190")
    assert "  10 min left  " in str(IterationFinished(fromkeys, 600.0)) and "left" not in str(
        IterationFinished(fromkeys)
    )
    for columns in range(60, 191):
        monkeypatch.setenv("COLUMNS", str(columns))
        assert all(len(line) <= columns for line in str(IterationFinished(fromkeys, 600.0)).splitlines())
