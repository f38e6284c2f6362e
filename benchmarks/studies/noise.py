"""Maths problems with wrong verdicts for one answer in ten, to see what noise does to a controller.

``environment.id=benchmarks.studies.noise:NoisyMath-v0`` pays by the wrong verdict; with ``NoisyStatistics-v0`` the
reward is right and only the reported success is wrong, from which AGPO takes the dispersion of a probe. Whether a
verdict is wrong is drawn from the problem and the response, as a verifier errs, so that a run repeats. It is not drawn
from the episode's generator: the episodes of a group share its seed, and all would be wrong together. Evaluations of a
study use neither environment.
"""

from __future__ import annotations

import dataclasses
import random

import gymnasium

from gagpo.envs.base import Outcome
from gagpo.envs.math.env import MathEnv

WRONG = 0.1
"""Fraction of verdicts that are flipped."""


class NoisyStatisticsEnv(MathEnv):
    """``gagpo/Math-v0`` in one turn, with wrong successes in training. Held-out splits have the right ones."""

    def act(self, action: str) -> Outcome:
        outcome = super().act(action)
        if self.task is None or self.task.split != "train" or not outcome.terminated:
            return outcome
        if random.Random(f"{self.task.id} {action}").random() >= WRONG:
            return outcome
        return dataclasses.replace(outcome, success=not outcome.success)


class NoisyMathEnv(NoisyStatisticsEnv):
    """The same with the reward of the wrong success."""

    def act(self, action: str) -> Outcome:
        outcome = super().act(action)
        return dataclasses.replace(outcome, reward=float(outcome.success)) if outcome.terminated else outcome


gymnasium.register("NoisyStatistics-v0", "benchmarks.studies.noise:NoisyStatisticsEnv")
gymnasium.register("NoisyMath-v0", "benchmarks.studies.noise:NoisyMathEnv")
