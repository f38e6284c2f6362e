"""Gates: worked numbers, the textbook's form of the clip, and gradients that stay finite."""

import math

import pytest
import torch

from gagpo.objectives.gates import (
    Controls,
    LogBounds,
    cispo_weight,
    coefficient,
    dppo_weight,
    log_bounds,
    log_coefficient,
)
from gagpo.objectives.options import Cispo, Clip, Dppo, LogClip, Sapo, Unclipped

GATES = [Clip(), Clip(low=0.2, high=0.28, dual=10.0), LogClip(), Sapo(), Unclipped()]


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize(
    ("ratio", "tau", "value", "slope"),
    [(0.5, 1.0, 1.510163, 0.940015), (1.2, 1.0, 2.199336, 0.990066), (2.0, 1.05, 2.822000, 0.768110)],
)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_sapo_has_its_worked_values_and_slopes(ratio, tau, value, slope, sign):
    gate = Sapo(positive=tau, negative=9.0) if sign > 0 else Sapo(positive=9.0, negative=tau)
    for signs in (sign, torch.tensor([sign], dtype=torch.float64)):
        r = column(ratio)
        c, clipped = coefficient(torch.log(r), signs, gate, LogBounds())
        c.sum().backward()
        assert c.item() == pytest.approx(value, abs=5e-7)
        assert r.grad.item() == pytest.approx(slope, abs=5e-7)
        assert clipped is None


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_sapo_weighs_gradients_fully_at_ratio_one(sign):
    r = column(1.0)
    c, _ = coefficient(torch.log(r), sign, Sapo(), LogBounds())
    c.sum().backward()
    assert r.grad.item() == pytest.approx(1.0)
    assert c.item() == pytest.approx(2 / (1.0 if sign > 0 else 1.05))


@pytest.mark.parametrize("gate", [Clip(), Clip(low=0.2, high=0.28), Clip(low=1.0, high=3.0), Clip(dual=3.0)])
@pytest.mark.parametrize("advantage", [2.0, -0.5, 0.0])
def test_clip_is_the_minimum_of_the_textbook(gate, advantage):
    ratio = torch.tensor([0.01, 0.5, 0.79, 0.81, 1.0, 1.19, 1.27, 1.3, 2.5, 3.5, 50.0], dtype=torch.float64)
    mine, theirs = ratio.clone().requires_grad_(), ratio.clone().requires_grad_()
    sign = torch.full_like(ratio, math.copysign(1.0, advantage) if advantage else 0.0)
    c, clipped = coefficient(torch.log(mine), sign, gate, log_bounds(gate, Controls()))
    value = c * advantage
    expected = torch.minimum(theirs * advantage, torch.clamp(theirs, 1 - gate.low, 1 + gate.high) * advantage)
    if gate.dual is not None and advantage < 0:
        expected = torch.maximum(expected, torch.full_like(expected, gate.dual * advantage))
    value.sum().backward()
    expected.sum().backward()
    assert value.detach() == pytest.approx(expected.detach())
    assert mine.grad == pytest.approx(theirs.grad)
    outside = (ratio > 1 + gate.high) if advantage > 0 else (ratio < 1 - gate.low) & (advantage < 0)
    assert clipped.tolist() == outside.tolist()


@pytest.mark.parametrize("gate", GATES, ids=lambda gate: gate.name)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_one_sign_for_all_equals_a_column_of_signs(gate, sign):
    log_ratio = torch.linspace(-3, 3, 31, dtype=torch.float64)
    bounds = log_bounds(gate, Controls())
    for function in (coefficient, log_coefficient):
        one, one_clipped = function(log_ratio, sign, gate, bounds)
        many, many_clipped = function(log_ratio, torch.full_like(log_ratio, sign), gate, bounds)
        assert one == pytest.approx(many)
        assert (one_clipped is None and many_clipped is None) or one_clipped.tolist() == many_clipped.tolist()


@pytest.mark.parametrize("gate", GATES, ids=lambda gate: gate.name)
def test_log_coefficient_is_the_logarithm(gate):
    log_ratio = torch.linspace(-3, 3, 31, dtype=torch.float64)
    sign = torch.where(torch.arange(31) % 2 == 0, 1.0, -1.0)
    bounds = log_bounds(gate, Controls())
    log_c, c = (function(log_ratio, sign, gate, bounds)[0] for function in (log_coefficient, coefficient))
    assert log_c.exp() == pytest.approx(c)


@pytest.mark.parametrize("gate", GATES, ids=lambda gate: gate.name)
def test_extreme_ratios_have_finite_values_and_gradients_in_single_precision(gate):
    log_ratio = torch.tensor([-20.0, 20.0, -20.0, 20.0, 0.0], requires_grad=True)
    sign = torch.tensor([1.0, 1.0, -1.0, -1.0, 0.0])
    for function in (coefficient, log_coefficient):
        value, _ = function(log_ratio, sign, gate, log_bounds(gate, Controls()))
        (gradient,) = torch.autograd.grad(value.sum(), log_ratio)
        assert torch.isfinite(value).all()
        assert torch.isfinite(gradient).all()


def test_cispo_caps_its_weight_at_one_plus_high_for_both_signs_and_detaches_it():
    log_ratio = column(math.log(0.1), math.log(0.9), math.log(4.9), math.log(7.0))
    weight, clipped = cispo_weight(log_ratio, log_bounds(Cispo(high=4.0), Controls()))
    assert weight == pytest.approx([0.1, 0.9, 4.9, 5.0])
    assert not weight.requires_grad
    assert clipped.tolist() == [False, False, False, True]


@pytest.mark.parametrize(
    ("divergence", "sign", "new", "dropped"),
    [
        # mu = .5: .64 and .36 are within .15, .66 and .34 beyond it, and only the way the advantage pushes counts.
        ("tv", 1, 0.64, False),
        ("tv", 1, 0.66, True),
        ("tv", 1, 0.34, False),
        ("tv", -1, 0.66, False),
        ("tv", -1, 0.36, False),
        ("tv", -1, 0.34, True),
        # .5 log(.5/pi) + .5 log(.5/(1-pi)) = .0472 at pi = .65, .0517 at .657.
        ("kl", 1, 0.65, False),
        ("kl", 1, 0.657, True),
        ("kl", -1, 0.657, False),
        ("kl", -1, 0.35, False),
        ("kl", -1, 0.343, True),
        ("tv", 0, 0.9, False),
    ],
)
def test_dppo_drops_probabilities_that_moved_too_far_with_their_advantage(divergence, sign, new, dropped):
    logprob, old = column(math.log(new)), column(math.log(0.5)).detach()
    weight, found = dppo_weight(logprob - old, logprob, old, torch.tensor([float(sign)]), Dppo(divergence=divergence))
    assert found.tolist() == [dropped]
    assert weight.tolist() == pytest.approx([0.0 if dropped else new / 0.5]) and not weight.requires_grad


def test_dppo_lets_rare_tokens_rise_where_a_ratio_would_be_clipped():
    logprob, old = column(math.log(1e-3)), column(math.log(1e-5)).detach()
    weight, found = dppo_weight(logprob - old, logprob, old, torch.ones(1), Dppo())
    assert weight.tolist() == [20.0] and not found.any()


def test_dppo_drops_no_token_that_is_not_finite():
    for broken in (math.nan, math.inf):
        weight, _ = dppo_weight(column(math.nan), column(broken), column(-1.0), torch.ones(1), Dppo())
        assert torch.isnan(weight).all()


def test_controllers_replace_the_radii():
    bounds = log_bounds(Clip(dual=3.0), Controls(clip_high=0.4))
    assert (bounds.low, bounds.high, bounds.dual) == pytest.approx((math.log(0.8), math.log(1.4), math.log(3.0)))
    bounds = log_bounds(Clip(), Controls(clip_low=0.1))
    assert (bounds.low, bounds.high) == pytest.approx((math.log(0.9), math.log(1.2)))
    bounds = log_bounds(LogClip(), Controls(clip_high=torch.tensor([0.1, 0.2])))
    assert bounds.high == pytest.approx([0.1, 0.2])
    assert log_bounds(Sapo(), Controls()) == LogBounds()
