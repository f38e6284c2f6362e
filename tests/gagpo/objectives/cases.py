"""Objectives to test, a batch to test them on, and the objective as papers write it."""

import itertools
from collections.abc import Iterator
from typing import Any

import torch

from gagpo.objectives import ObjectiveSettings

RATIOS = [("token", "segment"), *itertools.product(("action", "sequence"), ("segment", "token"))]
GATES = ["clip", {"name": "clip", "high": 0.28, "dual": 1.5}, "log_clip", "sapo", "cispo", "dppo", "none"]
AGGREGATIONS = [
    "token_mean",
    "sequence_mean",
    "action_mean",
    {"name": "constant", "length": 7},
    "geometric",
    {"name": "geometric", "per": "action"},
    {"name": "power", "exponent": 0.6},
    {"name": "power", "exponent": 0.6, "per": "action"},
]
TURN = torch.tensor([0, 0, 0, 1, 1, 2, 3, 3, 3, 3, 4, 5, 5])
ROW = torch.tensor([0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 3, 3])


def objective(**cells: Any) -> ObjectiveSettings:
    return ObjectiveSettings.model_validate(cells)


def random_batch(seed: int = 0, spread: float = 0.4, per: torch.Tensor | None = TURN):
    generator = torch.Generator().manual_seed(seed)
    tokens = len(TURN)
    new = -2 * torch.rand(tokens, generator=generator, dtype=torch.float64)
    old = new + spread * torch.randn(tokens, generator=generator, dtype=torch.float64)
    advantage = torch.randn(tokens, generator=generator, dtype=torch.float64)
    if per is not None:
        advantage = advantage[per]
    return new.requires_grad_(), old, advantage


def one_by_one(new, old, advantage, turn, row, chosen: ObjectiveSettings) -> torch.Tensor:
    """The objective as papers write it: loops over sequences, actions and tokens, ratios not in logarithms."""
    tokens = range(len(new))
    segment = {"token": torch.arange(len(new)), "action": turn, "sequence": row}[chosen.ratio]

    def members(ids, of):
        return [k for k in tokens if ids[k] == ids[of]]

    def ratio(k):
        logs = [new[j] - old[j] for j in members(segment, k)]
        value = sum(logs) / (len(logs) if chosen.ratio_pool == "mean" else 1)
        if chosen.ratio_gradient == "token":
            return torch.exp(value.detach()) * torch.exp(new[k]) / torch.exp(new[k]).detach()
        return torch.exp(value)

    def gated(k, a):
        """Value at token k whose advantage is a."""
        r, gate = ratio(k), chosen.gate
        if gate.name == "clip":
            value = torch.minimum(r * a, torch.clamp(r, 1 - gate.low, 1 + gate.high) * a)
            return torch.maximum(value, gate.dual * a) if gate.dual and a < 0 else value
        if gate.name == "log_clip":
            symbol, log = torch.sign(a), torch.log(r)
            return a * torch.exp(symbol * torch.minimum(symbol * log, symbol * torch.clamp(log, -gate.low, gate.high)))
        if gate.name == "sapo":
            tau = gate.positive if a > 0 else gate.negative
            return a * 4 / tau * torch.sigmoid(tau * (r - 1))
        if gate.name == "cispo":
            return torch.clamp(r, max=1 + gate.high).detach() * a * new[k]
        if gate.name == "dppo":
            moved = torch.exp(new[k].detach()) - torch.exp(old[k])
            dropped = (a > 0 and moved > 0.15) or (a < 0 and moved < -0.15)
            return torch.clamp(r, max=20.0).detach() * a * new[k] * (not dropped)
        return r * a

    def mean_of(ids, inner):
        groups = [[k for k in tokens if ids[k] == g] for g in sorted(set(ids.tolist()))]
        return sum(inner(group) for group in groups) / len(groups)

    aggregation = chosen.aggregation
    if aggregation.name == "token_mean":
        return -sum(gated(k, advantage[k]) for k in tokens) / len(new)
    if aggregation.name == "constant":
        return -sum(gated(k, advantage[k]) for k in tokens) / (len(set(row.tolist())) * aggregation.length)
    if aggregation.name in ("sequence_mean", "action_mean"):
        ids = row if aggregation.name == "sequence_mean" else turn
        return -mean_of(ids, lambda group: sum(gated(k, advantage[k]) for k in group) / len(group))

    def special_mean(group):
        a = sum(advantage[k] for k in group) / len(group)
        coefficients = [gated(k, a) / a for k in group]
        if aggregation.name == "geometric":
            return a * torch.prod(torch.stack(coefficients)) ** (1 / len(group))
        p = aggregation.exponent
        return a * (sum(c**p for c in coefficients) / len(group)) ** (1 / p)

    return -mean_of(row if aggregation.per == "sequence" else turn, special_mean)


def legal(gate: Any) -> list[Any]:
    """The aggregations that go with a gate: CISPO's and DPPO's values are negative: no such mean of them exists."""
    return [
        cell
        for cell in AGGREGATIONS
        if gate not in ("cispo", "dppo") or ("geometric" not in str(cell) and "power" not in str(cell))
    ]


def every_objective(gate: Any, **more: Any) -> Iterator[ObjectiveSettings]:
    for (level, gradient), aggregation in itertools.product(RATIOS, legal(gate)):
        yield objective(ratio=level, ratio_gradient=gradient, gate=gate, aggregation=aggregation, **more)


CHOICES = [
    objective(gate="clip", aggregation="token_mean"),
    objective(ratio="action", gate="clip", aggregation="action_mean"),
    objective(ratio="sequence", gate="sapo", aggregation="sequence_mean"),
    objective(ratio="sequence", ratio_gradient="token", aggregation={"name": "constant", "length": 9}),
    objective(gate="cispo", aggregation="sequence_mean"),
    objective(gate="dppo", aggregation="action_mean"),
    objective(gate="log_clip", aggregation="geometric"),
    objective(gate="clip", aggregation={"name": "power", "exponent": 0.5, "per": "action"}),
]
