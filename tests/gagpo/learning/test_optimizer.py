"""Weight decay and schedules."""

import pytest

from gagpo.learning.optimizer import lr_scale, parameter_groups
from gagpo.settings import OptimizerSettings


def test_gains_and_biases_do_not_decay(tiny):
    model, _ = tiny
    decayed, spared = parameter_groups(model, OptimizerSettings(weight_decay=0.1))
    assert spared["weight_decay"] == 0.0 and "weight_decay" not in decayed
    assert {p.ndim for p in spared["params"]} == {1} and min(p.ndim for p in decayed["params"]) == 2
    assert len(decayed["params"]) + len(spared["params"]) == len(list(model.parameters()))
    (alone,) = parameter_groups(model, OptimizerSettings())
    assert len(alone["params"]) == len(list(model.parameters()))


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [0.5, 1, 1, 1, 1, 1]),
        ("linear", [0.5, 1, 1, 0.75, 0.5, 0.25]),
        ("cosine", [0.5, 1, 1, 0.853553, 0.5, 0.146447]),
    ],
)
def test_schedules(schedule, expected):
    settings = OptimizerSettings(warmup_iterations=2, lr_scheduler=schedule)
    assert [lr_scale(settings, i, 6) for i in range(6)] == pytest.approx(expected, abs=1e-6)
