"""Learning rates rise and fall as asked, in training and in a warm start, bit for bit as they always have."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gagpo.learning.steps.optimizer import rate_scale, warm_start_rate
from gagpo.settings import OptimizerSettings, WarmStartSettings


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [0.5, 1, 1, 1, 1, 1]),
        ("linear", [0.5, 1, 1, 0.75, 0.5, 0.25]),
        ("cosine", [0.5, 1, 1, 0.853553, 0.5, 0.146447]),
    ],
)
def test_schedules(schedule, expected):
    settings = OptimizerSettings(warmup=2, schedule=schedule)
    assert [rate_scale(settings, i, 6) for i in range(6)] == pytest.approx(expected, abs=1e-6)


def test_a_rate_with_decay_depends_on_the_number_of_steps_only_while_it_falls():
    short, long = (WarmStartSettings(steps=steps, decay=0.25, learning_rate=1e-2) for steps in (4000, 8000))
    for step in (0, 50, 99, 100, 2999):
        assert warm_start_rate(short, step) == warm_start_rate(long, step)
    assert warm_start_rate(short, 0) == pytest.approx(1e-4) and warm_start_rate(short, 100) == 1e-2
    assert warm_start_rate(short, 3500) == pytest.approx(5e-3) and warm_start_rate(long, 3500) == 1e-2
    assert 0 < warm_start_rate(short, 3999) < 1e-4


@given(st.integers(1, 3000), st.floats(0, 1, exclude_max=True), st.none() | st.floats(0.01, 1))
def test_the_rates_of_a_warm_start_are_those_of_the_starters_that_were_shipped(steps, place, decay):
    """In the order of operations that their losses were recorded with."""
    step, rate = int(place * steps), 4e-3
    if decay is None:
        rise = max(1, steps // 20)
        expected = rate * min(1.0, (step + 1) / rise) * 0.5 * (1 + math.cos(math.pi * step / steps))
    else:
        rise = min(100, max(1, steps // 20))
        expected = rate * min(1.0, (step + 1) / rise, (steps - step) / max(1.0, decay * steps))
    assert warm_start_rate(WarmStartSettings(steps=steps, decay=decay, learning_rate=rate), step) == expected
