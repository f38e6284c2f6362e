"""Where branches begin: chosen by what the tries before them met."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from gagpo.agents.episodes import Episode, Turn
from gagpo.agents.rollout import Job, derive_seed

By = Literal["visits", "outcome", "entropy", "uniform"]

SIBLING_PENALTY = 0.05
"""Nats that each branch that a turn already has takes off its entropy (AT2PO's released code)."""


@dataclass(frozen=True)
class Branching:
    """How many of a group's tries start as branches, in how many rounds, and where; see :func:`choose_forks`."""

    episodes: int
    by: By = "entropy"
    rounds: int = 1

    def dealt(self, tries: int) -> list[int]:
        """How many of ``tries`` are played in each round, those from the start first; at least one of these."""
        branches = min(self.episodes, tries - 1)
        parts = [len(part) for part in np.array_split(np.arange(branches), min(self.rounds, max(branches, 1)))]
        return [tries - branches, *(part for part in parts if part)]


@dataclass(frozen=True)
class Fork:
    """Where a branch begins: before turn ``turn`` of ``parent``. token: the world's; None: its actions are replayed."""

    parent: Episode
    turn: int
    token: bytes | None

    @property
    def shared(self) -> list[Turn]:
        return self.parent.turns[: self.turn]


Points = dict[tuple[int, int, int], bytes]
"""The world's token before a turn, by group, sample and turn."""


def choose_forks(tries: Sequence[Episode], jobs: Sequence[Job], by: By, points: Points) -> dict[int, Fork]:
    """Where each of the ``jobs`` of a group begins, by its place; those that begin at the start are left out.

    Any turn but the first may be taken again, of any try that its environment did not break. by: ``visits``, where the
    group has met the state least often; ``outcome``, where ``p (1 - p)/n`` is largest, the variance of the mean of the
    n tries that passed there, of which the share p succeeded; ``entropy``, where the turn's tokens have the largest
    mean negative log-probability, less .05 for each branch that is there already (AT2PO, arXiv 2601.04767);
    ``uniform``, anywhere. Equals are told apart by the job's seed. A state is its key, or, without one, its text.
    """
    told = [episode for episode in tries if episode.outcome != "failed"]
    # A branch's first own turn is taken in the state of its parent's, which stands for both.
    places = [(episode, turn) for episode in told for turn in range(episode.fork + 1, len(episode.turns))]
    if not places:
        return {}
    keyed = all(turn.state is not None for episode in told for turn in episode.turns)
    key_P = [_key(episode.turns[turn], keyed) for episode, turn in places]
    visits = Counter(_key(turn, keyed) for episode in told for turn in episode.own)
    passed: dict[str, list[bool]] = {}
    for episode in told:
        for key in {_key(turn, keyed) for turn in episode.turns}:
            passed.setdefault(key, []).append(episode.success)
    branches = Counter((episode.parent, episode.fork) for episode in told if episode.parent is not None)
    begun: Counter[str] = Counter()  # in this round, by state

    def score(place: int) -> float:
        (episode, turn), key = places[place], key_P[place]
        if by == "visits":
            return -float(visits[key] + begun[key])
        if by == "outcome":
            share = sum(passed[key]) / len(passed[key])
            return share * (1 - share) / (len(passed[key]) + begun[key])
        if by == "entropy":
            logprobs = episode.turns[turn].logprobs
            surprise = -float(logprobs.mean()) if len(logprobs) else 0.0
            return surprise - SIBLING_PENALTY * branches[episode.sample, turn]
        return 0.0

    forks = {}
    for number, job in enumerate(jobs):
        # The best place, the first of equals in an order that is this job's own.
        order = np.random.default_rng(derive_seed(job.seed, "fork")).permutation(len(places))
        best = max(order.tolist(), key=score)
        episode, turn = places[best]
        forks[number] = Fork(episode, turn, points.get((episode.group, episode.sample, turn)))
        begun[key_P[best]] += 1
        branches[episode.sample, turn] += 1
    return forks


def _key(turn: Turn, keyed: bool) -> str:
    return turn.state if keyed and turn.state is not None else turn.observation
