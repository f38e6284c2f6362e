"""Rollouts for agents that wait (for a server, for a person): every episode goes its own way in a thread of its own."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from gagpo.agents.agent import Agent, Live
from gagpo.agents.episodes import Episode
from gagpo.agents.rollout import Job, _append, _receive
from gagpo.envs.pool import Event
from gagpo.envs.pool.shared_pool import SharedPool


class Waiter(Agent, Protocol):
    """An agent that may decide for different slots from different threads at once."""

    def stop(self) -> None:
        """Answer nobody any more, and wake whoever waits for an answer."""
        ...


def play_streams(
    agent: Waiter,
    hall: SharedPool,
    jobs: Sequence[Job],
    *,
    concurrency: int = 16,
    on_finish: Callable[[Episode], None] | None = None,
) -> list[Episode]:
    """Play every job, ``concurrency`` at once; returns the episodes in the order of the jobs.

    ``on_finish`` is called for one episode at a time. The first error (of the agent, of ``on_finish``) ends all: no new
    request is made, and it is raised once every thread has stopped. What was finished before has been handed over.
    """
    done: list[Episode | None] = [None] * len(jobs)
    upcoming: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in range(len(jobs)):
        upcoming.put(number)
    errors: list[BaseException] = []
    finishing = threading.Lock()

    def work() -> None:
        slot = hall.open()
        try:
            with suppress(queue.Empty):
                while not errors:
                    number = upcoming.get_nowait()
                    episode = _play(agent, hall, slot, jobs[number], errors)
                    if episode is None:
                        return
                    with finishing:
                        if on_finish:
                            on_finish(episode)
                        done[number] = episode
        except BaseException as error:
            errors.append(error)
            agent.stop()
        finally:
            agent.forget(slot)
            hall.release(slot)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(concurrency, len(jobs)))]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except BaseException as error:  # Ctrl-C comes to the main thread, which is here
        errors.append(error)
        agent.stop()
        raise
    if errors:
        raise errors[0]
    return [episode for episode in done if episode is not None]


def _play(agent: Waiter, hall: SharedPool, slot: int, job: Job, errors: Sequence[BaseException]) -> Episode | None:
    """One episode to its end; None when another thread has failed meanwhile."""
    episode = Episode(task=job.task, group=job.group, sample=job.sample, seed=job.seed, temperature=job.temperature)
    live = Live(slot, episode)
    event: Event = hall.reset(slot, job.task, job.environment_seed).result()
    while not errors:
        outcome = _receive(live, event)
        if event.kind == "restarted":
            agent.forget(slot)
        decision = None if outcome else agent.decide([live])[0]
        if decision is None:
            episode.outcome = outcome or "truncated"
            if outcome != "failed":
                episode.end_observation, episode.end_state = live.observation, live.info.get("state")
            agent.forget(slot)
            return episode
        _append(live, decision)
        event = hall.step(slot, decision.action).result()
    return None
