"""Questions to answer with the tools of an MCP server."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from gagpo.base.errors import InvalidArgument
from gagpo.envs.base import Outcome
from gagpo.envs.command import command_words
from gagpo.envs.mcp.questions import SPLITS, ToolQuestion, read_questions, same_answer
from gagpo.envs.mcp.server import ServerError, ToolServer, listed_tools
from gagpo.envs.tasks import Task, TaskSet
from gagpo.envs.tools import Arguments, CallError, Tool, ToolCall
from gagpo.envs.tools.env import ToolEnv

MAX_STARTS = 3  # of the server in one episode, after which the environment is broken


class _Answer(Arguments):
    text: str = Field(description="the answer and nothing else")


ANSWER = Tool.of("final_answer", "Give the final answer, which ends the episode.", _Answer)


class MCPEnv(ToolEnv):
    """A question, the tools of the server that ``command`` starts for each episode, and ``final_answer``.

    The reward is 1 for the right answer. A subclass may override :meth:`is_solved` to judge answers, and ``begin`` and
    ``call`` to read the server's state.

    command: a program and its arguments, as a list or one line; ``python`` is this interpreter.
    tasks: a JSONL file; see :func:`gagpo.envs.mcp.questions.read_questions`.
    start_timeout: deadline for the start of the server.
    call_timeout: deadline for a call. A late call is invalid, and the server is restarted.
    environment: names of further environment variables that the server gets, such as that of its API key; a list, or
        one text with commas.
    """

    packages: ClassVar[Mapping[str, str]] = {"mcp": "gagpo[mcp]"}
    splits = SPLITS
    has_own_data = True
    instructions = "Answer the question. Use the tools, and give the answer with final_answer."
    code_arguments: ClassVar[frozenset[str]] = frozenset({"command"})

    def __init__(
        self,
        command: str | Sequence[str],
        tasks: str | Path,
        start_timeout: float = 20.0,
        call_timeout: float = 10.0,
        max_turns: int = 8,
        environment: str | Sequence[str] = (),
        **kwargs: Any,
    ):
        super().__init__(max_turns=max_turns, **kwargs)
        arguments = command_words(command)
        if not arguments or not all(arguments):
            raise InvalidArgument(
                "command must be a program and its arguments, as one line or a list of texts", key="command"
            )
        for name, seconds in (("start_timeout", start_timeout), ("call_timeout", call_timeout)):
            if not 0 < seconds <= 3600:
                raise InvalidArgument(f"{name} must be above 0 and at most 3600 seconds, got {seconds!r}", key=name)
        names = environment.replace(",", " ").split() if isinstance(environment, str) else list(environment)
        unset = [name for name in names if not isinstance(name, str) or name not in os.environ]
        if unset:
            raise InvalidArgument(
                f"environment: the variable {unset[0]!r:.80} is not set",
                key="environment",
                advice="export it, or leave it out",
            )
        self.command = tuple(arguments)
        self.environment = tuple(names)
        self.start_timeout = start_timeout
        self.call_timeout = call_timeout
        self._tasks, self._questions = read_questions(tasks)
        self._server: ToolServer | None = None
        self._last_error = ""  # of the server in this episode

    @functools.cached_property
    def tools(self) -> tuple[Tool, ...]:  # type: ignore[override]
        server_tools = listed_tools(self.command, self.start_timeout, self.environment)
        if any(tool.name == ANSWER.name for tool in server_tools):
            raise InvalidArgument(f"the server has a tool {ANSWER.name}: that name is reserved for the answer")
        return (*server_tools, ANSWER)

    def tasks(self, split: str) -> TaskSet:
        if split not in self._tasks:
            raise InvalidArgument(f"no split {split!r}", advice=f"choose from {', '.join(SPLITS)}")
        return self._tasks[split]

    def begin(self, task: Task) -> Outcome:
        self.question: ToolQuestion = self._questions[task.id]
        self._num_starts = 0
        self._num_calls = 0  # that the server answered
        self._last_error = ""
        self._end()
        return Outcome(self.question.text)

    def call(self, tool: str, arguments: Any) -> Outcome:
        if tool == ANSWER.name:
            solved = self.is_solved(self.question, arguments.text)
            text = "That is right." if solved else "That is not right."
            return Outcome(text, float(solved), terminated=True, success=solved)
        server = self._running_server()
        try:
            outcome = server.call(tool, arguments, self.call_timeout)
        except ServerError as error:
            self._end()
            self._last_error = str(error)
            raise CallError(f"{tool} gave no answer, and its server starts anew: {error}") from None
        self._num_calls += 1
        return outcome

    @property
    def reward_columns(self) -> Mapping[str, object]:
        return {"question": self.question.text, "answer": self.question.answer}

    def is_solved(self, question: ToolQuestion, answer: str) -> bool:
        """Whether ``answer`` is right."""
        return same_answer(question.answer, answer)

    def expert_action(self) -> str | None:
        """The calls of the task's row, then its answer."""
        if self._num_calls < len(self.question.calls):
            name, arguments = self.question.calls[self._num_calls]
            return ToolCall(name, dict(arguments)).text
        return ToolCall(ANSWER.name, {"text": self.question.answer}).text

    def close(self) -> None:
        self._end()
        super().close()

    def _running_server(self) -> ToolServer:
        if self._server is None:
            if self._num_starts == MAX_STARTS:
                message = f"the server had to be started {MAX_STARTS} times in one episode"
                raise ServerError(message, advice=f"the last time, {self._last_error}")
            self._server = ToolServer(self.command, self.start_timeout, self.environment)
            self._num_starts += 1
        return self._server

    def _end(self) -> None:
        server = getattr(self, "_server", None)  # missing if the constructor failed
        self._server = None
        if server is not None:
            server.close()
