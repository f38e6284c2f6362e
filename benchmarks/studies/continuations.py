"""What turns were truly worth: the mean outcome of many continuations from where each was made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gagpo.agents.agent import Agent, EpisodeState
from gagpo.agents.episodes import Episode, Turn
from gagpo.agents.rollout import derive_seed
from gagpo.credit.turns.grouping import next_in_episode
from gagpo.envs.pool import Event, Pool

SLOTS = 128


@dataclass(frozen=True)
class Point:
    """A moment at which an action was due: the environment's token, and the turns before it."""

    task: str
    token: bytes
    turns: tuple[Turn, ...]


class SavingAgent:
    """Another agent, with the environment saved before each of its turns; ``points`` by group, sample and turn."""

    def __init__(self, agent: Agent, pool: Pool):
        self.agent, self.pool = agent, pool
        self.points: dict[tuple[int, int, int], Point] = {}

    def decide(self, states: Sequence[EpisodeState]) -> list[Turn | None]:
        for state in states:
            episode = state.episode
            place = (episode.group, episode.sample, len(episode.turns))
            self.points[place] = Point(episode.task, self.pool.save(state.slot), tuple(episode.turns))
        return self.agent.decide(states)

    def forget(self, slot: int) -> None:
        self.agent.forget(slot)


def continued(agent: Agent, pool: Pool, points: Sequence[Point], tries: int, seed: int) -> np.ndarray:
    """What each of ``tries`` continuations of each point was paid until its end, float64[points, tries]."""
    jobs = [(place, number) for place in range(len(points)) for number in range(tries)]
    paid = np.zeros((len(points), tries))
    for begin in range(0, len(jobs), SLOTS):
        # As many at once as there are slots; each goes on by draws of its own.
        states = {}
        for slot, (place, number) in enumerate(jobs[begin : begin + SLOTS]):
            point = points[place]
            own = derive_seed("continuation", seed, place, number)
            states[slot] = EpisodeState(slot, Episode(point.task, seed=own, turns=list(point.turns)))
            pool.restore(slot, point.token)
        _play_out(agent, pool, states)
        for slot, state in states.items():
            place, number = jobs[begin + slot]
            paid[place, number] = sum(turn.reward for turn in state.episode.turns[len(points[place].turns) :])
    return paid


def _play_out(agent: Agent, pool: Pool, states: dict[int, EpisodeState]) -> None:
    """Play every state to its end."""
    waiting = set(states)
    while waiting:
        # All answers, then all actions.
        ready: list[int] = []
        while waiting:
            for event in pool.wait():
                waiting.discard(event.slot)
                if not _enter(states[event.slot], event):
                    ready.append(event.slot)
        ready.sort()
        turns = agent.decide([states[slot] for slot in ready]) if ready else []
        for slot, turn in zip(ready, turns, strict=True):
            assert turn is not None
            turn.observation = states[slot].observation
            states[slot].episode.turns.append(turn)
            pool.step(slot, turn.action)
            waiting.add(slot)


def _enter(state: EpisodeState, event: Event) -> bool:
    """Take an answer; whether it ended the episode."""
    if event.kind not in ("restored", "step"):
        raise RuntimeError(f"a continuation met {event.kind!r}: {event.error}")
    state.observation, state.info = event.observation, event.info
    if event.kind == "step":
        state.episode.turns[-1].finish(event.reward, bool(event.info.get("valid", True)))
    return event.terminated or event.truncated


def true_values(
    agent: Agent, pool: Pool, episodes: Sequence[Episode], points: dict[tuple[int, int, int], Point], tries: int
) -> tuple[np.ndarray, np.ndarray]:
    """What is to be earned from each turn on, undiscounted, and the variance of its estimate, float64[N] each.

    A history that several episodes share is continued once, so that the group's first turns have one value.
    """
    known: dict[tuple[str, ...], int] = {}
    chosen: list[Point] = []
    place_N = []
    for episode in episodes:
        past = (episode.task,)
        for number, turn in enumerate(episode.turns):
            if past not in known:
                known[past] = len(chosen)
                chosen.append(points[episode.group, episode.sample, number])
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
