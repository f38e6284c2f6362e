"""Collecting the episodes of an iteration: probes, groups, and groups sampled again where they teach nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from gagpo.agents.agent import Agent
from gagpo.agents.episodes import Episode
from gagpo.agents.rollout import Clock, group_jobs, rollout
from gagpo.controllers import Controllers
from gagpo.credit import turns_for
from gagpo.envs.pool import Pool
from gagpo.envs.tasks import TaskSet
from gagpo.settings import RunSettings


@dataclass
class Collection:
    """What an iteration collected.

    episodes: those to train on, group after group, none of them failed or empty. played: all that were played to
    choose them from, probes excluded. probe: episodes played for a controller's statistics alone.
    """

    episodes: list[Episode] = field(default_factory=list)
    played: list[Episode] = field(default_factory=list)
    probe: list[Episode] = field(default_factory=list)
    rounds: int = 0
    clock: Clock = field(default_factory=Clock)


class Collector:
    """Plays the training split, each task once before any comes again, in an order drawn from the run's seed.

    ``position`` counts the tasks taken so far; it is all there is to checkpoint.
    """

    def __init__(self, settings: RunSettings, tasks: TaskSet, controllers: Controllers):
        self.settings = settings
        self.tasks = tasks
        self.controllers = controllers
        self.position = 0

    def collect(self, agent: Agent, pool: Pool, iteration: int) -> Collection:
        """``rollout.tasks`` groups of ``rollout.samples`` episodes.

        With dynamic sampling, groups that teach nothing are replaced by groups of further tasks, round after round,
        until the batch is full or the rounds are up; a batch that stayed empty is what the last round played.
        """
        rolling, controllers = self.settings.rollout, self.controllers
        found = Collection()
        wanted = rolling.tasks
        names = self._take(wanted)
        temperatures: Sequence[float] = [rolling.temperature] * wanted
        if controllers.probe_episodes:
            temperatures = self._probe(agent, pool, names, iteration, found)
        while True:
            label = f"iteration {iteration} round {found.rounds}"
            played = self._play(agent, pool, names, rolling.samples, label, temperatures, found.clock)
            found.played += [replace(episode, group=episode.group + found.rounds * wanted) for episode in played]
            found.rounds += 1
            kept = self._kept(found.played[-len(played) :])
            found.episodes += kept
            missing = wanted - len({episode.group for episode in found.episodes})
            if missing <= 0 or found.rounds >= controllers.sampling_rounds:
                break
            names = self._take(missing)
            temperatures = [rolling.temperature] * missing
        found.episodes = found.episodes or usable(found.played)
        return found

    def upcoming(self, count: int) -> list[str]:
        """The next ``count`` tasks, without taking them."""
        names = []
        for place in range(self.position, self.position + count):
            epoch, index = divmod(place, len(self.tasks))
            order = np.random.default_rng([self.settings.seed, 7, epoch]).permutation(len(self.tasks))
            names.append(self.tasks.ids[order[index]])
        return names

    def _take(self, count: int) -> list[str]:
        names = self.upcoming(count)
        self.position += count
        return names

    def _probe(
        self, agent: Agent, pool: Pool, names: Sequence[str], iteration: int, found: Collection
    ) -> Sequence[float]:
        """Play a probe of every task and let the controllers choose each group's temperature from it."""
        rolling = self.settings.rollout
        base = [rolling.temperature] * len(names)
        label = f"iteration {iteration} probe"
        found.probe = self._play(agent, pool, names, self.controllers.probe_episodes, label, base, found.clock)
        if len({episode.group for episode in usable(found.probe)}) < len(names):
            return base  # a whole group failed in its environment: no statistics to go by
        self.controllers.observe_probe(turns_for(usable(found.probe), self.settings.algorithm.credit))
        return self.controllers.temperature_G(rolling.temperature, len(names)).tolist()

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
        episodes, spent = rollout(agent, pool, jobs, concurrency=rolling.concurrency, lockstep=rolling.lockstep)
        clock.environment += spent.environment
        clock.generation += spent.generation
        clock.total += spent.total
        return episodes

    def _kept(self, played: Sequence[Episode]) -> list[Episode]:
        episodes = usable(played)
        if not episodes:
            return []
        keep_E = self.controllers.keep(turns_for(episodes, self.settings.algorithm.credit))
        return [episode for episode, keep in zip(episodes, keep_E, strict=True) if keep]


def usable(episodes: Sequence[Episode]) -> list[Episode]:
    """The episodes that can be learned from: not broken by their environment, and with at least one turn."""
    return [episode for episode in episodes if episode.outcome != "failed" and episode.turns]
