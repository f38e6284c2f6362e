"""Branches: tries that begin again in the middle of others of their group, so that the group is a tree.

The world is put back to where the other stood (or its actions are replayed, where it cannot be), the turns up to there
are shared, token for token, and from there on the branch plays by draws of its own.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from gagpo.agents.agent import Agent, EpisodeState
from gagpo.agents.episodes import Episode, Turn
from gagpo.agents.rollout import Clock, Job, RolloutLoop, derive_seed, episode_of, rollout
from gagpo.envs.pool import Event, Pool
from gagpo.envs.saved import CannotRestore

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


def branched_rollout(
    agent: Agent,
    pool: Pool,
    jobs: Sequence[Job],
    *,
    concurrency: int = 256,
    lockstep: bool = True,
    on_finish: Callable[[Episode], None] | None = None,
    branch: Branching | None = None,
) -> tuple[list[Episode], Clock]:
    """:func:`gagpo.agents.rollout.rollout`, in which the last of each group's jobs are played as branches of the first.

    They are chosen once all tries of the rounds before are over, by what these met alone, so that the same jobs give
    the same tree. A group in which no try has a second turn has no place to branch at: its jobs begin at the start.
    """
    if branch is None:
        return rollout(agent, pool, jobs, concurrency=concurrency, lockstep=lockstep, on_finish=on_finish)
    groups: dict[int, list[Job]] = {}
    for job in jobs:
        groups.setdefault(job.group, []).append(job)
    rounds = [branch.dealt(len(group)) for group in groups.values()]
    played: dict[int, list[Episode]] = {group: [] for group in groups}
    clock, points, restorable = Clock(), Points(), True
    for number in range(max(map(len, rounds), default=0)):
        # Of each group the jobs of this round, and where they begin; the world is saved while others are to come.
        due: list[Job] = []
        forks: dict[int, Fork] = {}
        for (group, own), dealt in zip(groups.items(), rounds, strict=True):
            part = own[sum(dealt[:number]) :][: dealt[number] if number < len(dealt) else 0]
            found = choose_forks(played[group], part, branch.by, points) if number else {}
            forks |= {len(due) + place: fork for place, fork in found.items()}
            due += part
        loop = BranchingLoop(agent, pool, due, concurrency, on_finish)
        loop.forks, loop.points, loop.saving = forks, points, restorable and number + 1 < max(map(len, rounds))
        begun = loop.saving
        loop.play(lockstep)
        restorable = restorable and (loop.saving or not begun)
        for slot in sorted(loop.done):
            played[loop.done[slot].group].append(loop.done[slot])
        clock.environment += loop.clock.environment
        clock.generation += loop.clock.generation
        clock.total += loop.clock.total
    place = {(job.group, job.sample): number for number, job in enumerate(jobs)}
    together = [episode for group in played.values() for episode in group]
    return sorted(together, key=lambda one: place[one.group, one.sample]), clock


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


@dataclass
class BranchingLoop(RolloutLoop):
    """A rollout some of whose jobs begin at ``forks`` (by slot), and that, when ``saving``, fills ``points``."""

    forks: dict[int, Fork] = field(default_factory=dict)
    points: Points = field(default_factory=dict)
    saving: bool = False
    replaying: dict[int, int] = field(default_factory=dict)  # by slot: turns whose action has been replayed

    def _start(self, slot: int, job: Job) -> None:
        fork = self.forks.get(slot)
        if fork is None:
            super()._start(slot, job)
            return
        if fork.token is None:
            super()._start(slot, job)
        else:
            self.states[slot] = EpisodeState(slot, episode_of(job))
            self.pool.restore(slot, fork.token)
            self.waiting.add(slot)
        episode = self.states[slot].episode
        episode.parent, episode.fork, episode.turns = fork.parent.sample, fork.turn, fork.shared

    def _enter(self, state: EpisodeState, event: Event) -> str | None:
        fork = self.forks.get(state.slot)
        under_way = event.kind == "step" and state.slot not in self.replaying
        if fork is None or under_way or event.kind == "failed":
            return super()._enter(state, event)
        seen = fork.turn  # which of the parent's turns this should be the observation of
        if fork.token is None:
            seen = self.replaying.get(state.slot, 0) if event.kind == "step" else 0
            state.episode.replayed += event.kind == "step"
        if difference := _difference(fork.parent.turns, seen, event):
            state.episode.info["error"] = f"the branch was given up: before turn {seen + 1} {difference}"
            return "failed"
        if seen < fork.turn:
            state.episode.restarts += event.kind == "restarted"
            self.replaying[state.slot] = seen + 1
            self.pool.step(state.slot, fork.parent.turns[seen].action)
            self.waiting.add(state.slot)
            return None
        self.replaying.pop(state.slot, None)
        return super()._enter(state, event if event.kind == "restarted" else event._replace(kind="restored"))

    def _act(self, slot: int, turn: Turn | None) -> None:
        if turn is not None and self.saving:
            self._save(slot)
        super()._act(slot, turn)

    def _save(self, slot: int) -> None:
        """Keep where the world stands, if a branch may begin there; a world that cannot be put back is asked once."""
        episode = self.states[slot].episode
        turn = len(episode.turns)
        if turn <= episode.fork:
            return
        try:
            self.points[episode.group, episode.sample, turn] = self.pool.save(slot)
        except CannotRestore as error:
            self.points.pop((episode.group, episode.sample, turn), None)  # of a try that began again since
            if not self.points:
                self.saving = False
                warnings.warn(f"branches replay the actions up to where they begin: {error}", stacklevel=2)


def _difference(turns: Sequence[Turn], seen: int, event: Event) -> str:
    """How the world differs from what the parent met before its turn ``seen``; '' where it does not."""
    if event.terminated or event.truncated:
        return "the world ended the episode, which had gone on"
    if event.observation != turns[seen].observation:
        return f"the world says {event.observation[:80]!r}, and had said {turns[seen].observation[:80]!r}"
    if event.info.get("state") != turns[seen].state:
        return f"the world is in state {event.info.get('state')!r:.80}, and had been in {turns[seen].state!r:.80}"
    if event.kind == "step" and event.reward != turns[seen - 1].reward:
        return f"the world pays {event.reward:g}, and had paid {turns[seen - 1].reward:g}"
    return ""


def share_turns(episodes: Sequence[Episode]) -> None:
    """Put the shared turns before the own ones, in place, where ``turns`` of the branches hold their own alone."""
    known = {(episode.group, episode.sample): episode for episode in episodes}
    for episode in sorted(episodes, key=lambda one: one.sample):  # a parent comes before its branches
        if episode.parent is not None:
            episode.turns[:0] = known[episode.group, episode.parent].turns[: episode.fork]
