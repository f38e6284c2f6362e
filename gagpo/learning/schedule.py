"""How learning rates rise, stay and fall: over the iterations of a run, and over the steps of a warm start."""

from __future__ import annotations

import math

from gagpo.settings import OptimizerSettings, WarmStartSettings


def rate_scale(settings: OptimizerSettings, iteration: int, iterations: int) -> float:
    """Share of the highest rate in ``iteration`` (counted from 0) of ``iterations``.

    It rises over the warm-up; a linear or cosine schedule then falls from 1 towards 0 after the last one.
    """
    if iteration < settings.warmup or settings.schedule == "constant":
        return _risen(iteration, settings.warmup)
    done = min(1.0, (iteration - settings.warmup) / max(1, iterations - settings.warmup))
    return 1.0 - done if settings.schedule == "linear" else _half_cosine(math.pi * done)


def warm_start_rate(settings: WarmStartSettings, step: int) -> float:
    """The learning rate of a step, counted from 0.

    It rises over the first twentieth of the steps and falls to zero along a cosine. With ``decay`` it rises over the
    first hundred steps at most, stays, and falls linearly over that share of the steps; then ``steps`` can still be
    raised on the way, as nothing before the fall depends on it.
    """
    steps, rise = settings.steps, max(1, settings.steps // 20)
    if settings.decay is None:
        return settings.learning_rate * _risen(step, rise) * _half_cosine(math.pi * step / steps)
    left = (steps - step) / max(1.0, settings.decay * steps)
    return settings.learning_rate * min(_risen(step, min(100, rise)), left)


def _risen(step: int, steps: int) -> float:
    """Share of the highest rate, reached with the last of ``steps``."""
    return min(1.0, (step + 1) / steps) if steps else 1.0


def _half_cosine(angle: float) -> float:
    """From 1 at an angle of 0 to 0 at pi."""
    return 0.5 * (1.0 + math.cos(angle))
