"""What every collector does, and the batch that it builds from complete groups.

Groups and not episodes are collected: credit compares episodes of one task, and a part of a group would be compared
with less. On-policy runs and ``rollout.ahead`` build their batches by the same code.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch

from gagpo.agents.agent import Agent
from gagpo.agents.engines.base import Engine
from gagpo.agents.rollout import Clock
from gagpo.collecting.buffer import GroupBuffer
from gagpo.controllers import Controllers
from gagpo.credit import Turns, turns_for
from gagpo.data import Episode
from gagpo.envs.pool import Pool
from gagpo.settings import RunSettings

OnEpisode = Callable[[Episode], None]
"""Called with each episode of a batch, to show progress."""


def ignore(episode: Episode) -> None:
    """Show nothing."""


@dataclass
class Collection:
    """The episodes of an iteration.

    episodes: to train on, group after group, without failed and empty ones.
    sampled_episodes: all except probes.
    probe_episodes: sampled for a controller's statistics only.
    stale_episodes: dropped because their weights were too old.
    rounds: of dynamic sampling.
    clock: time spent.
    stats: further metrics.
    """

    episodes: list[Episode] = field(default_factory=list)
    sampled_episodes: list[Episode] = field(default_factory=list)
    probe_episodes: list[Episode] = field(default_factory=list)
    stale_episodes: list[Episode] = field(default_factory=list)
    rounds: int = 0
    clock: Clock = field(default_factory=Clock)
    stats: dict[str, float] = field(default_factory=dict)


class Collector(Protocol):
    """Samples the episodes of each iteration: between updates (on-policy) or during them (``rollout.ahead``).

    buffer: its open groups; their places are part of a checkpoint.
    """

    buffer: GroupBuffer

    def collect(self, agent: Agent, pool: Pool, iteration: int, on_episode: OnEpisode = ignore) -> Collection:
        """``rollout.tasks`` groups of episodes, after ``iteration`` updates.

        on_episode: called with each of them, at its end or when its group is taken; not with probes.

        Dynamic sampling replaces groups without contrast by groups of further tasks, until the batch is full or the
        rounds are used up; if no group has contrast, the last round is the batch.
        """

    def updating(self, engine: Engine, model: torch.nn.Module, iteration: int) -> AbstractContextManager[None]:
        """A context in which ``model`` is updated for the ``iteration``-th time; the engine gets the new weights."""

    def paused(self) -> AbstractContextManager[None]:
        """A context in which the caller can use pool and engine, which has the newest weights."""

    def close(self) -> None:
        """End sampling in the background, if any."""

    def sampled(self, seconds: float | None) -> bytes | None:
        """Episodes for a checkpoint, whose weights are gone; None without any.

        seconds: longest wait for unfinished episodes; None to wait for all.
        """

    def load_sampled(self, data: bytes) -> None:
        """Restore what :meth:`sampled` returned, after the buffer's state."""


class BatchBuilder:
    """The consumer of complete groups: selects those to train on, until the batch of one iteration is full.

    collection: the episodes so far.
    """

    def __init__(self, settings: RunSettings, controllers: Controllers):
        self.settings = settings
        self.controllers = controllers
        self.collection = Collection()
        self._size = settings.rollout.tasks
        self._num_groups = 0  # the number of the next group within the iteration
        self._last_groups: deque[list[Episode]] = deque(maxlen=self._size)
        controllers.begin()

    @property
    def missing(self) -> int:
        """How many groups the batch still needs."""
        return self._size - len({episode.group for episode in self.collection.episodes})

    @property
    def finished(self) -> bool:
        """Whether the batch is full, or the rounds of dynamic sampling are used up."""
        return self.missing <= 0 or self._num_groups >= self._size * self.controllers.sampling_rounds

    @property
    def rounds(self) -> int:
        """Rounds of dynamic sampling so far; each has at most as many groups as a batch."""
        return -(-self._num_groups // self._size)

    def add(self, groups: Sequence[Sequence[Episode]]) -> bool:
        """Add the episodes of complete groups; returns whether any of them is worth training on."""
        added: list[Episode] = []
        for group in groups:
            numbered = [self.with_environment(replace(episode, group=self._num_groups)) for episode in group]
            added += numbered
            self._last_groups.append(numbered)
            self._num_groups += 1
        trainable = self._select(added)
        self.collection.sampled_episodes += added
        self.collection.episodes += trainable
        return bool(trainable)

    def end_round(self) -> None:
        """Continue the numbers of groups with the next round's, where a round opened fewer than a batch."""
        self._num_groups = self.rounds * self._size

    def build(self) -> Collection:
        """The collection, with the last groups where none was worth keeping."""
        collection = self.collection
        if not collection.episodes:
            collection.episodes = usable([episode for group in self._last_groups for episode in group])
        collection.rounds = self.rounds
        return collection

    def with_environment(self, episode: Episode) -> Episode:
        """The episode with the name of its environment."""
        return replace(episode, environment=self.settings.environment_of(episode.task).name or None)

    def columns(self, episodes: Sequence[Episode]) -> Turns:
        """The columns of the episodes, with the rewards of training but without penalties."""
        settings = self.settings
        return turns_for(episodes, settings.algorithm.credit, success_only=settings.reward == "success")

    def _select(self, episodes: Sequence[Episode]) -> list[Episode]:
        episodes = usable(episodes)
        if not episodes:
            return []
        keep_E = self.controllers.keep(self.columns(episodes))
        return [episode for episode, keep in zip(episodes, keep_E, strict=True) if keep]


def usable(episodes: Sequence[Episode]) -> list[Episode]:
    """The episodes that can be learned from: neither failed nor empty."""
    return [episode for episode in episodes if episode.outcome != "failed" and episode.turns]
