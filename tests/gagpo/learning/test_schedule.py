"""Learning rates rise and fall as asked, and follow the share of groups that teach."""

import pytest

from gagpo.learning.optimizer import rate_scale
from gagpo.settings import OptimizerSettings


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
