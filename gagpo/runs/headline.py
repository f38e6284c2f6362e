"""Which numbers come first: the success rate, or the mean reward where rewards are more than a success in numbers."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gagpo.runs.register import environments_of, of_environment

SUCCESS_RATE = "success_rate"
REWARD_MEAN = "reward_mean"

Headline = tuple[str, ...]
"""The metrics of a run or a result that are shown first: the mean reward, the success rate, or both in this order."""


@dataclass(frozen=True)
class Outcomes:
    """What occurred in some episodes, which decides their headline.

    graded: a reward that is neither 0 nor 1.
    rewarded: a reward that is not 0.
    succeeded: an episode that succeeded.
    assumed: an episode whose success is assumed (:data:`gagpo.data.SUCCESS_ASSUMED`).
    """

    graded: bool = False
    rewarded: bool = False
    succeeded: bool = False
    assumed: bool = False

    @classmethod
    def of(cls, episodes: Sequence[tuple[float, bool, bool]]) -> Outcomes:
        """episodes: reward, success, and whether the success is assumed."""
        rewards, successes, assumed = zip(*episodes, strict=True) if episodes else ((), (), ())
        return cls(any(map(is_graded, rewards)), any(rewards), any(successes), any(assumed))

    def __or__(self, other: Outcomes) -> Outcomes:
        return Outcomes(
            self.graded or other.graded,
            self.rewarded or other.rewarded,
            self.succeeded or other.succeeded,
            self.assumed or other.assumed,
        )

    @property
    def headline(self) -> Headline:
        """The mean reward comes first if a reward is graded.

        Also where episodes are rewarded and none succeeds: an environment that never reports success would look as if
        nothing was learnt. Success is shown next to it once an episode succeeded.
        """
        if not self.graded and (self.succeeded or not self.rewarded):
            return (SUCCESS_RATE,)
        return (REWARD_MEAN, SUCCESS_RATE) if self.succeeded and not self.assumed else (REWARD_MEAN,)


def is_graded(reward: float) -> bool:
    """Whether a reward is another number than 0 and 1."""
    return reward not in (0.0, 1.0)


def outcomes_of_rows(rows: Sequence[Mapping[str, float]], env: str = "") -> Outcomes:
    """What occurred in the iterations so far.

    rows: metrics of iterations.
    env: one of several environments; by default all of them.
    """
    names = (SUCCESS_RATE, REWARD_MEAN, "graded_rewards")
    success, reward, graded = (of_environment(name, env) if env else name for name in names)
    measured = [row for row in rows if success in row or reward in row]
    return Outcomes(
        graded=any(float(row.get(graded, 0.0)) > 0 for row in measured),
        rewarded=any(float(row.get(reward, 0.0)) != 0 for row in measured),
        succeeded=any(float(row.get(success, 0.0)) > 0 for row in measured),
        assumed=any(success not in row for row in measured),
    )


def joint(outcomes: Iterable[Outcomes]) -> Outcomes:
    """What occurred in any of them."""
    return functools.reduce(operator.or_, outcomes, Outcomes())


def headline_of_rows(rows: Sequence[Mapping[str, float]], env: str = "") -> Headline:
    """The headline of the iterations so far; arguments as for :func:`outcomes_of_rows`."""
    return outcomes_of_rows(rows, env).headline


def headlines(rows: Sequence[Mapping[str, float]]) -> dict[str, Headline]:
    """The headline of the run (``""``) and of each of its environments, if it has several."""
    envs = environments_of(rows[-1]) if rows else []
    return {env: headline_of_rows(rows, env) for env in ("", *envs)}
