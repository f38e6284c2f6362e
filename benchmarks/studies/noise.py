"""Maths problems whose verdict is wrong for one answer in ten, to see what noisy statistics do to a controller.

``environment.id=benchmarks.studies.noise:NoisyMath-v0``. A verdict is flipped by a draw from the episode's own
generator, so that a run repeats. Evaluations of a study do not use it.
"""

from __future__ import annotations

import dataclasses

import gymnasium

from gagpo.envs.base import Outcome
from gagpo.envs.math.env import MathEnv

WRONG = 0.1
"""Fraction of verdicts that are flipped."""


class NoisyMathEnv(MathEnv):
    """``gagpo/Math-v0`` in one turn, with wrong verdicts in training. Held-out splits have the right ones."""

    def act(self, action: str) -> Outcome:
        outcome = super().act(action)
        in_training = self.task is not None and self.task.split == "train"
        if not in_training or not outcome.terminated or self.np_random.random() >= WRONG:
            return outcome
        return dataclasses.replace(outcome, success=not outcome.success, reward=1.0 - outcome.reward)


gymnasium.register("NoisyMath-v0", "benchmarks.studies.noise:NoisyMathEnv")
