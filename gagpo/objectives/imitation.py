"""Losses next to the credit: the environment's expert, on-policy distillation and replay of good episodes."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from gagpo.base.errors import InvalidArgument
from gagpo.base.options import Options

Schedule = Literal["constant", "linear", "cosine"]

LOG_RATIO_LIMIT = 20.0
"""Bound of log-ratios of teacher and student."""


def decay(schedule: Schedule, done: float) -> float:
    """A factor from 1 at ``done`` 0 to 0 at 1, along a line or half a cosine; 1 for a constant schedule.

    >>> decay("linear", 0.25), decay("cosine", 0.5), decay("constant", 0.9)
    (0.75, 0.5000000000000001, 1.0)
    """
    done = min(1.0, max(0.0, done))
    if schedule == "constant":
        return 1.0
    return 1.0 - done if schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))


class Taught(Options):
    """coefficient: in the first iteration. schedule: its decay to 0 after the last one."""

    coefficient: float = Field(default=1.0, gt=0)
    schedule: Schedule = "constant"

    def at(self, iteration: int, iterations: int) -> float:
        """The coefficient in ``iteration``, from 0, of ``iterations``."""
        return self.coefficient * decay(self.schedule, iteration / max(1, iterations))


class ExpertLoss(Taught):
    """DAgger as a loss: cross-entropy to the expert's actions in the states that the policy visits (arXiv 1011.0686).

    ``-coefficient * mean log pi(expert's action | the policy's prompt)``, over the tokens of a mini-batch's actions.
    """


class Distillation(Taught):
    """On-policy distillation: ``log pi_T(y) - log pi(y)`` of each token y that the student sampled, as its advantage.

    teacher: a model folder, a hub name or ``starter:NAME`` with the policy's tokenizer, or ``self``, the policy before
        the update.
    form: ``log_ratio``, or ``bounded``: ``log(alpha rho + 1 - alpha)`` with ``rho = pi_T/pi`` (arXiv 2607.04751).
    hint: what the teacher reads next to the student's prompt: the action of the environment's ``expert``, or the
        actions of a ``success`` in the same task group. ``self`` requires a hint.
    """

    teacher: str = Field(min_length=1)
    form: Literal["log_ratio", "bounded"] = "log_ratio"
    alpha: float = Field(default=0.5, gt=0, lt=1)
    hint: Literal["none", "expert", "success"] = "none"

    @model_validator(mode="after")
    def _knows_more(self) -> Distillation:
        if self.teacher == "self" and self.hint == "none":
            raise InvalidArgument("teacher=self requires a hint: set hint=expert or hint=success")
        return self


class Replay(Options):
    """Self-imitation: good episodes of earlier iterations join the batch (SPEAR, arXiv 2509.22601).

    The buffer keeps the newest ``size`` episodes whose mean advantage is above ``threshold``, for ``age`` iterations.
    The newest ``episodes`` whose return is above the baseline join a batch, with the difference times the coefficient
    as their advantage. The baseline is the median, over the last ``baseline`` episodes, of their task group's mean
    return. The coefficient rises from 0 to ``coefficient`` along half a cosine over ``rise`` iterations.
    """

    coefficient: float = Field(default=1.0, gt=0)
    rise: int = Field(default=200, ge=0)
    size: int = Field(default=2048, ge=1)
    threshold: float = 0.0
    age: int = Field(default=10, ge=1)
    baseline: int = Field(default=10240, ge=1)
    episodes: int = Field(default=64, ge=1)

    def at(self, iteration: int) -> float:
        """The coefficient in ``iteration``, from 0."""
        return self.coefficient * (1.0 - decay("cosine", iteration / self.rise) if self.rise else 1.0)


def distillation_advantage(teacher_K: np.ndarray, student_K: np.ndarray, settings: Distillation) -> np.ndarray:
    """Advantage of each sampled token, float64[K], from its log-probabilities under teacher and student.

    >>> halved = Distillation(teacher="a", form="bounded", alpha=0.5)
    >>> distillation_advantage(np.log([0.5, 0.1]), np.log([0.5, 0.1]), halved).tolist()
    [0.0, 0.0]
    """
    log_ratio_K = np.clip(np.asarray(teacher_K, np.float64) - student_K, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    if settings.form == "log_ratio":
        return np.asarray(log_ratio_K)
    return np.asarray(np.log1p(settings.alpha * np.expm1(log_ratio_K)))
