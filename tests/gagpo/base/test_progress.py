"""What a pipe shows of long work, with a clock of the test's own."""

import time

import pytest

from gagpo.base import progress
from gagpo.base.progress import PLAIN_EVERY, RECENT, Meter, track


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def steps(meter, clock, count, seconds):
    for _ in range(count):
        clock.now += seconds
        meter.advance()


def test_steps_of_an_interrupted_run_do_not_count_for_the_rate(clock, capsys):
    meter = Meter("SFT", 1000, "steps", None, PLAIN_EVERY, done=400, clock=clock)
    steps(meter, clock, 10, 2.0)
    assert capsys.readouterr().err == "SFT: 408 of 1,000 steps, 0.5/s, 20 min left\n"


def test_a_bound_is_called_one(clock):
    meter = Meter("SFT", 4000, "steps", None, PLAIN_EVERY, bound=True, clock=clock)
    steps(meter, clock, 40, 0.5)
    assert meter.state("loss 0.1") == "40 of at most 4,000 steps, 2.0/s, at most 33 min left loss 0.1"


def test_the_rate_is_that_of_the_last_steps_and_known_after_a_few(clock):
    meter = Meter("SFT", 1000, "steps", None, PLAIN_EVERY, clock=clock)
    steps(meter, clock, 4, 30.0)
    assert meter.state() == "4 of 1,000 steps"
    steps(meter, clock, RECENT, 1.0)
    assert meter.state() == "54 of 1,000 steps, 1.0/s, 16 min left"
    steps(meter, clock, 946, 1.0)
    assert meter.state() == "1,000 of 1,000 steps in 19 min"


@pytest.mark.parametrize(("seconds", "lines"), [(30.0, 0), (70.0, 1), (130.0, 2)])
def test_a_part_of_longer_work_prints_a_line_a_minute_and_none_at_its_end(clock, capsys, monkeypatch, seconds, lines):
    monkeypatch.setattr(progress.time, "monotonic", clock)
    monkeypatch.setattr(Meter.__init__, "__defaults__", (*Meter.__init__.__defaults__[:-1], clock))
    with track("iteration 1 of 2", 10, "episodes", inner=True) as meter:
        steps(meter, clock, 10, seconds / 10)
    assert capsys.readouterr().err.count("iteration 1 of 2: ") == lines
    with track("whole", 10, "episodes") as meter:
        steps(meter, clock, 10, 1.0)
    assert capsys.readouterr().err == "whole: 10 of 10 episodes in 10 s\n"


def test_a_total_may_change():
    meter = Meter("update", 4, "updates", None, PLAIN_EVERY)
    meter.resize(3)
    assert meter.state() == "0 of 3 updates"


def test_work_that_advances_late_still_prints_lines(capsys, monkeypatch):
    """An evaluation whose episodes all end together printed nothing until then."""
    monkeypatch.setattr(progress, "INNER_EVERY", 0.05)
    with track("evaluating on test", 4, "episodes") as meter:
        time.sleep(0.3)
        meter.advance(4)
    lines = capsys.readouterr().err.splitlines()
    assert 2 <= len(lines) <= 6 and set(lines) == {"evaluating on test: 0 of 4 episodes"}
    with track("evaluating on test", 4, "episodes", quiet=True):
        time.sleep(0.1)
    assert not capsys.readouterr().err
