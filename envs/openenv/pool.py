"""A pool of sessions on one or several OpenEnv servers.

The caller's thread owns the slots. Each request runs in a thread of an executor, which waits for the server; the
connections live in the event loop of the environment. Every request has a deadline, so every one leads to an answer.

A session that fails costs its own episode, which starts over in a session of the server with the fewest episodes. A
server without connection gets no episode for some seconds, and is then tried again, so that one that was restarted
takes part again. While no server can be reached, episodes wait, until ``reset_timeout`` has passed.
"""

from __future__ import annotations

import asyncio
import math
import queue
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Protocol

from gagpo.envs.base import Info
from gagpo.envs.openenv.errors import ServerFailed, ServerFull, ServerLost, ServerSilent
from gagpo.envs.openenv.loop import CLOSE_SECONDS, LoopThread
from gagpo.envs.openenv.session import Session
from gagpo.envs.pool.slots import BasePool, Event, SlotEpisode, Worker
from gagpo.envs.pool.wire import Request, describe
from gagpo.envs.pool.worker import ResetAnswer, StepAnswer, reset_answer, step_answer

MAX_THREADS = 1024  # requests under way at once; more wait for a thread
FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS = 1.0, 30.0  # between attempts to reach a lost server; doubled each time
FULL_SECONDS = 1.0  # until a server that admits no further session is asked again
POLL_SECONDS = 0.2  # between looks at waiting episodes


class SessionEnv(Protocol):
    """What the pool uses of an environment with a session at a server.

    It is :class:`gagpo.envs.openenv.env.RemoteEnv`, which opens this pool and therefore cannot be imported here.
    """

    urls: Sequence[str]
    session: Session
    loop: LoopThread
    reset_timeout: float

    def at(self, url: str) -> SessionEnv: ...

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[str, Info]: ...

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]: ...

    def end_session(self) -> None: ...

    def close(self) -> None: ...


class ServerWorker(Worker):
    """A server. available_at: when it may get another episode (``time.monotonic``); pause: before the next attempt."""

    def __init__(self, url: str):
        super().__init__()
        self.url = url
        self.available_at = 0.0
        self.pause = FIRST_RETRY_SECONDS
        self.idle: list[SessionEnv] = []  # sessions without an episode

    def lose(self, now: float) -> bool:
        """Give it no episode for a while; whether it was thought to be there."""
        if now < self.available_at:
            return False
        self.available_at = now + self.pause
        self.pause = min(2 * self.pause, LAST_RETRY_SECONDS)
        return True


class SessionPool(BasePool):
    """Steps environments in sessions of servers. For one thread only.

    env: describes the servers; closed with the pool.
    max_restarts: how often one episode may start over.

    Raises:
        ServerLost: from ``wait``, if no server could be reached for ``env.reset_timeout`` seconds.
    """

    def __init__(self, env: SessionEnv, max_restarts: int = 3):
        self._env = env
        self._servers = [ServerWorker(url) for url in env.urls]
        super().__init__(self._servers, max_restarts)
        self._executor = ThreadPoolExecutor(MAX_THREADS, "session")
        self._answers: queue.SimpleQueue[tuple[int, SessionEnv, StepAnswer | ResetAnswer | Exception]] = (
            queue.SimpleQueue()
        )
        self._sessions: dict[int, SessionEnv] = {}  # by the number of their episode
        self._busy: set[SessionEnv] = set()  # with a request under way
        self._waiting: dict[int, tuple[SlotEpisode, float]] = {}  # for a server, since when; by number
        self._last_error = ""

    def flush(self) -> None:
        for server in self._servers:
            requests, server.outbox = server.outbox, []
            for request in requests:
                self._send(server, request)

    def close(self) -> None:
        """Close all sessions; idempotent."""
        super().close()
        self._waiting.clear()
        idle_envs = [env for server in self._servers for env in server.idle]
        sessions = [env.session for env in (*self._sessions.values(), *self._busy, *idle_envs)]
        with suppress(TimeoutError):
            self._env.loop.run(_close_all(sessions), CLOSE_SECONDS)
        self._env.close()  # ends the event loop, and with it every request under way
        self._executor.shutdown(cancel_futures=True)

    def release(self, slot: int) -> None:
        episode = self._episode_by_slot.get(slot)
        if episode is not None:
            self._waiting.pop(episode.number, None)
        super().release(slot)

    def _declares_limit(self) -> bool:
        return True  # the environment counts turns

    def _choose_worker(self, previous: SlotEpisode | None) -> Worker:
        now = time.monotonic()
        if previous is not None:
            server = previous.worker
            if isinstance(server, ServerWorker) and server.available_at <= now:
                return server  # whose session the new episode can reuse
        return self._available(now) or super()._choose_worker(None)

    def _available(self, now: float) -> ServerWorker | None:
        """The server with the fewest episodes of those that may get one."""
        servers = [server for server in self._servers if server.available_at <= now]
        return min(servers, key=lambda server: len(server.episodes), default=None)

    # Requests ---------------------------------------------------------------------------------------------------------

    def _send(self, server: ServerWorker, request: Request) -> None:
        operation, number, *_arguments = request
        if operation == "release":
            env = self._sessions.pop(number, None)
            if env is not None and env not in self._busy:
                server.idle.append(env)
            return  # a busy one is put back or closed when its answer comes
        env = self._sessions.get(number)
        if env is None:
            env = server.idle.pop() if server.idle else self._env.at(server.url)
            self._sessions[number] = env
        self._busy.add(env)
        self._executor.submit(self._run, env, request)

    def _run(self, env: SessionEnv, request: Request) -> None:
        """Wait for the answer to a request, in a thread of the executor."""
        operation, number, *arguments = request
        answer: StepAnswer | ResetAnswer | Exception
        try:
            if operation == "step":
                answer = step_answer(env.step(*arguments))
            else:
                task, seed = arguments
                answer = reset_answer(env.reset(seed=seed, options={"task": task}))
        except Exception as error:
            env.end_session()  # a new connection for the next episode: this one may deliver a late answer
            answer = error
        self._answers.put((number, env, answer))

    # Answers ----------------------------------------------------------------------------------------------------------

    def _collect(self, deadline: float, block: bool) -> None:
        now = time.monotonic()
        self._send_waiting(now)
        timeout = min(deadline - now, POLL_SECONDS) if self._waiting else deadline - now
        with suppress(queue.Empty):
            # Waiting without a timeout is safe: every request has a deadline.
            self._take(*self._answers.get(block, None if timeout == math.inf else max(0.0, timeout)))
            while True:
                self._take(*self._answers.get_nowait())

    def _take(self, number: int, env: SessionEnv, answer: StepAnswer | ResetAnswer | Exception) -> None:
        self._busy.discard(env)
        episode = self._episode(number)
        if episode is None or self._sessions.get(number) is not env:  # the slot was released or reset meanwhile
            server = next(server for server in self._servers if server.url == env.session.url)
            server.idle.append(env)
            return
        if isinstance(answer, Exception):
            self._fail(episode, answer)
            return
        assert isinstance(episode.worker, ServerWorker)
        episode.worker.pause = FIRST_RETRY_SECONDS
        if len(answer) == 5:
            self._deliver(episode, Event(episode.slot, "step", *answer))
        else:
            observation, info = answer
            self._deliver(episode, Event(episode.slot, "reset", observation, 0.0, False, False, info))

    def _episode(self, number: int) -> SlotEpisode | None:
        return next((server.episodes[number] for server in self._servers if number in server.episodes), None)

    # Faults -----------------------------------------------------------------------------------------------------------

    def _fail(self, episode: SlotEpisode, error: Exception) -> None:
        """Start an episode over on an available server, or answer ``failed`` if it broke too often.

        A server that is full or cannot be reached is not the episode's fault, if nothing was asked of it yet.
        """
        now = time.monotonic()
        server = episode.worker
        assert isinstance(server, ServerWorker)
        self._last_error = str(error) if isinstance(error, ServerFailed) else describe(error)
        if isinstance(error, ServerFull):
            server.available_at = max(server.available_at, now + FULL_SECONDS)
        elif isinstance(error, ServerLost):
            self.counters.crashes += server.lose(now)
        elif isinstance(error, ServerSilent):
            self.counters.hangs += 1
        else:
            self.counters.errors += 1
        env = self._sessions.pop(episode.number)
        server.idle.append(env)
        if isinstance(error, ServerFull | ServerLost) and episode.pending == "reset":
            self._waiting[episode.number] = (episode, now)
            return
        episode.failures += 1
        if episode.failures > self._max_restarts:
            self._start_over(episode, self._last_error)  # answers failed
            return
        self.counters.restarts += 1
        episode.error = self._last_error
        self._waiting[episode.number] = (episode, now)

    def _send_waiting(self, now: float) -> None:
        """Start the waiting episodes on the available servers."""
        for number, (episode, since) in list(self._waiting.items()):
            server = self._available(now)
            if server is None:
                if now - since > self._env.reset_timeout:
                    raise ServerLost(
                        f"no server took an episode for {self._env.reset_timeout:g} s ({self._last_error})",
                        where=", ".join(self._env.urls),
                        advice="start one, or admit more sessions (gagpo openenv --sessions)",
                    )
                continue
            del self._waiting[number]
            del episode.worker.episodes[number]
            episode.worker = server
            server.episodes[number] = episode
            server.request(episode, "reset", *episode.reset_arguments)
        self.flush()


async def _close_all(sessions: Iterable[Session]) -> None:
    await asyncio.gather(*(session.close() for session in sessions), return_exceptions=True)
