"""The critic's loss, by hand."""

import pytest
import torch

from gagpo.objectives import value_loss
from tests.rejections import rejects


def test_clipped_value_loss_by_hand():
    value = torch.tensor([1.5, 0.1, 3.0], requires_grad=True)
    old, target = torch.tensor([1.0, 0.0, 3.0]), torch.tensor([2.0, 1.0, 1.0])
    loss, metrics = value_loss(value, old, target, clip=0.2)
    # Held at 1.2: (1.2-2)^2 = .64 > .25 ; within: .81 ; within: 4.
    assert loss.item() == pytest.approx(0.5 * (0.64 + 0.81 + 4.0) / 3)
    loss.backward()
    assert value.grad.tolist() == pytest.approx([0.0, -0.9 / 3, 2.0 / 3])
    assert metrics["value_clipped"].item() == 1
    assert metrics["value_error"].item() == pytest.approx(0.25 + 0.81 + 4.0)


def test_without_clip_it_is_half_the_squared_error():
    value, target = torch.tensor([1.0, 4.0]), torch.tensor([0.0, 2.0])
    assert value_loss(value, torch.zeros(2), target, clip=None)[0].item() == pytest.approx(0.5 * (1 + 4) / 2)


def test_micro_batches_add_up():
    generator = torch.Generator().manual_seed(0)
    value, old, target = (torch.randn(10, generator=generator) for _ in range(3))
    full = value_loss(value, old, target)[0]
    segments = [
        value_loss(value[segment], old[segment], target[segment], count=10)[0]
        for segment in (slice(0, 3), slice(3, 10))
    ]
    assert sum(segments).item() == pytest.approx(full.item())


def test_shapes_must_agree_and_hold_something():
    with rejects(ValueError, "(2,)", "(3,)", key="value"):
        value_loss(torch.zeros(2), torch.zeros(3), torch.zeros(2))
    with rejects(ValueError, key="value"):
        value_loss(torch.zeros(0), torch.zeros(0), torch.zeros(0))
