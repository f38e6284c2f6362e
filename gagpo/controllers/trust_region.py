"""A bound on how far one iteration moves the policy: what goes too far is taken back in part, and the rate follows.

Adam's steps are as long for noise as for signal, and a barely trained model moves further by one than a well trained
model does. The same rate therefore teaches one model and destroys another. The divergence tells the two apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from gagpo.base.errors import InvalidArgument

SLACK = 1.5
"""A step whose divergence exceeds the target by this factor is shortened."""

GROWTH = 1.2
"""Factor by which a shortened learning rate grows again in an iteration."""

LEAST = 0.01
"""Smallest factor of the learning rate, and smallest part of a step that is kept."""

ROUNDS = 3
"""Most measurements in one iteration."""


class TrustRegion:
    """Keeps KL(policy that sampled || policy after the updates) of an iteration near ``target`` where it is larger.

    The divergence grows with the square of the step. A step beyond ``SLACK`` times the target is shortened along its
    own direction by the root of their ratio, and measured again. The learning rate of the next iterations is shortened
    by the same factor, by half at most, and grows by ``GROWTH`` an iteration while the divergence stays below the
    target. It never exceeds the rate in the settings.

    target: nats per token, above 0.
    scale: factor of the learning rate, ``LEAST`` to 1.
    kept: part of the last step that was kept, above 0 to 1.
    kl: divergence of the last step before it was shortened, nats per token; None where it was not measured.
    """

    def __init__(self, target: float):
        self.target = target
        self.scale = self.kept = 1.0
        self.kl: float | None = None

    def bound(self, seen: float | None, measure: Callable[[], float], shorten: Callable[[float], None]) -> None:
        """Shorten the step that was just made while it goes too far, and adapt the learning rate.

        seen: divergence of the tokens when they were last trained on. It costs nothing, but misses the last optimiser
            step; None after a single step. A step is only measured where this is None or near the target.
        measure: returns the divergence of the step as it is now.
        shorten: keeps a part of the step.
        """
        self.forget()
        if seen is None or not seen < self.target / 4:
            for _ in range(ROUNDS):
                part = self._part(measure())
                if part is None:
                    break
                self.kept *= part
                shorten(part)
        change = GROWTH
        if self.kl is not None and not self.kl < self.target:
            change = max(0.5, math.sqrt(self.target / self.kl)) if math.isfinite(self.kl) else 0.5
        self.scale = min(1.0, max(LEAST, self.scale * change))

    def forget(self) -> None:
        """Forget the last step; the learning rate stays."""
        self.kl, self.kept = None, 1.0

    def _part(self, kl: float) -> float | None:
        """The part to keep of a step with this divergence; None where all of it may stay."""
        if self.kl is None:
            self.kl = kl
        if kl <= SLACK * self.target:
            return None
        return max(LEAST, math.sqrt(self.target / kl)) if math.isfinite(kl) else LEAST

    def values(self) -> dict[str, float]:
        found = {"rate_scale": self.scale, "step_kept": self.kept}
        return found if self.kl is None else {**found, "step_kl": self.kl}

    def state_dict(self) -> dict[str, Any]:
        return {"scale": self.scale}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        scale = float(state["scale"])
        if not LEAST <= scale <= 1:
            raise InvalidArgument(f"the trust region's rate scale must be {LEAST} to 1 (got {scale})")
        self.scale = scale
