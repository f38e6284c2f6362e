"""Options of the replay of good episodes, and how coefficients change over a run."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field

from gagpo.base.options import Options

Schedule = Literal["constant", "linear", "cosine"]


def decay(schedule: Schedule, done: float) -> float:
    """A factor from 1 at ``done`` 0 to 0 at 1, along a line or half a cosine; 1 for a constant schedule.

    >>> decay("linear", 0.25), decay("cosine", 0.5), decay("constant", 0.9)
    (0.75, 0.5000000000000001, 1.0)
    """
    done = min(1.0, max(0.0, done))
    if schedule == "constant":
        return 1.0
    return 1.0 - done if schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))


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
