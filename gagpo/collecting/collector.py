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
    """What an iteration collected.

    episodes: those to train on, group after group, none of them failed or empty. played: all that were played to
    choose them from, probes excluded. probe: episodes played for a controller's statistics alone. stale: those that
    were dropped, finished or not, because the weights had moved on. stats: what else to log.
    """

    episodes: list[Episode] = field(default_factory=list)
    played: list[Episode] = field(default_factory=list)
    probe: list[Episode] = field(default_factory=list)
    stale: list[Episode] = field(default_factory=list)
    rounds: int = 0
    clock: Clock = field(default_factory=Clock)
    stats: dict[str, float] = field(default_factory=dict)


class Collector:
    """Plays the training splits of all worlds, in the order of ``schedule``.

    ``position`` counts the tasks taken so far, and ``due`` are the places before it that are still to be played (none
    here, where a batch is played to its end before it is trained on). rollout: what plays the jobs, here or on all
    ranks together.
    """

    def __init__(self, settings: RunSettings, schedule: Schedule, controllers: Controllers, rollout: Rollout = rollout):
        self.settings = settings
        self.schedule = schedule
        self.controllers = controllers
        self.rollout = rollout
        self.position = 0
        self.due: list[int] = []

    def state_dict(self) -> dict[str, Any]:
        """All there is to checkpoint."""
        return {"position": self.position, "due": self.due, "curriculum": self.schedule.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a checkpoint ended; earlier versions had neither places due nor a curriculum."""
        self.position, self.due = int(state["position"]), [int(place) for place in state.get("due", [])]
        self.schedule.load_state_dict(state.get("curriculum", {}))

    def sampled(self, seconds: float | None) -> bytes | None:
        """What else a checkpoint holds: groups that older weights have sampled. None here, where there are none.

        seconds: after which what is still being sampled is left out; None: it is waited for.
        """
        return None

    def load_sampled(self, data: bytes) -> None:
        """Take up what :meth:`sampled` gave; here it is to be sampled anew."""

    def collect(self, agent: Agent, pool: Pool, iteration: int) -> Collection:
        """``rollout.tasks`` groups, each of as many episodes as its world's samples say.

        With dynamic sampling, groups that teach nothing are replaced by groups of further tasks, round after round,
        until the batch is full or the rounds are up; a batch that stayed empty is what the last round played. Where the
        controllers want probes, the tasks of every round are probed.
        """
        rolling, controllers = self.settings.rollout, self.controllers
        found = Collection()
        wanted = rolling.tasks
        names = self._take(wanted)
        controllers.begin()
        while True:
            # One round: probe its tasks, play them, keep the groups that teach; the next one fills what is missing.
            label = f"iteration {iteration} round {found.rounds}"
            if controllers.probe_episodes:
                self._probe(agent, pool, names, label, found)
            temperatures = controllers.temperatures(rolling.temperature, names)
            samples = [self.settings.world_of(name).samples for name in names]
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

    def upcoming(self, count: int) -> list[str]:
        """The next ``count`` tasks, without taking them."""
        return [self.schedule.task_at(place) for place in range(self.position, self.position + count)]

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
        """The episodes with the names of their worlds."""
        return [replace(episode, world=self.settings.world_of(episode.task).name or None) for episode in episodes]

    def _kept(self, played: Sequence[Episode]) -> list[Episode]:
        episodes = usable(played)
        if not episodes:
            return []
        keep_E = self.controllers.keep(self._columns(episodes))
        return [episode for episode, keep in zip(episodes, keep_E, strict=True) if keep]

    def _columns(self, episodes: Sequence[Episode]) -> Turns:
        """What the episodes were paid as training counts it, penalties aside."""
        success_only = [self.settings.world_of(episode.task).reward == "success" for episode in episodes]
        return turns_for(episodes, self.settings.algorithm.credit, success_only=success_only)


def usable(episodes: Sequence[Episode]) -> list[Episode]:
    """The episodes that can be learned from: not broken by their environment, and not empty."""
    return [episode for episode in episodes if episode.outcome != "failed" and episode.turns]


def tasks_of_groups(episodes: Sequence[Episode]) -> list[str]:
    """The task of each group, in increasing order of the groups' numbers."""
    return [task for _, task in sorted({episode.group: episode.task for episode in episodes}.items())]
