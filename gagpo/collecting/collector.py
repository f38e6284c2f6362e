"""Collecting the episodes of an iteration: probes, groups, and groups sampled again where they teach nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from gagpo.agents.agent import Agent
from gagpo.agents.engines.base import Engine
from gagpo.agents.engines.weights import refreshed
from gagpo.agents.episodes import Episode
from gagpo.agents.rollout import Clock, group_jobs, rollout
from gagpo.collecting.distributed_rollout import Rollout
from gagpo.collecting.schedule import Schedule
from gagpo.controllers import Controllers
from gagpo.credit import Turns, turns_for
from gagpo.envs.pool import Pool
from gagpo.settings import RunSettings


@dataclass
class Collection:
    """The episodes of an iteration.

    episodes: to train on, group after group, without failed and empty ones.
    played: all that were played to choose from, without probes.
    probe: played for a controller's statistics only.
    stale: dropped because their weights were too old.
    rounds: rounds of dynamic sampling.
    clock: where the time went.
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

    rollout: plays the jobs, here or on all ranks together. position: number of tasks taken so far.
    """

    def __init__(self, settings: RunSettings, schedule: Schedule, controllers: Controllers, rollout: Rollout = rollout):
        self.settings = settings
        self.schedule = schedule
        self.controllers = controllers
        self.rollout = rollout
        self.position = 0

    def state_dict(self) -> dict[str, Any]:
        """The state for a checkpoint. ``due``: places before ``position`` that are still to be played."""
        return {"position": self.position, "due": [], "curriculum": self.schedule.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a :meth:`state_dict`."""
        self.position = int(state["position"])
        self.schedule.load_state_dict(state["curriculum"])

    def sampled(self, seconds: float | None) -> bytes | None:
        """Episodes for a checkpoint that cannot be sampled again, because their weights are gone; None without any.

        seconds: longest wait for episodes under way, which are left out then; None to wait for all.
        """
        return None

    def load_sampled(self, data: bytes) -> None:
        """Restore what :meth:`sampled` returned."""

    def collect(self, agent: Agent, pool: Pool, iteration: int) -> Collection:
        """Play ``rollout.tasks`` groups of episodes.

        With dynamic sampling, groups without contrast are replaced by groups of further tasks, round after round,
        until the batch is full or the rounds are used up; if it stays empty, the last round is the batch. Controllers
        that ask for probes get one of every task.
        """
        rolling, controllers = self.settings.rollout, self.controllers
        found = Collection()
        wanted = rolling.tasks
        names = self._take(wanted)
        controllers.begin()
        while True:
            # One round: probe its tasks, play them, keep the groups with contrast; the next round fills the rest.
            label = f"iteration {iteration} round {found.rounds}"
            if controllers.probe_episodes:
                self._probe(agent, pool, names, label, found)
            temperatures = controllers.temperatures(rolling.temperature, names)
            samples = [self.settings.environment_of(name).samples for name in names]
            played = self._play(agent, pool, names, samples, label, temperatures, found.clock)
            played = [replace(episode, group=episode.group + found.rounds * wanted) for episode in played]
            self.schedule.observe(played)
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
        """A context in which ``model`` becomes that of ``iteration`` updates; the engine samples from it afterwards."""
        return refreshed(engine, model, self.settings.engine.sleep)

    def paused(self, engine: Engine) -> AbstractContextManager[None]:
        """A context in which nothing is sampled, so that engine and pool can be used for something else."""
        return nullcontext()

    def close(self) -> None:
        """End what collects in the background: nothing here."""

    def _take(self, count: int) -> list[str]:
        places = range(self.position, self.position + count)
        self.position += count
        return [self.schedule.open(place) for place in places]

    def _probe(self, agent: Agent, pool: Pool, names: Sequence[str], label: str, found: Collection) -> None:
        """Play a probe of every task that has none in this iteration; one whose episodes all failed stays without."""
        known = {episode.task for episode in found.probe}
        names = [name for name in dict.fromkeys(names) if name not in known]
        base = [self.settings.rollout.temperature] * len(names)
        samples = [self.controllers.probe_episodes] * len(names)
        probe = self._play(agent, pool, names, samples, f"{label} probe", base, found.clock)
        found.probe += probe
        episodes = usable(probe)
        if episodes:
            self.controllers.observe_probe(self._columns(episodes), tasks_of_groups(episodes))

    def _play(
        self,
        agent: Agent,
        pool: Pool,
        names: Sequence[str],
        samples: Sequence[int],
        label: str,
        temperatures: Sequence[float],
        clock: Clock,
    ) -> list[Episode]:
        rolling = self.settings.rollout
        jobs = group_jobs(names, samples, self.settings.seed, label, temperatures)
        episodes, spent = self.rollout(agent, pool, jobs, concurrency=rolling.concurrency, lockstep=rolling.lockstep)
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
        """The columns of the episodes, with rewards as training counts them but without penalties."""
        success_only = [self.settings.environment_of(episode.task).reward == "success" for episode in episodes]
        return turns_for(episodes, self.settings.algorithm.credit, success_only=success_only)


def usable(episodes: Sequence[Episode]) -> list[Episode]:
    """The episodes that can be learned from: not broken by their environment, and not empty."""
    return [episode for episode in episodes if episode.outcome != "failed" and episode.turns]


def tasks_of_groups(episodes: Sequence[Episode]) -> list[str]:
    """The task of each group, in increasing order of the groups' numbers."""
    return [task for _, task in sorted({episode.group: episode.task for episode in episodes}.items())]
