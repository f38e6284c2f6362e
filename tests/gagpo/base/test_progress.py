"""What a pipe shows of long work, with a clock of the test's own."""

import pytest

from gagpo.base.progress import PLAIN_EVERY, RECENT, Meter


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
