"""The share of a gradient that is signal, against gradients whose signal and noise are known."""

import pytest
import torch

from gagpo.distributed.ranks import Ranks
from gagpo.learning.steps.signal import GradientSignal


def measured(signal, noise, count, size=20_000, groups=3.0):
    generator = torch.Generator().manual_seed(5)
    parameter, found = torch.nn.Parameter(torch.zeros(size)), GradientSignal()
    truth = torch.full((size,), signal / size**0.5)
    for _ in range(count):
        parameter.grad = truth + noise / size**0.5 * torch.randn(size, generator=generator)
        found.observe([parameter], Ranks())
    return found.values(groups, Ranks())


@pytest.mark.parametrize(("signal", "noise"), [(1.0, 0.5), (1.0, 2.0), (0.2, 1.0)])
def test_the_share_is_that_of_the_true_gradient(signal, noise):
    values = measured(signal, noise, 8)
    share = signal**2 / (signal**2 + noise**2)
    assert values["gradient_signal"] == pytest.approx(share, abs=0.02)
    assert values["critical_groups"] == pytest.approx(3.0 * noise**2 / signal**2, rel=0.3)


def test_noise_alone_has_none():
    assert abs(measured(0.0, 1.0, 8)["gradient_signal"]) < 0.01


def test_equal_gradients_are_all_signal():
    assert measured(1.0, 0.0, 2) == {
        "gradient_signal": pytest.approx(1.0),
        "critical_groups": pytest.approx(0, abs=1e-4),
    }


def test_one_gradient_tells_nothing():
    assert measured(1.0, 1.0, 1) == {} and GradientSignal().values(1.0, Ranks()) == {}
