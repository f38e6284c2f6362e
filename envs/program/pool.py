"""Programs as a pool: every request of a program is an observation, and the response is its answer.

Two threads. The caller's thread owns the slots; it passes batches of operations to the event loop
(``call_soon_threadsafe``) and waits on a queue of outcomes. The gateway's thread runs the event loop, in which the
server, the programs' timers and all episodes live; it never waits for the caller. Every reset and every answer leads
to one outcome at the latest when the program's deadline passes, so the caller may wait without a timeout.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gagpo.base.errors import GagpoError
from gagpo.envs.gateway.messages import Completion, Json
from gagpo.envs.pool.slots import BasePool, Event, Worker
from gagpo.envs.pool.wire import Request
from gagpo.envs.program.episodes import Judge, Limits, ProgramEpisode, ProgramFault, ProgramOutcome
from gagpo.envs.program.runs import Runs
from gagpo.envs.program.server import ProgramServer
from gagpo.envs.program.variables import passed
from gagpo.envs.tasks import Task

CLOSE_SECONDS = 5.0  # for the gateway's thread to end
ANSWER_SECONDS = 0.05  # for the last answers to leave before the server ends


class ProgramPool(BasePool):
    """Runs one program for each episode, and a server for all in a thread. For one thread only.

    An episode is given up when its program crashed, hung or ended without a reward more than ``max_restarts`` times.
    Actions are those of :class:`gagpo.envs.gateway.messages.Completion`; other text is the content of an answer.

    program: arguments of :class:`gagpo.envs.program.process.ProgramProcess`.
    find: gives the task and the row of an id.
    memory: megabytes that a program may allocate; None for no limit.
    variables: environment variables of all programs; by default :func:`gagpo.envs.program.variables.passed`.
    hidden: columns that only the reward function gets; by default those that its parameters name.
    reward_variables: environment variables that only the reward function gets.
    """

    def __init__(
        self,
        program: dict[str, Any],
        limits: Limits,
        find: Callable[[str], tuple[Task, Json]],
        memory: int | None = None,
        max_restarts: int = 1,
        variables: Mapping[str, str] | None = None,
        hidden: Sequence[str] | None = None,
        reward_variables: Mapping[str, str] | None = None,
    ):
        self._worker = Worker()
        super().__init__([self._worker], max_restarts)
        self._outcomes: queue.SimpleQueue[tuple[int, ProgramOutcome]] = queue.SimpleQueue()
        self._limits = limits
        self._find = find
        self._programs: dict[int, ProgramEpisode] = {}  # by the number of the slot's episode; of the gateway's thread
        self._loop = asyncio.new_event_loop()
        self._server = ProgramServer()
        variables = passed(()) if variables is None else variables
        has_sandbox = program.get("sandbox", "none") != "none"
        # A reward function runs separated, in which no sandbox can be made: it gets another fork server.
        self._runs = Runs(self._loop, {**program, "reward": ""} if has_sandbox else program, memory, variables)
        self._judge: Judge | None = None
        if program["reward"]:
            runs = self._runs
            if has_sandbox:
                runs = Runs(self._loop, {**program, "command": [], "sandbox": "none"}, memory, variables)
            columns = runs.secret_columns if hidden is None else hidden
            self._judge = Judge(runs, frozenset(columns), reward_variables or {}, runs.needs_token_ids)
        self._thread = threading.Thread(target=self._serve, name="gateway", daemon=True)
        self._thread.start()

    def flush(self) -> None:
        if self._worker.outbox:
            self._loop.call_soon_threadsafe(self._carry_out, list(self._worker.outbox))
            self._worker.outbox.clear()

    def close(self) -> None:
        """End all programs and the server; idempotent."""
        super().close()
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop)
            self._thread.join(CLOSE_SECONDS)
        self._runs.close()
        if self._judge is not None:
            self._judge.runs.close()

    def _declares_limit(self) -> bool:
        return True

    def _collect(self, deadline: float, block: bool) -> None:
        with contextlib.suppress(queue.Empty):
            # Waiting without a timeout is safe: every program has a deadline.
            timeout = None if deadline == math.inf else max(0.0, deadline - time.monotonic())
            self._take(*self._outcomes.get(block, timeout))
            while True:
                self._take(*self._outcomes.get_nowait())

    def _take(self, number: int, outcome: ProgramOutcome) -> None:
        episode = self._worker.episodes.get(number)
        if episode is None:  # the slot was released or reset after this outcome was queued
            return
        if isinstance(outcome, ProgramFault):
            counters = self.counters
            setattr(counters, outcome.counter, getattr(counters, outcome.counter) + 1)
            episode.failures += 1
            self._start_over(episode, outcome.reason)
        else:
            self._deliver(episode, Event(episode.slot, episode.pending, *outcome))

    # In the thread of the server --------------------------------------------------------------------------------------

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._serving = self._loop.create_task(self._server.serve())
        with contextlib.suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._serving)
        unfinished = asyncio.all_tasks(self._loop)
        for task in unfinished:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*unfinished, return_exceptions=True))
        self._loop.close()

    def _stop(self) -> None:
        """End the episodes, which answers their waiting requests with an error, and then the server."""
        for number in list(self._programs):
            self._release(number)
        self._loop.call_later(ANSWER_SECONDS, self._serving.cancel)

    def _carry_out(self, requests: Sequence[Request]) -> None:
        for operation, number, *arguments in requests:
            if operation == "step":
                self._programs[number].answer(Completion.of(arguments[0]))
                continue
            self._release(number)  # a reset of an episode that broke comes with the number of the broken one
            if operation == "reset":
                self._begin(number, *arguments)

    def _begin(self, number: int, name: str, seed: int | None) -> None:
        def report(outcome: ProgramOutcome) -> None:
            self._outcomes.put((number, outcome))

        try:
            task, row = self._find(name)
        except GagpoError as error:  # an unknown task
            report(ProgramFault("errors", str(error)))
            return
        episode = ProgramEpisode(task, row, self._judge, self._limits, self._loop, self._runs, report)
        self._programs[number] = episode
        episode.start(self._server.admit(episode) | {"GAGPO_SEED": str(seed or 0)})

    def _release(self, number: int) -> None:
        episode = self._programs.pop(number, None)
        if episode is not None:
            self._server.dismiss(episode)
            episode.close()
