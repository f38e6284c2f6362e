"""Rollouts: one agent runs many episodes at once over a pool of environments.

One loop serves two needs. In batches, all live episodes wait for each other: what is decoded together then depends on
the jobs alone. Floating-point sums depend on what is decoded together, so this is what makes a run repeat bit for bit.
Asynchronously no episode waits for another, which is faster with slow environments, and no run repeats.

One thread runs the loop. Neither agent nor pool therefore needs a lock, and ``rollout.ahead`` gives both to its thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from gagpo.agents.agent import Agent, AsyncAgent, EpisodeState
from gagpo.agents.jobs import EpisodeSink, Job, JobList, JobSource, derive_seed, group_jobs
from gagpo.data import Episode, Turn
from gagpo.envs.pool import Event, Pool
from gagpo.model.spans import span

__all__ = [
    "Clock",
    "EpisodeSink",
    "Job",
    "JobList",
    "JobSource",
    "RolloutLoop",
    "apply_event",
    "derive_seed",
    "group_jobs",
    "rollout",
]

POLL_SECONDS = 0.005  # wait for the agent before the pool is checked again; short, since environments idle meanwhile


@dataclass
class Clock:
    """Where a rollout's wall time went, in seconds."""

    environment: float = 0.0
    generation: float = 0.0
    total: float = 0.0


def rollout(
    agent: Agent,
    pool: Pool,
    jobs: Sequence[Job],
    *,
    concurrency: int = 256,
    deterministic: bool = True,
    on_finish: Callable[[Episode], None] | None = None,
) -> tuple[list[Episode], Clock]:
    """Run every job; returns the episodes in the order of the jobs.

    concurrency: most episodes under way; a finished one is replaced by the next job.
    deterministic: wait for all live episodes before the agent answers, so that batches, and with them floating-point
        sums and sampled tokens, depend on the jobs alone and a run repeats bit for bit. Otherwise each episode goes on
        as soon as its environment or the agent has answered.
    on_finish: called with every episode as it ends.
    """
    job_list, clock = JobList(jobs, on_finish), Clock()
    RolloutLoop(agent, pool, job_list, job_list, concurrency, clock).run(deterministic)
    return job_list.episodes, clock


class RolloutLoop:
    """Runs the jobs of a source and delivers their episodes to a sink.

    An episode waits for its environment (``waiting``), for the agent's attention (``ready``) or for a response. One
    thread runs the loop, and only it uses ``agent`` and ``pool`` meanwhile.

    concurrency: most episodes under way.
    clock: the time spent is added to it.
    states: the episodes under way, by slot.
    responding: number of responses under way in an asynchronous agent.
    """

    def __init__(
        self, agent: Agent, pool: Pool, source: JobSource, sink: EpisodeSink, concurrency: int, clock: Clock
    ) -> None:
        self.agent = agent
        self.pool = pool
        self.source = source
        self.sink = sink
        self.concurrency = concurrency
        self.clock = clock
        self.states: dict[int, EpisodeState] = {}
        self.responding = 0
        self._waiting: set[int] = set()
        self._ready: list[int] = []
        self._outcomes: dict[int, str] = {}  # by slot: of episodes that have ended and are not delivered yet

    def run(self, deterministic: bool) -> None:
        """Run jobs until the source has no more, see :func:`rollout`."""
        started = time.perf_counter()
        try:
            if deterministic or not isinstance(self.agent, AsyncAgent):
                self._run_in_batches(deterministic)
            else:
                self._run_async(self.agent)
        except BaseException:
            # Clean up after an interruption at any line, without hiding it.
            for slot in list(self.states):
                with suppress(Exception):
                    self.agent.forget(slot)
                with suppress(Exception):
                    self.pool.release(slot)
            raise
        self.clock.total += time.perf_counter() - started

    def settle(self) -> None:
        """Wait until every environment has answered, and deliver the episodes that have ended."""
        while self._waiting:
            self._take_events(None)
        self._deliver_ended()

    def _run_in_batches(self, deterministic: bool) -> None:
        """The agent answers all ready episodes before the pool is checked again."""
        while self._start_jobs():
            started = time.perf_counter()
            with span("environments"):
                while self._waiting and (deterministic or not self._ready):
                    self._take_events(None)
                self._deliver_ended()
            self.clock.environment += time.perf_counter() - started
            if not self._ready:
                continue
            started = time.perf_counter()
            slots = self._take_ready()
            with span("prompts and actions"):
                turns = self.agent.decide([self.states[slot] for slot in slots])
            self.clock.generation += time.perf_counter() - started
            for slot, turn in zip(slots, turns, strict=True):
                self._act(slot, turn)

    def _run_async(self, agent: AsyncAgent) -> None:
        """Exchange episodes between agent and pool as soon as either has answered.

        An agent in this process only works inside ``collect``, which is therefore kept short while the pool is busy. If
        the agent fails, episodes that end with its earlier answers are finished first.
        """
        while self._start_jobs():
            started = time.perf_counter()
            if self._waiting:
                with span("environments"):
                    # With nothing else to do, sleep until an environment answers; otherwise only look.
                    self._take_events(0.0 if self.responding or self._ready else None)
                self._deliver_ended()
            answered = time.perf_counter()
            self.clock.environment += answered - started
            if self._ready and not self.source.withholding:
                self._submit(agent, self._take_ready())
            if self.responding:
                with self._settling(), span("prompts and actions"):
                    answers = agent.collect(POLL_SECONDS if self._waiting else None)
                for slot, turn in answers:
                    self.responding -= 1
                    self._act(slot, turn)
                # The environments step while the next tokens are sampled, not only at the next wait for them.
                self.pool.flush()
            self.clock.generation += time.perf_counter() - answered

    def _submit(self, agent: AsyncAgent, slots: Sequence[int]) -> None:
        with self._settling():
            full_slots = agent.submit([self.states[slot] for slot in slots])
        self.responding += len(slots) - len(full_slots)
        for slot in full_slots:
            self._act(slot, None)

    @contextmanager
    def _settling(self) -> Iterator[None]:
        """If the agent fails in the block, wait for the environments first: their answers may end episodes."""
        try:
            yield
        except Exception:
            self.settle()
            raise

    def _start_jobs(self) -> bool:
        """Start as many jobs as ``concurrency`` allows; False if no episode is under way."""
        self.source.prepare(self)
        while len(self.states) < self.concurrency:
            next_job = self.source.next_job()
            if next_job is None:
                break
            self._start(*next_job)
        return bool(self.states)

    def _start(self, slot: int, job: Job) -> None:
        episode = Episode(job.task, group=job.group, sample=job.sample, seed=job.seed, temperature=job.temperature)
        self.states[slot] = EpisodeState(slot, episode)
        self.pool.reset(slot, job.task, job.environment_seed)
        self._waiting.add(slot)

    def _take_events(self, timeout: float | None) -> None:
        """Apply the pool's answers; episodes that go on are ready for the agent."""
        if timeout is None:
            timeout = self.source.wait_limit()
        for event in self.pool.wait(timeout):
            self._waiting.discard(event.slot)
            outcome = apply_event(self.states[event.slot], event)
            if event.kind == "restarted":
                # The engine's cache holds the lost episode's tokens, and a program's last request belongs to it.
                self.agent.forget(event.slot)
            turns = self.states[event.slot].episode.turns
            if outcome:
                self._outcomes[event.slot] = outcome
            elif turns and turns[-1].pending_action is not None:
                self._step(event.slot, turns[-1].pending_action)
            else:
                self._ready.append(event.slot)

    def _deliver_ended(self) -> None:
        """Finish ended episodes in the order of slots, so that the engine's cache layout does not depend on timing."""
        while self._outcomes:
            slot = min(self._outcomes)
            self._finish(slot, self._outcomes.pop(slot))

    def _take_ready(self) -> list[int]:
        """The slots that are ready, in order, so that batches do not depend on timing."""
        slots, self._ready = sorted(self._ready), []
        return slots

    def _act(self, slot: int, turn: Turn | None) -> None:
        """Complete a turn and send its action to the pool; without a turn, end the episode.

        A turn that was not sampled rejects a program's request: the program reads why, and the episode goes on.
        """
        if turn is None:
            self._finish(slot, "truncated")
            return
        if not turn.sampled:
            self._step(slot, turn.sent_action)
            return
        state = self.states[slot]
        screenshot = str(state.info.get("screenshot", ""))
        state.episode.turns.append(turn.with_observation(state.observation, state.info.get("state"), screenshot))
        self._step(slot, turn.sent_action)

    def _step(self, slot: int, action: str) -> None:
        self.pool.step(slot, action)
        self._waiting.add(slot)

    def _finish(self, slot: int, outcome: str) -> None:
        state = self.states.pop(slot)
        episode = state.episode
        episode.outcome = outcome
        if outcome != "failed":  # after a failure the state is unknown
            episode.end_observation, episode.end_state = state.observation, state.info.get("state")
        self.agent.forget(slot)
        self.pool.release(slot)
        self.sink.deliver(slot, episode)


MAX_DIFF = 20_000  # characters of an action's changes that an episode keeps

_STANDARD_INFO = {
    "task", "task_type", "split", "turn", "success", "valid", "state", "admissible_actions", "expert_action",
    "screenshot", "diff",
}  # fmt: skip
"""Entries of ``info`` that have a field of their own or are not kept."""


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
        diff = str(event.info.get("diff", ""))[:MAX_DIFF]
        turn = episode.turns[-1].with_result(event.reward, bool(event.info.get("valid", True)), diff)
        if turn.calls:
            turn = turn.with_answer(event.observation)
            state.observation = turn.answers
        episode.turns[-1] = turn
    if not (event.terminated or event.truncated):
        return None
    episode.success = bool(event.info.get("success", False))
    scalars = (str, int, float, bool)
    episode.info.update({k: v for k, v in event.info.items() if k not in _STANDARD_INFO and isinstance(v, scalars)})
    return "terminated" if event.terminated else "truncated"
