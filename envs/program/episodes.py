"""Episodes of programs: their requests become observations one after another, with limits and deadlines.

Everything here runs in the gateway's event loop; the pool's thread only puts actions into it and takes outcomes out.
Program and model take turns, and each waits for the other in one place:

- The program waits in its HTTP request until :meth:`ProgramEpisode.answer` sets the request's future. This wait has no
  deadline here: the trainer may sample for a long time.
- The pool waits for an outcome, after a reset and after each answer. The program has ``limits.first_request`` or
  ``limits.next_request`` seconds to send its next request or to end, and ``limits.seconds`` in all. The timer stops
  while a request waits for its answer.

A program may send several requests at once. They are queued, and shown to the model one at a time.
"""

from __future__ import annotations

import json
import re
import secrets
from asyncio import AbstractEventLoop, Future, TimerHandle
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from gagpo.data import SUCCESS_ASSUMED
from gagpo.envs.gateway.conversations import Conversations
from gagpo.envs.gateway.messages import MAX_REWARD, ChatRequest, Completion, GatewayError, Json, unexpected
from gagpo.envs.program.runs import RunResult, Runs
from gagpo.envs.tasks import Task

NO_REWARD = (
    'the program ended without a reward: print {"reward": 1.0} as its last line, post it to $GAGPO_REWARD_URL, or set '
    "the argument reward of the environment"
)


class ProgramObservation(NamedTuple):
    """A request as the observation of the next turn, or the end of the episode.

    reward: earned since the last observation.
    """

    text: str
    reward: float
    terminated: bool
    truncated: bool
    info: Json


class ProgramFault(NamedTuple):
    """A program that ended without a result.

    counter: the field of :class:`gagpo.envs.pool.Counters` that counts it.
    """

    counter: str
    reason: str


ProgramOutcome = ProgramObservation | ProgramFault


class PendingRequest(NamedTuple):
    """A request that is not answered yet. The program's HTTP request waits for ``answer``."""

    request: ChatRequest
    state_key: str
    answer: Future[Completion]


@dataclass(frozen=True)
class Limits:
    """Limits of one episode.

    turns: requests that are answered.
    tokens: sampled tokens after which no request is answered.
    seconds: for the program's own work, without waiting for answers.
    first_request: seconds until the first request.
    next_request: seconds between an answer and the next request.
    """

    turns: int
    tokens: int
    seconds: float
    first_request: float
    next_request: float


@dataclass(frozen=True)
class Judge:
    """A reward function, of which the program knows nothing.

    hidden: columns of the row that only the function gets.
    variables: environment variables that only the function gets.
    token_ids: whether the function needs the ids of the sampled tokens.
    runs: starts the function.
    """

    runs: Runs
    hidden: frozenset[str] = frozenset()
    variables: Mapping[str, str] = field(default_factory=dict)
    token_ids: bool = False


@dataclass
class ProgramEpisode:
    """One run of the program. Everything happens in the thread of ``loop``.

    row: the task's row in the file.
    judge: the reward function; None if the program reports its reward.
    report_outcome: takes an outcome, one for each reset and each answer.
    token: the API key that identifies the episode in its requests.
    success: as reported; None if the reward decides.
    num_unread: answers that the program did not wait for.
    num_rejected: requests that were answered with an error.
    last_rejection: why the last of them was.
    """

    task: Task
    row: Json
    judge: Judge | None
    limits: Limits
    loop: AbstractEventLoop
    runs: Runs
    report_outcome: Callable[[ProgramOutcome], None]
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    success: bool | None = None
    num_unread: int = 0
    num_rejected: int = 0
    last_rejection: str = ""
    conversations: Conversations = field(default_factory=Conversations)
    _run: int = -1
    _queue: deque[PendingRequest] = field(default_factory=deque)
    _current: PendingRequest | None = None
    _pool_waits: bool = True  # for an outcome
    _outcome: ProgramOutcome | None = None  # the last one, kept until the pool waits for it
    _end_reason: str = ""  # why no request is accepted any more
    _limit: str = ""  # the limit that truncated the episode
    _unreported_reward: float | None = None  # since the last observation; None if the program reported no reward at all
    _reward_sum: float = 0.0
    _num_tokens: int = 0
    _num_unshown: int = 0  # requests that the agent could not show to its model
    _seconds_worked: float = 0.0  # the program's own, while no request waited for an answer
    _watch_started_at: float = 0.0
    _timer: TimerHandle | None = None

    def start(self, variables: Mapping[str, str]) -> None:
        """Start the program."""
        hidden = self.judge.hidden if self.judge else ()
        row = {name: value for name, value in self.row.items() if name not in hidden}
        self.conversations.token_ids = bool(self.judge and self.judge.token_ids)
        self._run = self.runs.start({"variables": dict(variables), "row": row}, self._on_end)
        self._watch(self.limits.first_request)

    def ask(self, request: ChatRequest, state_key: str) -> Future[Completion]:
        """Queue a request, which is answered in its turn. Raises: GatewayError after the end."""
        self.require_running()
        answer: Future[Completion] = self.loop.create_future()
        # Read the exception: asyncio logs an error for one that nobody reads, and the client may have hung up.
        answer.add_done_callback(lambda future: future.cancelled() or future.exception())
        self._queue.append(PendingRequest(request, state_key or request.messages[-1].content, answer))
        self._show()
        return answer

    def answer(self, completion: Completion) -> None:
        """Answer the current request, or reject it if the agent could not show it to its model."""
        current = self._current  # None if the episode was truncated meanwhile
        future = current.answer if current else None
        self._current = None
        self._pool_waits = True
        if completion.rejected:
            self._num_unshown += 1
            self.conversations.withdraw_request()
            if future is not None and not future.done():
                future.set_exception(GatewayError(completion.status, completion.rejected))
        else:
            completion = completion.cut(current.request.stop if current else ())
            self.conversations.add_answer(completion)
            self._num_tokens += completion.usage[1]
            if future is None or future.done():
                self.num_unread += 1
            else:
                future.set_result(completion)
        if self._outcome is not None:
            self._conclude(self._outcome)
        self._show()
        if self._current is None and not self._end_reason:
            self._watch(self.limits.next_request)

    def note_rejection(self, reason: str) -> None:
        """Count a request that the server answered with an error."""
        self.num_rejected += 1
        self.last_rejection = reason

    def close(self) -> None:
        """End the program without an outcome."""
        self._pool_waits = False
        self._kill("it was released")

    def _on_end(self, result: RunResult) -> None:
        """The program ended by itself."""
        self._kill("its program has ended")
        if result.failure:
            self._fail("crashes", f"the program failed: {result.failure}")
        elif not self.conversations.turns:
            self._fail("errors", "the program ended without a request to $OPENAI_BASE_URL")
        else:
            self._judge(result.output)

    def _truncate(self, limit: str) -> None:
        self._kill(limit)
        if not self.conversations.turns:  # nothing was sampled that a reward could be for
            self._fail("errors", f"the program ended before a request was answered: {limit}")
            return
        self._limit = limit
        self._judge("")

    def _hang(self, reason: str) -> None:
        self._kill("it hung")
        self._fail("hangs", reason)

    def _fail(self, counter: str, reason: str) -> None:
        """The program ended without a result. If no request was answered, a rejected one is the likely reason."""
        if self.last_rejection and not self.conversations.turns:
            reason = reason.replace("without a request to $OPENAI_BASE_URL", "without an answered request")
            reason = f"{reason}; its last request was refused: {self.last_rejection}"
        self._conclude(ProgramFault(counter, reason))

    def _judge(self, output: str) -> None:
        """Run the reward function, or conclude with the reward that the program reported."""
        if self.judge is None:
            self._finish(RunResult(output, ""))
            return
        transcript = self.conversations.transcript
        order = {"variables": dict(self.judge.variables), "row": self.row, "transcript": transcript}
        self.runs = self.judge.runs  # the program's run has ended
        self._run = self.runs.start(order, self._finish)
        late = f"the reward function took more than {self.limits.next_request:g} s"
        self._timer = self.loop.call_later(self.limits.next_request, self._hang, late)

    def _finish(self, result: RunResult) -> None:
        """Conclude with the reward in the last line of the output, or with what was posted before."""
        self._unwatch()
        last_line = next((line for line in reversed(re.split("[\r\n]", result.output)) if line.strip()), "")
        failure = result.failure.removeprefix("RewardError: ").removeprefix("Garbage: ")
        fault = f"the reward function failed: {failure}" if failure else ""
        try:
            report = json.loads(last_line) if last_line.lstrip().startswith("{") else None
            if isinstance(report, dict) and "reward" in report:
                self.report(report)
        except (GatewayError, ValueError, RecursionError) as error:
            fault = f"the program's last line {last_line[:80]!a} is no reward: {error}"
        if not fault and self._unreported_reward is None and not self._limit:
            fault = NO_REWARD
        if fault:
            self._fail("errors", fault)
            return
        reward = self._unreported_reward or 0.0
        success = reward > 0 if self.success is None else self.success
        is_truncated = bool(self._limit)
        info = {**self._info, "success": success and not is_truncated, "state": None}
        if self.success is None and self._reward_sum not in (0.0, 1.0):
            info[SUCCESS_ASSUMED] = True
        if is_truncated:
            info["limit"] = self._limit
        self._conclude(ProgramObservation("", reward, not is_truncated, is_truncated, info))

    def report(self, result: Json) -> None:
        """Add a reward to the turn that was answered last. Raises: GatewayError for anything else."""
        reward = result.get("reward")
        success = result.get("success")
        if isinstance(reward, bool) or not isinstance(reward, int | float) or not abs(reward) <= MAX_REWARD:
            raise GatewayError(400, f"reward must be a number of at most {MAX_REWARD:g}, got {reward!a:.40}")
        if success is not None and not isinstance(success, bool):
            raise GatewayError(400, f"success must be true or false, got {success!a:.40}")
        self._unreported_reward = (self._unreported_reward or 0.0) + float(reward)
        self._reward_sum += float(reward)
        self.success = self.success if success is None else success

    def _kill(self, reason: str) -> None:
        """End the program, accept no more requests, and reject those that wait."""
        self._unwatch()
        self.runs.kill(self._run)
        self._end_reason = self._end_reason or reason
        waiting = [*self._queue, self._current] if self._current else self._queue
        for pending in waiting:
            if not pending.answer.done():
                pending.answer.set_exception(GatewayError(409, f"the episode of this key is over: {self._end_reason}"))
        self._queue.clear()

    def require_running(self) -> None:
        """Raises: GatewayError after the end of the episode."""
        if self._end_reason:
            raise GatewayError(409, f"the episode of this key is over: {self._end_reason}")

    def _show(self) -> None:
        """Show the next request to the pool, if it waits for one."""
        while self._queue and self._queue[0].answer.cancelled():  # its client hung up
            self._queue.popleft()
        if self._current is not None or not self._queue:
            return
        num_turns = len(self.conversations.turns) + self._num_unshown
        if num_turns >= self.limits.turns or self._num_tokens >= self.limits.tokens:
            self._truncate(f"the limit is {self.limits.turns} requests and {self.limits.tokens} sampled tokens")
            return
        pending = self._queue.popleft()
        try:
            shown_request = self.conversations.add_request(pending.request)
        except Exception as error:  # go on with the next request: a queue that stops would hang the program
            pending.answer.set_exception(unexpected(error))
            self.loop.call_soon(self._show)
            return
        self._unwatch()
        self._current = pending
        reward = 0.0
        if self.conversations.turns and self._unreported_reward:  # a reward before the first turn belongs to that turn
            reward = self._unreported_reward
            self._unreported_reward = 0.0
        info = {**self._info, "success": False, "state": pending.state_key, "request": shown_request}
        self._report(ProgramObservation(pending.request.observation, reward, False, False, info))

    def _conclude(self, outcome: ProgramOutcome) -> None:
        """End the episode, as soon as the pool waits for an outcome: after a reset and after each answer."""
        self._outcome = outcome
        self._report(outcome)

    def _report(self, outcome: ProgramOutcome) -> None:
        if self._pool_waits:
            self._pool_waits = False
            self.report_outcome(outcome)

    @property
    def _info(self) -> Json:
        return {
            "task": self.task.id,
            "task_type": self.task.type,
            "split": self.task.split,
            "valid": True,
            "turn": len(self.conversations.turns),
            "rewritten": self.conversations.rewritten,
            "unread": self.num_unread,
            "refused": self.num_rejected,
            "admissible_actions": None,
        }

    def _watch(self, seconds: float) -> None:
        """Start the timer of a program that works: at most ``seconds``, and no longer than its time in all allows."""
        self._unwatch()
        self._watch_started_at = self.loop.time()
        seconds_left = self.limits.seconds - self._seconds_worked
        setting = "rollout.step_timeout" if self.conversations.turns else "rollout.reset_timeout"
        late = f"the program made no request for {seconds:g} s; raise {setting} if it needs longer"
        if seconds_left < seconds:
            limit = f"{self.limits.seconds:g} s are used up"
            self._timer = self.loop.call_later(max(0.0, seconds_left), self._truncate, limit)
        else:
            self._timer = self.loop.call_later(seconds, self._hang, late)

    def _unwatch(self) -> None:
        """Stop the timer: the program waits for an answer, or has ended."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._seconds_worked += self.loop.time() - self._watch_started_at
