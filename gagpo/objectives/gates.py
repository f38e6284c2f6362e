"""Gates: what the objective makes of ``ratio * advantage``.

Every gate is positively homogeneous in the advantage: its value is ``A * c`` with a coefficient ``c`` that depends on
the ratio and on the sign of A alone. PPO's ``min(r A, clip(r) A)`` is ``A min(r, 1+high)`` for A > 0 and
``A max(r, 1-low)`` for A < 0. The coefficients of all gates but CISPO's are positive, so that their means of any kind
are defined; they are given as logarithms of the ratio bounded, which keeps values and gradients finite.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from gagpo.objectives.settings import Cispo, Clip, LogClip, Sapo, Unclipped

AnyGate = Clip | LogClip | Sapo | Cispo | Unclipped
Radius = float | Tensor


@dataclass(frozen=True)
class Controls:
    """What controllers set for one update; None leaves the setting as it is.

    clip_low, clip_high: radii of the gate's clip. exponent: of the power mean. Each is a number, or a tensor of the
    token axis (equal within a segment) where task groups have their own.
    """

    clip_low: Radius | None = None
    clip_high: Radius | None = None
    exponent: Radius | None = None


@dataclass(frozen=True)
class LogBounds:
    """Bounds of the log-ratio: at most ``high`` (A > 0), at least ``low`` and at most ``dual`` (A < 0)."""

    low: Radius = -math.inf
    high: Radius = math.inf
    dual: float = math.inf


def log_bounds(gate: AnyGate, controls: Controls) -> LogBounds:
    """The gate's bounds with the controllers' radii put in; gates without bounds have none."""
    if isinstance(gate, Sapo | Unclipped):
        return LogBounds()
    low = gate.low if controls.clip_low is None else controls.clip_low
    high = gate.high if controls.clip_high is None else controls.clip_high
    if isinstance(gate, LogClip):
        return LogBounds(-low, high)  # type: ignore[operator]
    dual = math.log(gate.dual) if isinstance(gate, Clip) and gate.dual else math.inf
    return LogBounds(-math.inf if low is None else _log1p(-low), _log1p(high), dual)


def bounded(log_ratio: Tensor, positive: Tensor, bounds: LogBounds) -> Tensor:
    """The log-ratio within the bounds that hold for the sign of its advantage; outside them it has no gradient."""
    if _infinite(bounds.low) and _infinite(bounds.high) and _infinite(bounds.dual):
        return log_ratio
    infinity = log_ratio.new_tensor(math.inf)
    low = torch.where(positive, -infinity, _like(bounds.low, log_ratio))
    high = torch.where(positive, _like(bounds.high, log_ratio), _like(bounds.dual, log_ratio))
    return torch.clamp(log_ratio, low, high)


def log_coefficient(log_ratio: Tensor, positive: Tensor, gate: AnyGate, bounds: LogBounds) -> Tensor:
    """``log c`` of each ratio; ``positive`` says where the advantage is. Not defined for CISPO."""
    if isinstance(gate, Sapo):
        tau = torch.where(positive, log_ratio.new_tensor(gate.positive), log_ratio.new_tensor(gate.negative))
        return torch.log(4.0 / tau) + logsigmoid(tau * torch.expm1(log_ratio))
    return bounded(log_ratio, positive, bounds)


def coefficient(log_ratio: Tensor, positive: Tensor, gate: AnyGate, bounds: LogBounds) -> Tensor:
    """``c`` of each ratio; see :func:`log_coefficient`."""
    if isinstance(gate, Sapo):
        tau = torch.where(positive, log_ratio.new_tensor(gate.positive), log_ratio.new_tensor(gate.negative))
        return torch.sigmoid(tau * torch.expm1(log_ratio)) * (4.0 / tau)
    return torch.exp(bounded(log_ratio, positive, bounds))


def cispo_weight(log_ratio: Tensor, bounds: LogBounds) -> Tensor:
    """CISPO's detached weight, bounded alike for both signs."""
    return torch.exp(torch.clamp(log_ratio.detach(), _like(bounds.low, log_ratio), _like(bounds.high, log_ratio)))


def _log1p(radius: Radius) -> Radius:
    if isinstance(radius, Tensor):
        return torch.log1p(radius)
    return math.log1p(radius) if radius > -1 else -math.inf


def _infinite(bound: Radius) -> bool:
    return not isinstance(bound, Tensor) and math.isinf(bound)


def _like(bound: Radius, other: Tensor) -> Tensor:
    return bound if isinstance(bound, Tensor) else other.new_tensor(bound)
