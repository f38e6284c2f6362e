"""Playing a group as a tree: the tries from the start first, then branches of them, round by round."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from gagpo.agents.agent import Agent, EpisodeState
from gagpo.agents.branching.forks import Branching, Fork, Points, choose_forks
from gagpo.agents.episodes import Call, Episode, Turn
from gagpo.agents.rollout import Clock, Job, RolloutLoop, episode_of, rollout
from gagpo.envs.pool import Event, Pool
from gagpo.envs.saved import CannotRestore


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


@dataclass
class Replayed:
    """How far the shared turns have been played again: the turn under way, its actions so far, and what they paid."""

    turn: int = 0
    actions: int = 0
    reward: float = 0.0


@dataclass
class BranchingLoop(RolloutLoop):
    """A rollout some of whose jobs begin at ``forks`` (by slot), and that, when ``saving``, fills ``points``."""

    forks: dict[int, Fork] = field(default_factory=dict)
    points: Points = field(default_factory=dict)
    saving: bool = False
    replaying: dict[int, Replayed] = field(default_factory=dict)  # by slot

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
            state.episode.restarts += event.kind == "restarted"
            state.episode.replayed += event.kind == "step"
            outcome = self._replay(state, fork, event)
            if outcome != "replayed":
                return "failed" if outcome == "failed" else None
        elif difference := _difference(fork.parent.turns, seen, event, None):
            return self._give_up(state, seen, difference)
        self.replaying.pop(state.slot, None)
        # What the model is shown are the answers to all calls of the turn before, of which the world knows the last.
        kind = "restarted" if fork.token is not None and event.kind == "restarted" else "restored"
        shown = event._replace(kind=kind, observation=fork.parent.turns[fork.turn].observation)
        return super()._enter(state, shown)

    def _replay(self, state: EpisodeState, fork: Fork, event: Event) -> Literal["replayed", "under way", "failed"]:
        """Give the world the next action of the shared turns, until all of them have been played again.

        A turn of several calls is as many actions, each answered as it was. A world that differs gives the branch up.
        """
        turns, done = fork.parent.turns, Replayed()
        if event.kind == "step":
            done = self.replaying[state.slot]
            done.actions, done.reward = done.actions + 1, done.reward + event.reward
        paid = None
        if event.kind == "step" and done.actions < len(turns[done.turn].calls):
            difference = _unlike_answer(turns[done.turn].calls[done.actions - 1], event)
        else:
            if event.kind == "step":  # the turn's last action
                done, paid = Replayed(done.turn + 1), done.reward
            difference = _difference(turns, done.turn, event, paid)
        if difference:
            return self._give_up(state, done.turn, difference)
        if done.turn == fork.turn:
            return "replayed"
        self.replaying[state.slot] = done
        turn = turns[done.turn]
        self._step(state.slot, turn.calls[done.actions].action if turn.calls else turn.action)
        return "under way"

    def _give_up(self, state: EpisodeState, turn: int, difference: str) -> Literal["failed"]:
        state.episode.info["error"] = f"the branch was given up: before turn {turn + 1} {difference}"
        return "failed"

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


def _unlike_answer(call: Call, event: Event) -> str:
    """How what the world says after a call differs from the call's answer; '' where it does not."""
    if event.terminated or event.truncated:
        return "the world ended the episode, which had gone on"
    if call.told(event.observation) != call.answer:
        return f"the world says {event.observation[:80]!r}, and had said {str(call.answer)[:80]!r}"
    return ""


def _difference(turns: Sequence[Turn], seen: int, event: Event, paid: float | None) -> str:
    """How the world differs from what the parent met before its turn ``seen``; '' where it does not.

    paid: for the actions of the turn before, where they have just been played again.
    """
    before = turns[seen - 1] if seen else None
    if before is not None and before.calls:
        if unlike := _unlike_answer(before.calls[-1], event):
            return unlike
    elif event.terminated or event.truncated:
        return "the world ended the episode, which had gone on"
    elif event.observation != turns[seen].observation:
        return f"the world says {event.observation[:80]!r}, and had said {turns[seen].observation[:80]!r}"
    if event.info.get("state") != turns[seen].state:
        return f"the world is in state {event.info.get('state')!r:.80}, and had been in {turns[seen].state!r:.80}"
    if before is not None and paid is not None and paid != before.reward:
        return f"the world pays {paid:g}, and had paid {before.reward:g}"
    return ""


def share_turns(episodes: Sequence[Episode]) -> None:
    """Put the shared turns before the own ones, in place, where ``turns`` of the branches hold their own alone."""
    known = {(episode.group, episode.sample): episode for episode in episodes}
    for episode in sorted(episodes, key=lambda one: one.sample):  # a parent comes before its branches
        if episode.parent is not None:
            episode.turns[:0] = known[episode.group, episode.parent].turns[: episode.fork]
