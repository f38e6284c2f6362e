"""Grouped rollouts: many episodes at once over a pool of environments, answered by one agent in batches."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gagpo.agents.agent import Agent, Decision, Live
from gagpo.agents.episodes import Episode, Turn
from gagpo.envs.pool import Event, Pool


@dataclass(frozen=True)
class Job:
    """One episode to play. Jobs of a group share task and environment seed; ``seed`` drives the agent's own choices.

    temperature: for this episode's responses; None for the agent's own.
    """

    task: str
    group: int
    sample: int
    seed: int
    environment_seed: int
    temperature: float | None = None


@dataclass
class Clock:
    """Where a rollout's wall time went, in seconds."""

    environment: float = 0.0
    generation: float = 0.0
    total: float = 0.0


def derive_seed(*parts: object) -> int:
    """A 48-bit seed that depends on every part and on nothing else, the same in every process."""
    digest = hashlib.blake2b("\0".join(map(str, parts)).encode(), digest_size=6).digest()
    return int.from_bytes(digest, "big")


def group_jobs(
    tasks: Sequence[str], samples: int, seed: int, label: object = 0, temperatures: Sequence[float] | None = None
) -> list[Job]:
    """``samples`` jobs for each task; the k-th task forms group k, played at the k-th temperature if any are given.

    ``label`` keeps the seeds of different rollouts apart.
    """
    jobs = []
    for group, task in enumerate(tasks):
        world = derive_seed(seed, label, group, task) % 2**31
        temperature = None if temperatures is None else float(temperatures[group])
        for sample in range(samples):
            own = derive_seed(seed, label, group, task, sample)
            jobs.append(Job(task, group, sample, own, world, temperature))
    return jobs


def rollout(
    agent: Agent,
    pool: Pool,
    jobs: Sequence[Job],
    *,
    concurrency: int = 256,
    lockstep: bool = True,
    on_finish: Callable[[Episode], None] | None = None,
) -> tuple[list[Episode], Clock]:
    """Play every job; returns the episodes in the order of the jobs, whatever order they finished in.

    concurrency: most episodes under way at once; a finished one makes room for the next job.
    lockstep: gather all live episodes before the agent answers. Batches, and with them floating-point sums and sampled
        tokens, are then a function of the jobs alone, so a run can be repeated bit for bit. Without it the agent
        answers whoever is ready, which is faster when environments are slow and uneven.
    """
    begun = time.perf_counter()
    clock = Clock()
    lives: dict[int, Live] = {}
    done: list[Episode | None] = [None] * len(jobs)
    waiting: set[int] = set()
    ready: list[int] = []
    upcoming = 0

    def finish(slot: int, outcome: str) -> None:
        live = lives.pop(slot)
        episode = live.episode
        episode.outcome = outcome
        if outcome != "failed":
            episode.end_observation, episode.end_state = live.observation, live.info.get("state")
        done[slot] = episode
        agent.forget(slot)
        pool.release(slot)
        if on_finish:
            on_finish(episode)

    try:
        while upcoming < len(jobs) or lives:
            while upcoming < len(jobs) and len(lives) < concurrency:
                job = jobs[upcoming]
                episode = Episode(
                    task=job.task, group=job.group, sample=job.sample, seed=job.seed, temperature=job.temperature
                )
                lives[upcoming] = Live(upcoming, episode)
                pool.reset(upcoming, job.task, job.environment_seed)
                waiting.add(upcoming)
                upcoming += 1
            since = time.perf_counter()
            while waiting and (lockstep or not ready):
                for event in pool.wait():
                    waiting.discard(event.slot)
                    outcome = _receive(lives[event.slot], event)
                    if event.kind == "restarted":
                        agent.forget(event.slot)
                    if outcome:
                        finish(event.slot, outcome)
                    else:
                        ready.append(event.slot)
            clock.environment += time.perf_counter() - since
            if not ready:
                continue
            since = time.perf_counter()
            ready.sort()
            decisions = agent.decide([lives[slot] for slot in ready])
            clock.generation += time.perf_counter() - since
            for slot, decision in zip(ready, decisions, strict=True):
                if decision is None:
                    finish(slot, "truncated")
                    continue
                _append(lives[slot], decision)
                pool.step(slot, decision.action)
                waiting.add(slot)
            ready.clear()
    except BaseException:
        for slot in list(lives):
            agent.forget(slot)
            pool.release(slot)
        raise
    clock.total = time.perf_counter() - begun
    return [episode for episode in done if episode is not None], clock


def _append(live: Live, decision: Decision) -> None:
    turn = Turn(
        observation=live.observation,
        response=decision.response,
        action=decision.action,
        parsed=decision.parsed,
        valid=decision.parsed,
        state=live.info.get("state"),
        trainable=decision.trainable,
        prompt_ids=decision.prompt_ids,
        response_ids=decision.response_ids,
        logprobs=decision.logprobs,
    )
    live.episode.turns.append(turn)


_KNOWN = {"task", "task_type", "split", "turn", "success", "valid", "state", "admissible_actions", "expert_action"}


def _receive(live: Live, event: Event) -> str | None:
    """Enter an event into its episode; returns what ended it, if something did."""
    episode = live.episode
    if event.kind == "failed":
        episode.info["error"] = event.error
        return "failed"
    live.observation, live.info = event.observation, event.info
    if event.kind in ("reset", "restarted"):
        episode.turns.clear()
        episode.restarts += event.kind == "restarted"
        episode.task_type = str(event.info.get("task_type", ""))
        episode.split = str(event.info.get("split", ""))
        return None
    turn = episode.turns[-1]
    turn.reward = event.reward
    turn.valid = turn.parsed and bool(event.info.get("valid", True))
    if not (event.terminated or event.truncated):
        return None
    episode.success = bool(event.info.get("success", False))
    scalars = (str, int, float, bool)
    episode.info.update({k: v for k, v in event.info.items() if k not in _KNOWN and isinstance(v, scalars)})
    return "terminated" if event.terminated else "truncated"
