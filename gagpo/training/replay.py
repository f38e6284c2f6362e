"""Learning from good earlier episodes, which add rows to the batch of an iteration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from gagpo.agents.episodes import Episode
from gagpo.collecting.distributed_rollout import packed, unpacked
from gagpo.credit import Credit, Turns
from gagpo.credit.turns.grouping import group_mean
from gagpo.learning.batch import Row, build_rows
from gagpo.objectives.replay import Replay


@dataclass(frozen=True)
class LearningBatch:
    """The rows of one update.

    episodes: of the iteration, then the replayed ones.
    rows: of these episodes.
    credit: of their turns.
    stats: metrics of the replay.
    """

    episodes: Sequence[Episode]
    rows: list[Row]
    credit: Credit
    stats: dict[str, float] = field(default_factory=dict)


class ReplayBuffer:
    """Good episodes, oldest first, to be trained on again (SPEAR, arXiv 2509.22601).

    born, returns: the iteration and the return of each episode.
    baseline: mean return of the task group of each of the last episodes played, kept or not.
    """

    def __init__(self, settings: Replay):
        self.settings = settings
        self.episodes: list[Episode] = []
        self.born: list[int] = []
        self.returns: list[float] = []
        self.baseline: list[float] = []

    def extended(self, episodes: Sequence[Episode], rows: list[Row], credit: Credit, iteration: int) -> LearningBatch:
        """The batch of ``iteration`` (from 0) with replayed episodes. rows, credit: of ``episodes``."""
        coefficient = self.settings.at(iteration)
        again, above_E = self.chosen()
        if again and coefficient > 0:
            rows, credit = joined(rows, credit, again, coefficient * above_E)
            episodes = [*episodes, *again]
        stats = {"replay_coefficient": coefficient, "replayed_episodes": float(len(again))}
        return LearningBatch(episodes, rows, credit, stats)

    def remember(self, episodes: Sequence[Episode], turns: Turns, credit: Credit, iteration: int) -> None:
        """Add the good episodes of ``iteration``. turns, credit: of ``episodes``."""
        credit_E = group_mean(credit.advantage_N, turns.episode_N, turns.episodes)
        self.add(episodes, credit_E, turns.return_E, iteration)

    def add(self, episodes: Sequence[Episode], credit_E: np.ndarray, return_E: np.ndarray, iteration: int) -> None:
        """Keep the episodes whose credit is above the threshold, and the group means of all."""
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
        """The episodes to train on again, newest first, and the excess of each return over the median, float64."""
        middle = float(np.median(self.baseline)) if self.baseline else 0.0
        better = [place for place, paid in enumerate(self.returns) if paid > middle]
        places = better[::-1][: self.settings.episodes]
        return [self.episodes[place] for place in places], np.asarray([self.returns[p] - middle for p in places])

    def state(self) -> bytes:
        """The buffer as bytes, for a checkpoint."""
        return packed(self.episodes, {"born": self.born, "returns": self.returns, "baseline": self.baseline})

    def restore(self, state: bytes) -> None:
        self.episodes, about = unpacked(state)
        self.born, self.returns, self.baseline = about["born"], about["returns"], about["baseline"]
        if not len(self.episodes) == len(self.born) == len(self.returns):
            raise ValueError("episodes, ages and returns differ in number")


def joined(
    rows: list[Row], credit: Credit, episodes: Sequence[Episode], advantage_E: np.ndarray
) -> tuple[list[Row], Credit]:
    """Rows and credit with those of more ``episodes`` appended, each a task group of its own.

    advantage_E: one per added episode.
    """
    turns, groups = len(credit.tokens_N), 1 + max((row.group for row in rows), default=-1)
    numbered = [replace(episode, group=number) for number, episode in enumerate(episodes)]
    more = [
        replace(row, turn_K=row.turn_K + turns, token_K=row.token_K + credit.tokens, group=row.group + groups)
        for row in build_rows(numbered)
    ]
    tokens_N = np.asarray([len(turn.response_ids) for episode in episodes for turn in episode.turns], np.int64)
    advantage = np.repeat(advantage_E, [len(episode.turns) for episode in episodes])
    if credit.level == "token":
        advantage = np.repeat(advantage, tokens_N)
    together = replace(
        credit,
        advantage=np.concatenate([credit.advantage, advantage]),
        tokens_N=np.concatenate([credit.tokens_N, tokens_N]),
    )
    return [*rows, *more], together
