"""Gates: what the objective does with ``ratio * advantage``.

The value of a gate is ``A * c``, with a coefficient ``c`` that depends on the ratio and the sign of A alone. PPO's
``min(r A, clip(r) A)`` is ``A min(r, 1+high)`` for A > 0 and ``A max(r, 1-low)`` for A < 0. Except for the gates in
``WEIGHED``, coefficients are positive, so geometric and power means of them exist, and are computed as logarithms,
which keeps values and gradients finite.

``sign`` is the sign of the advantage, a tensor like the log-ratio or a number. ``a`` for A > 0 and ``b`` for A < 0 is
computed as ``(a+b)/2 + sign (a-b)/2``, which is much faster than ``torch.where``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from gagpo.objectives.options import Cispo, Clip, Dppo, Likelihood, LogClip, Sapo, Unclipped

AnyGate = Clip | LogClip | Sapo | Cispo | Dppo | Likelihood | Unclipped
WEIGHED = Cispo | Dppo | Likelihood
"""Gates with the value ``weight * log-probability`` and a detached weight."""

Radius = float | Tensor

UNBOUNDED = 40.0
"""Stands for infinity, for which the sum above is undefined; log-ratios are within ±20."""

RATIO_CAP = 20.0
"""Cap of DPPO's detached ratio, as published."""

PROBABILITY_EPSILON = 1e-8
"""Added to probabilities before a logarithm, as in the authors' code of DPPO."""


@dataclass(frozen=True)
class Controls:
    """What controllers set for one update; None keeps the setting.

    Each is a number, or a tensor with one entry per token (equal within a segment) where task groups differ.

    clip_low, clip_high: radii of the gate's clip.
    exponent: of the power mean.
    """

    clip_low: Radius | None = None
    clip_high: Radius | None = None
    exponent: Radius | None = None


@dataclass(frozen=True)
class LogBounds:
    """Bounds of the log-ratio: at most ``high`` for A > 0, at least ``low`` and at most ``dual`` for A < 0."""

    low: Radius = -UNBOUNDED
    high: Radius = UNBOUNDED
    dual: float = UNBOUNDED

    @property
    def any(self) -> bool:
        numbers = (-1.0 if isinstance(bound, Tensor) else bound for bound in (self.low, self.high, self.dual))
        return any(abs(number) < UNBOUNDED for number in numbers)


def log_bounds(gate: AnyGate, controls: Controls) -> LogBounds:
    """The gate's bounds, with the controllers' radii."""
    if isinstance(gate, Sapo | Dppo | Likelihood | Unclipped):
        return LogBounds()
    low: Radius | None = None if isinstance(gate, Cispo) else gate.low
    low = low if controls.clip_low is None else controls.clip_low
    high = gate.high if controls.clip_high is None else controls.clip_high
    if isinstance(gate, LogClip):
        return LogBounds(-low, high)  # type: ignore[operator]
    dual = math.log(gate.dual) if isinstance(gate, Clip) and gate.dual else UNBOUNDED
    return LogBounds(-UNBOUNDED if low is None else _log1p(-low), _log1p(high), dual)


def bounded(log_ratio: Tensor, sign: Tensor | float, bounds: LogBounds) -> tuple[Tensor, Tensor | None]:
    """The log-ratio within the bounds for its sign, without gradient beyond them, and where it was clipped.

    The dual bound, of large ratios with A < 0, does not count as clipped.
    """
    if not bounds.any:
        return log_ratio, None
    if not isinstance(sign, Tensor):
        if sign > 0:
            return torch.clamp(log_ratio, max=bounds.high), log_ratio.detach() > bounds.high
        return torch.clamp(torch.clamp(log_ratio, max=bounds.dual), min=bounds.low), log_ratio.detach() < bounds.low
    # Mirrored where A < 0, each bound is an upper bound.
    toward = sign * log_ratio
    limit = _by_sign(sign, bounds.high, -bounds.low)
    clipped = torch.clamp(toward, max=limit)
    if bounds.dual < UNBOUNDED:
        clipped = torch.clamp(clipped, min=_by_sign(sign, -UNBOUNDED, -bounds.dual))
    return sign * clipped, toward.detach() > limit


def log_coefficient(
    log_ratio: Tensor, sign: Tensor | float, gate: AnyGate, bounds: LogBounds
) -> tuple[Tensor, Tensor | None]:
    """``log c`` of each ratio, and where it was clipped; undefined for ``WEIGHED`` gates."""
    if isinstance(gate, Sapo):
        tau = _by_sign(sign, gate.positive, gate.negative)
        log_scale = math.log(4.0 / tau) if isinstance(tau, float) else torch.log(4.0 / tau)
        return logsigmoid(tau * torch.expm1(log_ratio)) + log_scale, None
    return bounded(log_ratio, sign, bounds)


def coefficient(
    log_ratio: Tensor, sign: Tensor | float, gate: AnyGate, bounds: LogBounds
) -> tuple[Tensor, Tensor | None]:
    """``c`` of each ratio, and where it was clipped; see :func:`log_coefficient`."""
    log_c, clipped = log_coefficient(log_ratio, sign, gate, bounds)
    return torch.exp(log_c), clipped


def cispo_weight(log_ratio: Tensor, bounds: LogBounds) -> tuple[Tensor, Tensor]:
    """CISPO's detached weight, with the same bounds for both signs, and where it was clipped."""
    log_ratio = log_ratio.detach()
    clipped = torch.clamp(torch.clamp(log_ratio, max=bounds.high), min=bounds.low)
    return torch.exp(clipped), clipped != log_ratio


@torch.no_grad()
def dppo_weight(
    log_ratio: Tensor, logprob: Tensor, old_logprob: Tensor, sign: Tensor, gate: Dppo
) -> tuple[Tensor, Tensor]:
    """DPPO's detached weight, 0 where the token is dropped, and where that is. Probabilities are the token's own."""
    probability = torch.exp(logprob)
    old_probability = torch.exp(old_logprob)
    toward = sign * (probability - old_probability)
    moved = toward
    if gate.divergence == "kl":
        # Rounded log-probabilities may be above 0.
        complement = torch.clamp(1 - probability, min=0.0) + PROBABILITY_EPSILON
        old_complement = torch.clamp(1 - old_probability, min=0.0) + PROBABILITY_EPSILON
        moved = old_probability * (old_logprob - logprob)
        moved = moved + (1 - old_probability) * torch.log(old_complement / complement)
    dropped = (toward > 0) & (moved > gate.radius)
    # NaN * False is NaN: values that are not finite are not dropped.
    return torch.clamp(torch.exp(log_ratio), max=RATIO_CAP) * ~dropped, dropped


def _by_sign(sign: Tensor | float, positive: Radius, negative: Radius) -> Radius:
    return sign * (0.5 * (positive - negative)) + 0.5 * (positive + negative)


def _log1p(radius: Radius) -> Radius:
    if isinstance(radius, Tensor):
        return torch.log1p(radius).clamp(min=-UNBOUNDED)
    return math.log1p(radius) if radius > -1 else -UNBOUNDED
