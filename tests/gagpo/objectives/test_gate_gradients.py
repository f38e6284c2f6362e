"""What a gate leaves of each token's gradient."""

import math

import pytest
import torch

from gagpo.objectives import Controls, Layout, gate_weights, policy_loss
from tests.gagpo.objectives.cases import ROW, TURN, objective, random_batch


def weights(ratios, advantages, controls=None, **cells):
    old = torch.full((len(ratios),), -1.0, dtype=torch.float64)
    new = old + torch.log(torch.tensor(ratios, dtype=torch.float64))
    layout = Layout.of(torch.zeros(len(ratios), dtype=torch.int64))
    advantage = torch.tensor(advantages, dtype=torch.float64)
    return gate_weights(new, old, advantage, layout, objective(**cells), controls).tolist()


def test_sapos_weight_has_its_worked_numbers():
    results = weights([0.5, 1.2, 2.0, 1.0], [1.0, 1.0, -1.0, -1.0], gate="sapo")
    assert results == pytest.approx([0.940015, 0.990066, 0.768110, 1.0], abs=5e-7)
    (steep,) = weights([1.5], [1.0], gate={"name": "sapo", "positive": 4.0})
    assert steep == pytest.approx(1 / math.cosh(4.0 * 0.5 / 2) ** 2)


def test_a_hard_clip_takes_all_or_nothing():
    ratios, advantages = [1.5, 0.5, 1.5, 0.5, 1.0, 9.0], [1.0, 1.0, -1.0, -1.0, 1.0, 0.0]
    assert weights(ratios, advantages, gate="clip") == pytest.approx([0, 1, 1, 0, 1, 1])
    assert weights(ratios, advantages, Controls(clip_low=0.6, clip_high=0.7)) == pytest.approx([1] * 6)
    assert weights([9.0], [-1.0], gate={"name": "clip", "dual": 3.0}) == [0]


def test_the_clip_is_that_of_the_actions_ratio():
    assert weights([1.5, 1.0], [1.0, 1.0], ratio="action") == pytest.approx([0, 0])  # geometric mean 1.22
    assert weights([1.5, 0.9], [1.0, 1.0], ratio="action") == pytest.approx([1, 1])
    assert weights([1.5, 0.9], [1.0, 1.0], ratio="action", ratio_pool="sum") == pytest.approx([0, 0])


@pytest.mark.parametrize("gate", ["clip", "log_clip", "sapo", "cispo", "dppo", "likelihood", "none"])
def test_a_weight_is_the_gradient_of_the_loss_over_that_of_the_plain_ratio(gate):
    new, old, advantage = random_batch(per=None)
    layout, chosen = Layout.of(TURN, ROW), objective(gate=gate)
    (gradient,) = torch.autograd.grad(-policy_loss(new, old, advantage, layout, chosen)[0], new)
    plain = advantage * torch.exp(new - old).detach() / len(new)
    results = gate_weights(new, old, advantage, layout, chosen)
    assert not results.requires_grad
    assert (results * plain).numpy() == pytest.approx(gradient.numpy(), abs=1e-12)


@pytest.mark.parametrize("aggregation", ["geometric", "power"])
def test_the_sign_is_that_of_the_segment_in_a_special_mean(aggregation):
    """Both tokens have the segment's mean advantage, 1: the clip is the upper one, for the second token too."""
    assert weights([1.5, 1.5], [3.0, -1.0], aggregation=aggregation) == pytest.approx([0, 0])


def test_extreme_and_infinite_log_probabilities():
    new = torch.tensor([-500.0, -1.0, -math.inf, -1.0])
    old = torch.tensor([-1.0, -500.0, -1.0, -1.0])
    results = gate_weights(new, old, torch.ones(4), Layout.of(torch.arange(4)), objective(gate="sapo"))
    assert torch.isfinite(results[[0, 1, 3]]).all() and torch.isnan(results[2])
