"""Rollouts: one agent plays many episodes at once over a pool of environments."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from gagpo.agents.agent import Agent, AsyncAgent, EpisodeState
from gagpo.data.episodes import Episode, Turn
from gagpo.envs.pool import Event, Pool
from gagpo.model.spans import span

POLL_SECONDS = 0.005  # wait for the agent before the pool is checked again


@dataclass(frozen=True)
class Job:
    """One episode to play. Jobs of a group share task and environment seed.

    sample: number of the episode within the group.
    seed: of the agent's choices.
    temperature: of the responses; None for the agent's own.
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
    """A 48-bit seed determined by the parts, the same in every process."""
    digest = hashlib.blake2b("\0".join(map(str, parts)).encode(), digest_size=6).digest()
    return int.from_bytes(digest, "big")


def group_jobs(
    tasks: Sequence[str],
    samples: int | Sequence[int],
    seed: int,
    label: object = 0,
    temperatures: Sequence[float] | None = None,
) -> list[Job]:
    """``samples`` jobs for each task; the k-th task forms group k.

    label: gives different rollouts different seeds.
    temperatures: one for each task; None for the agent's own.
    """
    jobs = []
    for group, task in enumerate(tasks):
        shared = derive_seed(seed, label, group, task) % 2**31
        temperature = None if temperatures is None else float(temperatures[group])
        for sample in range(samples if isinstance(samples, int) else samples[group]):
            own = derive_seed(seed, label, group, task, sample)
            jobs.append(Job(task, group, sample, own, shared, temperature))
    return jobs


def rollout(
    agent: Agent,
    pool: Pool,
    jobs: Sequence[Job],
    *,
    concurrency: int = 256,
    deterministic: bool = True,
    on_finish: Callable[[Episode], None] | None = None,
) -> tuple[list[Episode], Clock]:
    """Play every job; returns the episodes in the order of the jobs.

    concurrency: most episodes under way; a finished one is replaced by the next job.
    deterministic: wait for all live episodes before the agent answers, so that batches, and with them floating-point
        sums and sampled tokens, depend on the jobs alone and a run repeats bit for bit. Otherwise each episode goes on
        as soon as its environment or the agent has answered.
    """
    loop = RolloutLoop(agent, pool, jobs, concurrency, on_finish)
    loop.play(deterministic)
    return [loop.done[slot] for slot in sorted(loop.done)], loop.clock


@dataclass
class RolloutLoop:
    """Episodes under way, which wait for the pool (``waiting``) or for the agent (``ready``)."""

    agent: Agent
    pool: Pool
    jobs: Sequence[Job]
    concurrency: int
    on_finish: Callable[[Episode], None] | None
    clock: Clock = field(default_factory=Clock)
    states: dict[int, EpisodeState] = field(default_factory=dict)  # by slot, the index of the job
    done: dict[int, Episode] = field(default_factory=dict)
    waiting: set[int] = field(default_factory=set)
    ready: list[int] = field(default_factory=list)
    over: dict[int, str] = field(default_factory=dict)  # by slot: outcome of an episode that is not finished yet
    upcoming: int = 0

    def play(self, deterministic: bool) -> None:
        """Play every job to its end, see :func:`rollout`."""
        begun = time.perf_counter()
        try:
            if deterministic or not isinstance(self.agent, AsyncAgent):
                self.play_in_batches(deterministic)
            else:
                self.play_async(self.agent)
        except BaseException:
            # Clean up after an interruption at any line, without hiding it.
            for slot in list(self.states):
                with suppress(Exception):
                    self.agent.forget(slot)
                with suppress(Exception):
                    self.pool.release(slot)
            raise
        self.clock.total = time.perf_counter() - begun

    def play_in_batches(self, deterministic: bool) -> None:
        """The agent answers all ready episodes before the pool is checked again."""
        while self._begin():
            since = time.perf_counter()
            with span("environments"):
                while self.waiting and (deterministic or not self.ready):
                    self._take_events(None)
                self._leave_over()
            self.clock.environment += time.perf_counter() - since
            if not self.ready:
                continue
            since = time.perf_counter()
            slots = self._take_ready()
            with span("prompts and actions"):
                turns = self.agent.decide([self.states[slot] for slot in slots])
            self.clock.generation += time.perf_counter() - since
            for slot, turn in zip(slots, turns, strict=True):
                self._act(slot, turn)

    def play_async(self, agent: AsyncAgent) -> None:
        """Exchange episodes between agent and pool as soon as either has answered.

        An agent in this process only works inside ``collect``, which is therefore kept short while the pool is busy. If
        the agent fails, episodes that end with its earlier answers are finished first.
        """
        thinking = 0
        while self._begin():
            since = time.perf_counter()
            if self.waiting:
                with span("environments"):
                    self._take_events(0.0 if thinking or self.ready else None)
                self._leave_over()
            now = time.perf_counter()
            self.clock.environment += now - since
            if slots := self._take_ready():
                with self._finishing():
                    full = agent.submit([self.states[slot] for slot in slots])
                thinking += len(slots) - len(full)
                for slot in full:
                    self._act(slot, None)
            if thinking:
                with self._finishing(), span("prompts and actions"):
                    answers = agent.collect(POLL_SECONDS if self.waiting else None)
                for slot, turn in answers:
                    thinking -= 1
                    self._act(slot, turn)
                self.pool.flush()
            self.clock.generation += time.perf_counter() - now

    @contextmanager
    def _finishing(self) -> Iterator[None]:
        """If the agent fails in the block, wait for the environments first: their answers may end episodes."""
        try:
            yield
        except Exception:
            while self.waiting:
                self._take_events(None)
            self._leave_over()
            raise

    def _begin(self) -> bool:
        """Start as many jobs as ``concurrency`` allows; False when all are played."""
        while self.upcoming < len(self.jobs) and len(self.states) < self.concurrency:
            self._start(self.upcoming, self.jobs[self.upcoming])
            self.upcoming += 1
        return bool(self.states)

    def _start(self, slot: int, job: Job) -> None:
        episode = Episode(job.task, group=job.group, sample=job.sample, seed=job.seed, temperature=job.temperature)
        self.states[slot] = EpisodeState(slot, episode)
        self.pool.reset(slot, job.task, job.environment_seed)
        self.waiting.add(slot)

    def _take_events(self, timeout: float | None) -> None:
        """Apply the pool's answers; episodes that go on are ready for the agent."""
        for event in self.pool.wait(timeout):
            self.waiting.discard(event.slot)
            outcome = apply_event(self.states[event.slot], event)
            if event.kind == "restarted":
                self.agent.forget(event.slot)
            if outcome:
                self.over[event.slot] = outcome
            elif (turns := self.states[event.slot].episode.turns) and turns[-1].upcoming is not None:
                self._step(event.slot, turns[-1].upcoming)
            else:
                self.ready.append(event.slot)

    def _leave_over(self) -> None:
        """Finish ended episodes in the order of slots, so that the engine's cache layout does not depend on timing."""
        while self.over:
            slot = min(self.over)
            self._finish(slot, self.over.pop(slot))

    def _take_ready(self) -> list[int]:
        """The slots that are ready, in order."""
        slots, self.ready = sorted(self.ready), []
        return slots

    def _act(self, slot: int, turn: Turn | None) -> None:
        """Complete a turn and send its action to the pool; without a turn, end the episode.

        A turn that was not sampled rejects a program's request: the program reads why, and the episode goes on.
        """
        if turn is None:
            self._finish(slot, "truncated")
            return
        if not turn.sampled:
            self._step(slot, turn.completion)
            return
        state = self.states[slot]
        turn.observation, turn.state = state.observation, state.info.get("state")
        state.episode.turns.append(turn)
        self._step(slot, turn.completion or (turn.calls[0].action if turn.calls else turn.action))

    def _step(self, slot: int, action: str) -> None:
        self.pool.step(slot, action)
        self.waiting.add(slot)

    def _finish(self, slot: int, outcome: str) -> None:
        state = self.states.pop(slot)
        episode = state.episode
        episode.outcome = outcome
        if outcome != "failed":
            episode.end_observation, episode.end_state = state.observation, state.info.get("state")
        self.agent.forget(slot)
        self.pool.release(slot)
        self._deliver(slot, episode)

    def _deliver(self, slot: int, episode: Episode) -> None:
        self.done[slot] = episode
        if self.on_finish:
            self.on_finish(episode)


_KNOWN = {"task", "task_type", "split", "turn", "success", "valid", "state", "admissible_actions", "expert_action"}


def apply_event(state: EpisodeState, event: Event) -> str | None:
    """Apply an event to its episode; returns the outcome if the episode has ended."""
    episode = state.episode
    if event.kind == "failed":
        episode.info["error"] = event.error
        return "failed"
    state.observation, state.info = event.observation, event.info
    if event.kind in ("reset", "restarted"):
        episode.turns.clear()
        episode.restarts += event.kind == "restarted"
        episode.task_type = str(event.info.get("task_type", ""))
        episode.split = str(event.info.get("split", ""))
        return None
    if episode.turns:  # a program whose first request was rejected has none
        turn = episode.turns[-1]
        turn.finish(event.reward, bool(event.info.get("valid", True)))
        if turn.calls:
            state.observation = turn.answer(event.observation)
    if not (event.terminated or event.truncated):
        return None
    episode.success = bool(event.info.get("success", False))
    scalars = (str, int, float, bool)
    episode.info.update({k: v for k, v in event.info.items() if k not in _KNOWN and isinstance(v, scalars)})
    return "terminated" if event.terminated else "truncated"
