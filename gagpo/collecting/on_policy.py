"""Collecting between updates: the consumer opens groups, samples them with the newest weights, and takes them.

It uses the buffer of ``rollout.ahead`` although nothing runs beside it, so that places, checkpoints and resuming are
the same in both.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch

from gagpo.agents.agent import Agent
from gagpo.agents.engines.base import Engine
from gagpo.agents.engines.sync import weights_synced
from gagpo.agents.rollout import Clock, Job, group_jobs, rollout
from gagpo.collecting.buffer import Group, GroupBuffer
from gagpo.collecting.collector import BatchBuilder, Collection, OnEpisode, ignore, usable
from gagpo.collecting.distributed_rollout import Rollout
from gagpo.collecting.schedule import Schedule
from gagpo.controllers import Controllers
from gagpo.data import Episode, tasks_of_groups
from gagpo.envs.pool import Pool
from gagpo.settings import RunSettings


class OnPolicyCollector:
    """A :class:`gagpo.collecting.collector.Collector` in one thread: nothing is sampled while weights are updated.

    schedule: the tasks of the training splits, in the run's order.
    rollout: runs the jobs, here or on all ranks together.
    """

    def __init__(self, settings: RunSettings, schedule: Schedule, controllers: Controllers, rollout: Rollout = rollout):
        self.settings = settings
        self.schedule = schedule
        self.controllers = controllers
        self.rollout = rollout
        self.buffer = GroupBuffer(settings, schedule.task_at)

    def collect(self, agent: Agent, pool: Pool, iteration: int, on_episode: OnEpisode = ignore) -> Collection:
        batch = BatchBuilder(self.settings, self.controllers)
        while not batch.finished:
            label = f"iteration {iteration} round {batch.rounds}"
            groups = self._sample_groups(agent, pool, batch, label, on_episode)
            batch.add([group.finished() for group in groups])
            batch.end_round()
        return batch.build()

    def updating(self, engine: Engine, model: torch.nn.Module, iteration: int) -> AbstractContextManager[None]:
        return weights_synced(engine, model, self.settings.engine.sleep)

    def paused(self) -> AbstractContextManager[None]:
        return nullcontext()

    def close(self) -> None:
        pass

    def sampled(self, seconds: float | None) -> bytes | None:
        return None

    def load_sampled(self, data: bytes) -> None:
        pass

    def _sample_groups(
        self, agent: Agent, pool: Pool, batch: BatchBuilder, label: str, on_episode: OnEpisode
    ) -> list[Group]:
        """Open the groups that the batch is missing, and sample them at the temperatures of the controllers."""
        rolling, collection = self.settings.rollout, batch.collection
        indices = self.buffer.next_places(batch.missing)
        tasks = [self.schedule.task_at(index) for index in indices]
        if self.controllers.probe_episodes:
            self._probe(agent, pool, tasks, batch, label)
        temperatures = self.controllers.temperatures(rolling.temperature, tasks)
        jobs = group_jobs(tasks, rolling.group_size, self.settings.seed, label, temperatures)
        for number, index in enumerate(indices):
            self.buffer.add(Group(index, None, [job for job in jobs if job.group == number]))
        opened = self.buffer.next_batch()
        episodes = self._run(agent, pool, jobs, collection.clock, on_episode)
        for (group, sample), episode in zip(opened, episodes, strict=True):
            self.buffer.deliver(group, sample, episode)
        return list(iter(self.buffer.take, None))

    def _probe(self, agent: Agent, pool: Pool, tasks: Sequence[str], batch: BatchBuilder, label: str) -> None:
        """Sample a probe of every task that has none in this iteration."""
        collection, count = batch.collection, self.controllers.probe_episodes
        probed_tasks = {episode.task for episode in collection.probe_episodes}
        tasks = [task for task in dict.fromkeys(tasks) if task not in probed_tasks]
        temperatures = [self.settings.rollout.temperature] * len(tasks)
        jobs = group_jobs(tasks, count, self.settings.seed, f"{label} probe", temperatures)
        probes = [batch.with_environment(episode) for episode in self._run(agent, pool, jobs, collection.clock)]
        collection.probe_episodes += probes
        episodes = usable(probes)
        if episodes:
            self.controllers.observe_probe(batch.columns(episodes), tasks_of_groups(episodes))

    def _run(
        self, agent: Agent, pool: Pool, jobs: Sequence[Job], clock: Clock, on_finish: OnEpisode | None = None
    ) -> list[Episode]:
        """The episodes of ``jobs``; the time spent is added to ``clock``."""
        rolling = self.settings.rollout
        episodes, spent = self.rollout(
            agent,
            pool,
            jobs,
            concurrency=rolling.concurrency,
            deterministic=rolling.deterministic,
            on_finish=on_finish,
        )
        clock.environment += spent.environment
        clock.generation += spent.generation
        clock.total += spent.total
        return episodes
