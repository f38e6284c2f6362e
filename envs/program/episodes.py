"""Episodes of programs: their requests become observations one after another, with limits and deadlines."""

from __future__ import annotations

import json
import re
import secrets
from asyncio import AbstractEventLoop, Future, TimerHandle
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from gagpo.envs.program.conversations import Conversations
from gagpo.envs.program.messages import ChatRequest, Completion, Json, RequestRefused, unexpected
from gagpo.envs.program.runs import Ended, Runs
from gagpo.envs.tasks import Task

MOST_REWARD = 1e9
NO_REWARD = (
    'the program ended without a reward: print {"reward": 1.0} as its last line, post it to $GAGPO_REWARD_URL, or set '
    "the argument reward of the environment"
)


class Shown(NamedTuple):
    """A request as the observation of the next turn, or the end of the episode. reward: since the last one."""

    text: str
    reward: float
    terminated: bool
    truncated: bool
    info: Json


class ProgramFault(NamedTuple):
    """A program that ended without a result. counter: of the pool."""

    counter: str
    reason: str


Outcome = Shown | ProgramFault
Asked = tuple[ChatRequest, str, Future[Completion]]  # a request, its state key and its answer


@dataclass(frozen=True)
class Limits:
    """Limits of one episode.

    turns: requests that are answered.
    tokens: sampled tokens after which no request is answered.
    seconds: for the program's own work, without waiting for answers.
    first: seconds until its first request.
    next: seconds between an answer and the next request.
    """

    turns: int
    tokens: int
    seconds: float
    first: float
    next: float


@dataclass
class Episode:
    """One run of the program. Everything happens in the thread of ``loop``.

    row: the task's row in the file.
    judged: whether a reward function gives the reward.
    tell: takes an outcome, one for each reset and each answer.
    token: identifies the episode in its requests.
    success: as reported; None if the reward decides.
    unread: answers that the program did not wait for.
    refused: requests that were answered with an error.
    refusal: why the last of them was.
    """

    task: Task
    row: Json
    judged: bool
    limits: Limits
    loop: AbstractEventLoop
    runs: Runs
    tell: Callable[[Outcome], None]
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    success: bool | None = None
    unread: int = 0
    refused: int = 0
    refusal: str = ""
    talk: Conversations = field(default_factory=Conversations)
    _run: int = -1
    _waiting: deque[Asked] = field(default_factory=deque)
    _current: Asked | None = None
    _pending: bool = True  # the pool waits for an outcome
    _outcome: Outcome | None = None
    _over: str = ""  # why no request is accepted any more
    _truncated: str = ""  # the limit that ended it
    _earned: float | None = None  # since the last observation; None if no reward was reported at all
    _tokens: int = 0
    _rejected: int = 0  # requests that the agent could not show to its model
    _worked: float = 0.0
    _since: float = 0.0
    _timer: TimerHandle | None = None

    def start(self, variables: Mapping[str, str]) -> None:
        """Start the program."""
        self._run = self.runs.start({"variables": dict(variables), "row": self.row}, self._ended)
        self._watch(self.limits.first)

    def ask(self, request: ChatRequest, state: str) -> Future[Completion]:
        """Queue a request, which is answered in its turn. Raises: RequestRefused after the end."""
        self.require_running()
        answer: Future[Completion] = self.loop.create_future()
        answer.add_done_callback(lambda future: future.cancelled() or future.exception())  # the client may have hung up
        self._waiting.append((request, state or request.messages[-1].content, answer))
        self._show()
        return answer

    def answer(self, completion: Completion) -> None:
        """Answer the current request, or reject it if the agent could not show it to its model."""
        current, self._current, self._pending = self._current, None, True
        future = current[2] if current else None
        if completion.rejected:
            self._rejected += 1
            self.talk.withdraw()
            self._refuse(future, completion.status, completion.rejected)
        else:
            completion = completion.cut(current[0].stop if current else ())
            self.talk.said(completion)
            self._tokens += completion.usage[1]
            if future is None or future.done():
                self.unread += 1
            else:
                future.set_result(completion)
        if self._outcome is not None:
            self._conclude(self._outcome)
        self._show()
        if self._current is None and not self._over:
            self._watch(self.limits.next)

    def note_refusal(self, reason: str) -> None:
        """Count a request that the server answered with an error."""
        self.refused += 1
        self.refusal = reason

    def _refuse(self, future: Future[Completion] | None, status: int, reason: str) -> None:
        """Answer a request with an error, which the server counts."""
        if future is not None and not future.done():
            future.set_exception(RequestRefused(status, reason))

    def close(self) -> None:
        """End the program; nothing is told any more."""
        self._pending = False
        self._kill("it was released")

    def _ended(self, ended: Ended) -> None:
        """The program ended by itself."""
        self._kill("its program has ended")
        if ended.failure:
            self._fail("crashes", f"the program failed: {ended.failure}")
        elif not self.talk.turns:
            self._fail("errors", "the program ended without a request to $OPENAI_BASE_URL")
        else:
            self._judge(ended.output)

    def _truncate(self, limit: str) -> None:
        self._kill(limit)
        if not self.talk.turns:  # nothing was sampled that a reward could be for
            self._fail("errors", f"the program ended before a request was answered: {limit}")
            return
        self._truncated = limit
        self._judge("")

    def _hang(self, reason: str) -> None:
        self._kill("it hung")
        self._fail("hangs", reason)

    def _fail(self, counter: str, reason: str) -> None:
        """The program ended without a result. If no request was answered, a refused one is the likely reason."""
        if self.refusal and not self.talk.turns:
            reason = reason.replace("without a request to $OPENAI_BASE_URL", "without an answered request")
            reason = f"{reason}; its last request was refused: {self.refusal}"
        self._conclude(ProgramFault(counter, reason))

    def _judge(self, output: str) -> None:
        """Ask the reward function, or conclude with what the program said."""
        if not self.judged:
            self._finish(Ended(output, ""))
            return
        order = {"variables": {}, "row": self.row, "transcript": self.talk.transcript}
        self._run = self.runs.start(order, self._finish)
        late = f"the reward function took more than {self.limits.next:g} s"
        self._timer = self.loop.call_later(self.limits.next, self._hang, late)

    def _finish(self, ended: Ended) -> None:
        """Conclude with the reward in the last line of the output, or with what was posted before."""
        self._unwatch()
        last = next((line for line in reversed(re.split("[\r\n]", ended.output)) if line.strip()), "")
        fault = f"the reward function failed: {ended.failure}" if ended.failure else ""
        try:
            result = json.loads(last) if last.lstrip().startswith("{") else None
            if isinstance(result, dict) and "reward" in result:
                self.report(result)
        except (RequestRefused, ValueError, RecursionError) as error:
            fault = f"the program's last line {last[:80]!a} is no reward: {error}"
        if not fault and self._earned is None and not self._truncated:
            fault = NO_REWARD
        if fault:
            self._fail("errors", fault)
            return
        reward, limit = self._earned or 0.0, {"limit": self._truncated} if self._truncated else {}
        success = (reward > 0 if self.success is None else self.success) and not self._truncated
        info = {**self._info, "success": success, "state": None, **limit}
        self._conclude(Shown("", reward, not self._truncated, bool(self._truncated), info))

    def report(self, result: Json) -> None:
        """Add a reward to the turn that was answered last. Raises: RequestRefused for anything else."""
        reward, success = result.get("reward"), result.get("success")
        if isinstance(reward, bool) or not isinstance(reward, int | float) or not abs(reward) <= MOST_REWARD:
            raise RequestRefused(400, f"reward must be a number of at most {MOST_REWARD:g}, got {reward!a:.40}")
        if success is not None and not isinstance(success, bool):
            raise RequestRefused(400, f"success must be true or false, got {success!a:.40}")
        self._earned = (self._earned or 0.0) + float(reward)
        self.success = self.success if success is None else success

    def _kill(self, reason: str) -> None:
        """End the program, accept no more requests, and refuse those that wait."""
        self._unwatch()
        self.runs.kill(self._run)
        self._over = self._over or reason
        for _, _, answer in (*self._waiting, *((self._current,) if self._current else ())):
            if not answer.done():
                answer.set_exception(RequestRefused(409, f"the episode of this key is over: {self._over}"))
        self._waiting.clear()

    def require_running(self) -> None:
        if self._over:
            raise RequestRefused(409, f"the episode of this key is over: {self._over}")

    def _show(self) -> None:
        """Show the next request to the pool, if it waits for one."""
        while self._waiting and self._waiting[0][2].cancelled():  # its client hung up
            self._waiting.popleft()
        if self._current is not None or not self._waiting:
            return
        if len(self.talk.turns) + self._rejected >= self.limits.turns or self._tokens >= self.limits.tokens:
            self._truncate(f"the limit is {self.limits.turns} requests and {self.limits.tokens} sampled tokens")
            return
        request, state, future = self._waiting.popleft()
        try:
            shown = self.talk.show(request)
        except Exception as error:  # a queue that stops would hang the program
            future.set_exception(unexpected(error))
            self.loop.call_soon(self._show)
            return
        self._unwatch()
        self._current = (request, state, future)
        reward = 0.0
        if self.talk.turns and self._earned:  # what was earned before the first turn belongs to that one
            reward, self._earned = self._earned, 0.0
        info = {**self._info, "success": False, "state": state, "request": shown}
        self._tell(Shown(request.observation, reward, False, False, info))

    def _conclude(self, outcome: Outcome) -> None:
        """The episode ends, as soon as the pool waits: after a reset and after each answer."""
        self._outcome = outcome
        self._tell(outcome)

    def _tell(self, outcome: Outcome) -> None:
        if self._pending:
            self._pending = False
            self.tell(outcome)

    @property
    def _info(self) -> Json:
        about = {"task": self.task.id, "task_type": self.task.type, "split": self.task.split, "valid": True}
        counts = {"turn": len(self.talk.turns), "rewritten": self.talk.rewritten, "unread": self.unread}
        counts["refused"] = self.refused
        return {**about, **counts, "admissible_actions": None}

    def _watch(self, seconds: float) -> None:
        """The program works: give it until its deadline."""
        self._unwatch()
        self._since, left = self.loop.time(), self.limits.seconds - self._worked
        setting = "rollout.step_timeout" if self.talk.turns else "rollout.reset_timeout"
        late = f"the program made no request for {seconds:g} s; raise {setting} if it needs longer"
        if left < seconds:
            self._timer = self.loop.call_later(max(0.0, left), self._truncate, f"{self.limits.seconds:g} s are used up")
        else:
            self._timer = self.loop.call_later(seconds, self._hang, late)

    def _unwatch(self) -> None:
        """The program waits, or has ended."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._worked += self.loop.time() - self._since
