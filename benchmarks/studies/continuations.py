"""What turns were truly worth: the mean outcome of many continuations from where each was made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gagpo.agents.agent import Agent, EpisodeState
from gagpo.agents.rollout import Job, derive_seed
from gagpo.credit.statistics.returns import next_in_episode
from gagpo.data import Episode, Turn
from gagpo.envs.pool import Event, Pool

SLOTS = 128


@dataclass(frozen=True)
class Point:
    """A moment at which an action was due: the task, the environment's seed, and the turns before it."""

    task: str
    seed: int
    turns: tuple[Turn, ...]


def continued(agent: Agent, pool: Pool, points: Sequence[Point], tries: int, seed: int) -> np.ndarray:
    """What each of ``tries`` continuations of each point was paid until its end, float64[points, tries]."""
    jobs = [(place, number) for place in range(len(points)) for number in range(tries)]
    paid = np.zeros((len(points), tries))
    for begin in range(0, len(jobs), SLOTS):
        # As many at once as there are slots; each repeats its turns so far, and goes on by draws of its own.
        states = {}
        for slot, (place, number) in enumerate(jobs[begin : begin + SLOTS]):
            point = points[place]
            own = derive_seed("continuation", seed, place, number)
            states[slot] = EpisodeState(slot, Episode(point.task, seed=own, turns=list(point.turns)))
            pool.reset(slot, point.task, point.seed)
        _play_out(agent, pool, states, {slot: [turn.action for turn in s.episode.turns] for slot, s in states.items()})
        for slot, state in states.items():
            place, number = jobs[begin + slot]
            paid[place, number] = sum(turn.reward for turn in state.episode.turns[len(points[place].turns) :])
    return paid


def _play_out(agent: Agent, pool: Pool, states: dict[int, EpisodeState], repeated: dict[int, list[str]]) -> None:
    """Play every state to its end, after its ``repeated`` actions."""
    waiting, begun = set(states), False
    while waiting:
        # All answers, then all actions.
        ready: list[int] = []
        while waiting:
            for event in pool.wait():
                if repeated[event.slot]:
                    pool.step(event.slot, repeated[event.slot].pop(0))
                    continue
                waiting.discard(event.slot)
                if not _enter(states[event.slot], event, begun):
                    ready.append(event.slot)
        begun = True
        ready.sort()
        turns = agent.decide([states[slot] for slot in ready]) if ready else []
        for slot, turn in zip(ready, turns, strict=True):
            assert turn is not None
            states[slot].episode.turns.append(turn.with_observation(states[slot].observation, None))
            pool.step(slot, turn.action)
            waiting.add(slot)


def _enter(state: EpisodeState, event: Event, acted: bool) -> bool:
    """Take an answer, to the agent's own action if it ``acted``; whether it ended the episode."""
    if event.kind not in ("reset", "step"):
        raise RuntimeError(f"a continuation met {event.kind!r}: {event.error}")
    state.observation, state.info = event.observation, event.info
    if acted:
        turns = state.episode.turns
        turns[-1] = turns[-1].with_result(event.reward, bool(event.info.get("valid", True)))
    return event.terminated or event.truncated


def true_values(
    agent: Agent, pool: Pool, episodes: Sequence[Episode], jobs: Sequence[Job], tries: int
) -> tuple[np.ndarray, np.ndarray]:
    """What is to be earned from each turn on, undiscounted, and the variance of its estimate, float64[N] each.

    A history that several episodes share is continued once, so that the group's first turns have one value.
    """
    known: dict[tuple[str, ...], int] = {}
    chosen: list[Point] = []
    place_N = []
    for episode, job in zip(episodes, jobs, strict=True):
        past: tuple[str, ...] = (episode.task,)
        for number, turn in enumerate(episode.turns):
            if past not in known:
                known[past] = len(chosen)
                chosen.append(Point(episode.task, job.environment_seed, tuple(episode.turns[:number])))
            place_N.append(known[past])
            past = (*past, turn.action)
    paid = continued(agent, pool, chosen, tries, seed=episodes[0].seed)
    mean, variance = paid.mean(1), paid.var(1, ddof=1) / tries
    return mean[place_N], variance[place_N]


def true_advantages(
    episodes: Sequence[Episode], value_N: np.ndarray, variance_N: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """``A = r + V(after) - V(before)``, with its standard error, float64[N] each; nothing is earned after an end."""
    reward_N = np.array([turn.reward for episode in episodes for turn in episode.turns])
    last_N = np.concatenate([np.arange(len(episode.turns)) == len(episode.turns) - 1 for episode in episodes])
    after_N, spread_N = next_in_episode(value_N, last_N), next_in_episode(variance_N, last_N)
    return reward_N + after_N - value_N, np.sqrt(spread_N + variance_N)
