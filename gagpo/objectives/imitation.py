"""What a policy can be taught beside its credit: by the environment's expert, by a teacher, by its own best episodes."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from gagpo.base.errors import InvalidArgument
from gagpo.base.options import Options

Schedule = Literal["constant", "linear", "cosine"]

LOG_RATIO_LIMIT = 20.0
"""Log-ratios of teacher and student further off are held there."""


def half_cosine(angle: float) -> float:
    """From 1 at an angle of 0 to 0 at pi."""
    return 0.5 * (1.0 + math.cos(angle))


def fall(schedule: Schedule, done: float) -> float:
    """From 1 at ``done`` 0 to 0 at 1, along a line or half a cosine; always 1 where the schedule is constant.

    >>> fall("linear", 0.25), fall("cosine", 0.5), fall("constant", 0.9)
    (0.75, 0.5000000000000001, 1.0)
    """
    done = min(1.0, max(0.0, done))
    if schedule == "constant":
        return 1.0
    return 1.0 - done if schedule == "linear" else half_cosine(math.pi * done)


class Taught(Options):
    """coefficient: in the run's first iteration. schedule: how it falls towards 0 after the run's last one."""

    coefficient: float = Field(default=1.0, gt=0)
    schedule: Schedule = "constant"

    def at(self, iteration: int, iterations: int) -> float:
        """The coefficient in ``iteration``, counted from 0, of a run of ``iterations``."""
        return self.coefficient * fall(self.schedule, iteration / max(1, iterations))


class ExpertLoss(Taught):
    """Cross-entropy to the action of the environment's expert in the states that the policy visits: DAgger's, as a
    loss.

    ``-coefficient * mean log pi(expert's action | what the policy had read)``, the mean over the tokens of all actions
    that the expert names in a mini-batch (Ross et al. 2011, arXiv 1011.0686).
    """


class Distillation(Taught):
    """On-policy distillation: ``log pi_T(y) - log pi(y)`` of each token y that the student sampled, as its advantage.

    teacher: a model folder, a hub name, ``starter:NAME``, or ``self``: the policy as it is before the update. Another
        model must have the policy's tokenizer.
    form: ``log_ratio``, or ``bounded``: ``log(alpha rho + 1 - alpha)`` with ``rho = pi_T/pi``, which is at least
        ``log(1 - alpha)`` (arXiv 2607.04751).
    hint: what the teacher reads in addition to the student's prompt. ``expert``: the action of the environment's
        expert. ``success``: the actions of another episode of the task group that solved it. ``self`` requires a hint.
    """

    teacher: str = Field(min_length=1)
    form: Literal["log_ratio", "bounded"] = "log_ratio"
    alpha: float = Field(default=0.5, gt=0, lt=1)
    hint: Literal["none", "expert", "success"] = "none"

    @model_validator(mode="after")
    def _knows_more(self) -> Distillation:
        if self.teacher == "self" and self.hint == "none":
            raise InvalidArgument(
                "a teacher that is the policy itself has to know more: set hint=expert or hint=success"
            )
        return self


class Replay(Options):
    """Self-imitation: good episodes of earlier iterations join the batch (SPEAR, arXiv 2509.22601).

    Kept are episodes whose credit, its mean over their turns, is above ``threshold``: the newest ``size`` of them, none
    older than ``age`` iterations. The newest ``episodes`` of those whose return is above the baseline join a batch,
    with the difference times the coefficient as their advantage. The baseline is the median, over the last
    ``baseline`` episodes, of the mean return of their task group. The coefficient rises from 0 to ``coefficient``
    along half a cosine over ``rise`` iterations.
    """

    coefficient: float = Field(default=1.0, gt=0)
    rise: int = Field(default=200, ge=0)
    size: int = Field(default=2048, ge=1)
    threshold: float = 0.0
    age: int = Field(default=10, ge=1)
    baseline: int = Field(default=10240, ge=1)
    episodes: int = Field(default=64, ge=1)

    def at(self, iteration: int) -> float:
        """The coefficient in ``iteration``, counted from 0."""
        return self.coefficient * (1.0 - fall("cosine", iteration / self.rise) if self.rise else 1.0)


def distillation_advantage(teacher_K: np.ndarray, student_K: np.ndarray, settings: Distillation) -> np.ndarray:
    """The advantage of each sampled token, float64[K], from its log-probabilities under teacher and student.

    Log-ratios are held within ±20.

    >>> halved = Distillation(teacher="a", form="bounded", alpha=0.5)
    >>> distillation_advantage(np.log([0.5, 0.1]), np.log([0.5, 0.1]), halved).tolist()
    [0.0, 0.0]
    """
    log_ratio_K = np.clip(np.asarray(teacher_K, np.float64) - student_K, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    if settings.form == "log_ratio":
        return np.asarray(log_ratio_K)
    return np.asarray(np.log1p(settings.alpha * np.expm1(log_ratio_K)))
