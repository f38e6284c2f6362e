"""Collecting the episodes of an iteration, with probes and dynamic sampling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from gagpo.agents.agent import Agent
from gagpo.agents.engines.base import Engine
from gagpo.agents.engines.sync import weights_synced
from gagpo.agents.rollout import Clock, group_jobs, rollout
from gagpo.collecting.distributed_rollout import Rollout
from gagpo.collecting.schedule import Schedule
from gagpo.controllers import Controllers
from gagpo.credit import Turns, turns_for
from gagpo.data.episodes import Episode
from gagpo.envs.pool import Pool
from gagpo.settings import RunSettings


@dataclass
class Collection:
    """The episodes of an iteration.

    episodes: to train on, group after group, without failed and empty ones.
    played: all except probes.
    probe: played for a controller's statistics only.
    stale: dropped because their weights were too old.
    rounds: of dynamic sampling.
    clock: time spent.
    stats: further metrics.
    """

    episodes: list[Episode] = field(default_factory=list)
    played: list[Episode] = field(default_factory=list)
    probe: list[Episode] = field(default_factory=list)
    stale: list[Episode] = field(default_factory=list)
    rounds: int = 0
    clock: Clock = field(default_factory=Clock)
    stats: dict[str, float] = field(default_factory=dict)


class Collector:
    """Plays the training splits of all environments, in the order of ``schedule``.

    rollout: plays the jobs, here or on all ranks together.
    position: number of tasks taken so far.
    """

    def __init__(self, settings: RunSettings, schedule: Schedule, controllers: Controllers, rollout: Rollout = rollout):
        self.settings, self.schedule, self.controllers, self.rollout = settings, schedule, controllers, rollout
        self.position = 0

    def state_dict(self) -> dict[str, Any]:
        """The state for a checkpoint. ``due``: places before ``position`` that are still to be played."""
        return {"position": self.position, "due": []}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.position = int(state["position"])

    def sampled(self, seconds: float | None) -> bytes | None:
        """Episodes for a checkpoint, whose weights are gone; None without any.

        seconds: longest wait for unfinished episodes; None to wait for all.
        """
        return None

    def load_sampled(self, data: bytes) -> None:
        """Restore what :meth:`sampled` returned."""

    def collect(self, agent: Agent, pool: Pool, iteration: int) -> Collection:
        """Play ``rollout.tasks`` groups of episodes.

        Dynamic sampling replaces groups without contrast by groups of further tasks, until the batch is full or the
        rounds are used up; if no group has contrast, the last round is the batch.
        """
        rolling, controllers = self.settings.rollout, self.controllers
        found = Collection()
        wanted = rolling.tasks
        names = self._take(wanted)
        controllers.begin()
        while True:
            label = f"iteration {iteration} round {found.rounds}"
            if controllers.probe_episodes:
                self._probe(agent, pool, names, label, found)
            temperatures = controllers.temperatures(rolling.temperature, names)
            played = self._play(agent, pool, names, rolling.group_size, label, temperatures, found.clock)
            played = [replace(episode, group=episode.group + found.rounds * wanted) for episode in played]
            found.played += played
            found.rounds += 1
            found.episodes += self._kept(played)
            missing = wanted - len({episode.group for episode in found.episodes})
            if missing <= 0 or found.rounds >= controllers.sampling_rounds:
                break
            names = self._take(missing)
        found.episodes = found.episodes or usable(played)
        return found

    def updating(self, engine: Engine, model: torch.nn.Module, iteration: int) -> AbstractContextManager[None]:
        """A context in which ``model`` is updated for the ``iteration``-th time; the engine gets the new weights."""
        return weights_synced(engine, model, self.settings.engine.sleep)

    def paused(self, engine: Engine) -> AbstractContextManager[None]:
        """A context in which nothing is sampled, so that the caller can use engine and pool."""
        return nullcontext()

    def close(self) -> None:
        """End sampling in the background, if any."""

    def _take(self, count: int) -> list[str]:
        places = range(self.position, self.position + count)
        self.position += count
        return [self.schedule.task_at(place) for place in places]

    def _probe(self, agent: Agent, pool: Pool, names: Sequence[str], label: str, found: Collection) -> None:
        """Play a probe of every task that has none in this iteration."""
        controllers, known = self.controllers, {episode.task for episode in found.probe}
        names = [name for name in dict.fromkeys(names) if name not in known]
        base = [self.settings.rollout.temperature] * len(names)
        probe = self._play(agent, pool, names, controllers.probe_episodes, f"{label} probe", base, found.clock)
        found.probe += probe
        episodes = usable(probe)
        if episodes:
            controllers.observe_probe(self._columns(episodes), tasks_of_groups(episodes))

    def _play(
        self,
        agent: Agent,
        pool: Pool,
        names: Sequence[str],
        samples: int,
        label: str,
        temperatures: Sequence[float],
        clock: Clock,
    ) -> list[Episode]:
        rolling = self.settings.rollout
        jobs = group_jobs(names, samples, self.settings.seed, label, temperatures)
        episodes, spent = self.rollout(
            agent, pool, jobs, concurrency=rolling.concurrency, deterministic=rolling.deterministic
        )
        clock.environment += spent.environment
        clock.generation += spent.generation
        clock.total += spent.total
        return self._placed(episodes)

    def _placed(self, episodes: Sequence[Episode]) -> list[Episode]:
        """The episodes with the names of their environments."""
        return [
            replace(episode, environment=self.settings.environment_of(episode.task).name or None)
            for episode in episodes
        ]

    def _kept(self, played: Sequence[Episode]) -> list[Episode]:
        episodes = usable(played)
        if not episodes:
            return []
        keep_E = self.controllers.keep(self._columns(episodes))
        return [episode for episode, keep in zip(episodes, keep_E, strict=True) if keep]

    def _columns(self, episodes: Sequence[Episode]) -> Turns:
        """The columns of the episodes, with the rewards of training but without penalties."""
        settings = self.settings
        return turns_for(episodes, settings.algorithm.credit, success_only=settings.reward == "success")


def usable(episodes: Sequence[Episode]) -> list[Episode]:
    """The episodes that can be learned from: neither failed nor empty."""
    return [episode for episode in episodes if episode.outcome != "failed" and episode.turns]


def tasks_of_groups(episodes: Sequence[Episode]) -> list[str]:
    """The task of each group, in the order of the groups' numbers."""
    return [task for _, task in sorted({episode.group: episode.task for episode in episodes}.items())]
