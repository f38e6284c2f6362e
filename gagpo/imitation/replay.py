"""Good episodes of earlier iterations, to be trained on again (SPEAR, arXiv 2509.22601)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gagpo.agents.episodes import Episode
from gagpo.collecting.distributed_rollout import packed, unpacked
from gagpo.credit.turns.grouping import group_mean
from gagpo.objectives.imitation import Replay


class ReplayBuffer:
    """Good episodes, oldest first, and the baseline that their returns are compared with.

    episodes: what is kept.
    born: the iteration of each episode.
    returns: the return of each episode.
    baseline: mean return of the task group of each of the last episodes played, kept or not.
    """

    def __init__(self, settings: Replay):
        self.settings = settings
        self.episodes: list[Episode] = []
        self.born: list[int] = []
        self.returns: list[float] = []
        self.baseline: list[float] = []

    def add(self, episodes: Sequence[Episode], credit_E: np.ndarray, return_E: np.ndarray, iteration: int) -> None:
        """Keep the episodes of an iteration whose credit is above the threshold, and the group means of all."""
        settings = self.settings
        for episode, credit, paid in zip(episodes, credit_E.tolist(), return_E.tolist(), strict=True):
            if credit > settings.threshold:
                self.episodes.append(episode)
                self.born.append(iteration)
                self.returns.append(paid)
        _, group_E = np.unique([episode.group for episode in episodes], return_inverse=True)
        mean_E = group_mean(return_E, group_E, len(episodes))[group_E]
        self.baseline = [*self.baseline, *mean_E.tolist()][-settings.baseline :]
        young = sum(iteration - born < settings.age for born in self.born)
        first = len(self.episodes) - min(young, settings.size)
        self.episodes, self.born, self.returns = self.episodes[first:], self.born[first:], self.returns[first:]

    def chosen(self) -> tuple[list[Episode], np.ndarray]:
        """The episodes to train on again, newest first, and by how much each return exceeds the median, float64."""
        middle = float(np.median(self.baseline)) if self.baseline else 0.0
        better = [place for place, paid in enumerate(self.returns) if paid > middle]
        places = better[::-1][: self.settings.episodes]
        return [self.episodes[place] for place in places], np.asarray([self.returns[p] - middle for p in places])

    def state(self) -> bytes:
        """The buffer as bytes, for a checkpoint."""
        return packed(self.episodes, {"born": self.born, "returns": self.returns, "baseline": self.baseline})

    def restore(self, state: bytes) -> None:
        """Restore a :meth:`state`; ValueError or KeyError for other bytes."""
        self.episodes, about = unpacked(state)
        self.born, self.returns, self.baseline = about["born"], about["returns"], about["baseline"]
        if not len(self.episodes) == len(self.born) == len(self.returns):
            raise ValueError("episodes, ages and returns differ in number")
