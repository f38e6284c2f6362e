"""A bound on how far one iteration moves the policy: steps that go too far are shortened, and the rate with them.

A rate that suits one model can destroy another, since Adam's steps are as long for noise as for signal. The divergence
of the policy shows the difference.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from gagpo.base.errors import InvalidArgument

SLACK = 1.5
"""Steps whose divergence exceeds the target by this factor are shortened."""

GROWTH = 1.2
"""Growth of a reduced learning rate per iteration."""

LEAST = 0.01
"""Smallest learning rate factor, and smallest part of a step to keep."""

ROUNDS = 3
"""Most measurements per iteration."""

UNSEEN = 16.0
"""How many times the divergence after the last step may exceed the free estimate before it.

The divergence grows with the square of the steps taken. After two equal steps it is 8 times the mean of what the two
read, 0 and a quarter of it; after more steps it is less. The rest is room for steps that grow.
"""


class TrustRegion:
    """Limits KL(policy that sampled || policy after the updates) of an iteration to about ``target``.

    The divergence grows with the square of the step, so a step beyond ``SLACK`` times the target is shortened by the
    square root of their ratio and measured again. The learning rate of the next iterations shrinks by the same factor,
    by half at most, and grows again by ``GROWTH`` per iteration while the divergence is below the target.

    target: nats per token, above 0.
    scale: factor of the learning rate, ``LEAST`` to 1.
    step_fraction: fraction of the last step that remains, above 0 to 1.
    kl: divergence of the last step before it was shortened, nats per token; None if not measured.
    """

    def __init__(self, target: float):
        self.target = target
        self.scale = 1.0
        self.step_fraction = 1.0
        self.kl: float | None = None

    def bound(self, last_kl: float | None, measure: Callable[[], float], shorten: Callable[[float], None]) -> None:
        """Shorten the last step while it goes too far, and adapt the learning rate.

        last_kl: divergence of the tokens when they were last trained on, which is free but misses the last optimiser
            step; None after a single step. The step is measured only if this is None, or if ``UNSEEN`` times this
            reaches the target.
        measure: returns the current divergence of the step.
        shorten: keeps the given part of the step.
        """
        self.forget()
        if last_kl is None or not UNSEEN * last_kl < self.target:
            for _ in range(ROUNDS):
                own_state = self._part(measure())
                if own_state is None:
                    break
                self.step_fraction *= own_state
                shorten(own_state)
        change = GROWTH
        if self.kl is not None and not self.kl < self.target:
            # A divergence that is not finite halves the rate, as the largest finite ones do.
            change = max(0.5, math.sqrt(self.target / self.kl)) if math.isfinite(self.kl) else 0.5
        self.scale = min(1.0, max(LEAST, self.scale * change))

    def forget(self) -> None:
        """Forget the last step; the learning rate stays."""
        self.kl = None
        self.step_fraction = 1.0

    def _part(self, kl: float) -> float | None:
        """The part to keep of a step with this divergence; None for all of it."""
        if self.kl is None:
            self.kl = kl
        if kl <= SLACK * self.target:
            return None
        return max(LEAST, math.sqrt(self.target / kl)) if math.isfinite(kl) else LEAST

    def values(self) -> dict[str, float]:
        metrics = {"lr_scale": self.scale, "target_kl_scale": self.step_fraction}
        if self.kl is not None:
            metrics["step_kl"] = self.kl
        return metrics

    def state_dict(self) -> dict[str, Any]:
        return {"scale": self.scale}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        scale = float(state["scale"])
        if not LEAST <= scale <= 1:
            raise InvalidArgument(f"the trust region's rate scale must be {LEAST} to 1 (got {scale})")
        self.scale = scale
