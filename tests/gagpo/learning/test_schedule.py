"""Learning rates rise and fall as asked, and follow the share of groups that teach."""

import pytest

from gagpo.learning.steps.optimizer import rate_scale, share_scale
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


def test_the_rate_follows_the_share_of_groups_that_teach():
    """The root of the share, unless that is switched off."""
    following, plain = OptimizerSettings(), OptimizerSettings(by_groups=False)
    assert [share_scale(following, zero) for zero in (0.0, 0.75, 1.0)] == [1.0, 0.5, 0.0]
    assert share_scale(plain, 0.75) == 1.0
