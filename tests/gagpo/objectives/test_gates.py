"""Gates: worked numbers, and one sign for all."""

import pytest
import torch

from gagpo.objectives.gates import (
    Controls,
    LogBounds,
    coefficient,
    log_bounds,
)
from gagpo.objectives.options import Clip, LogClip, Sapo, Unclipped

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
    for symbols in (sign, torch.tensor([sign], dtype=torch.float64)):
        r = column(ratio)
        c, clipped = coefficient(torch.log(r), symbols, gate, LogBounds())
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


@pytest.mark.parametrize("gate", GATES, ids=lambda gate: gate.name)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_one_sign_for_all_equals_a_column_of_signs(gate, sign):
    log_ratio = torch.linspace(-3, 3, 31, dtype=torch.float64)
    bounds = log_bounds(gate, Controls())
    item, one_clipped = coefficient(log_ratio, sign, gate, bounds)
    many, many_clipped = coefficient(log_ratio, torch.full_like(log_ratio, sign), gate, bounds)
    assert item == pytest.approx(many)
    assert (one_clipped is None and many_clipped is None) or one_clipped.tolist() == many_clipped.tolist()
