"""``gagpo/Terminal-v0``: solve tasks with shell commands; the files at the end decide."""

from __future__ import annotations

import functools
import hashlib
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import numpy as np
from pydantic import Field

from gagpo.base.errors import InvalidArgument
from gagpo.envs.base import Kwargs, MarkovKey, Outcome
from gagpo.envs.tasks import Task, TaskSet, unknown_split
from gagpo.envs.terminal.backends.base import (
    WORKING_FOLDER,
    BadTree,
    CommandResult,
    EpisodeLimits,
    Sandbox,
    SandboxLost,
    Saved,
)
from gagpo.envs.terminal.backends.choice import make_sandbox
from gagpo.envs.terminal.exercise import PREPARE_SECONDS, Exercise, judge, prepared_tree
from gagpo.envs.terminal.families.family import FAMILIES
from gagpo.envs.terminal.generate import SPLITS, exercise, generate_tasks
from gagpo.envs.terminal.harbor import HarborTask, read_tasks
from gagpo.envs.terminal.tree import Tree
from gagpo.envs.tools import Arguments, CallError, Tool, ToolCall
from gagpo.envs.tools.env import ToolEnv

MAX_COMMAND = 20_000  # characters
SUBMIT = "submit"
Form = Literal["text", "tools"]
_GENERATED = frozenset({"families", "levels", "size", "test_size", "seed", "words", "chain"})


class _Bash(Arguments):
    command: str = Field(description="a command for bash")


class _Read(Arguments):
    path: str


class _Write(Arguments):
    path: str
    text: str = Field(description="the whole content of the file")


class _Edit(Arguments):
    path: str
    old: str = Field(description="a text that occurs once in the file")
    new: str


class _Submit(Arguments):
    pass


TOOLS = (
    Tool.of("bash", "Run a command in the shell.", _Bash),
    Tool.of("read", "Show a file.", _Read),
    Tool.of("write", "Write a file.", _Write),
    Tool.of("edit", "Replace a text in a file.", _Edit),
    Tool.of(SUBMIT, "End the task; the files are judged as they are.", _Submit),
)
_EDIT = (
    "import sys; path, old, new = sys.argv[1:]; text = open(path).read(); count = text.count(old); "
    "sys.exit(f'the old text occurs {count} times') if count != 1 else open(path, 'w').write(text.replace(old, new))"
)


class TerminalEnv(ToolEnv):
    """A shell in a sandbox and a task that is judged by the files at the end; the reward is 1 if they are right.

    An action is a command for bash, and ``submit`` ends the task; so does the last turn. Directory, variables and
    background processes stay from one command to the next.

    tasks: a folder of tasks in Harbor's format, or a folder that contains such folders; by default tasks are generated.
    families, levels: of generated tasks, see :mod:`gagpo.envs.terminal.generate`.
    size, test_size: number of generated tasks in the training split, and in each other split.
    seed: for the generated tasks.
    words: in the training split, ``listed`` names files by sixty words; ``invented`` makes up names for each task.
    chain: a generated task consists of so many tasks of different families, each in a folder of its own.
    form: ``text`` takes commands; ``tools`` calls of bash, read, write, edit and submit.
    backend: ``bubblewrap``, ``podman``, ``docker``, or ``harbor:NAME`` for a backend of the package harbor.
    image: of all backends but bubblewrap.
    command_timeout: deadline for each command, in seconds.
    max_output: bytes that are shown of each stream; the middle of more is cut.
    memory: limit for all processes of an episode, in MiB.
    show_changes: whether the observation lists the files that the command changed.

    ``info`` also holds ``exit_status``, ``changes`` (files that the command changed), ``diff`` (their
    changed lines, bounded) and, at the end, ``verdict``.
    """

    splits: ClassVar[tuple[str, ...]] = SPLITS
    choosing: ClassVar[frozenset[str]] = _GENERATED | {"tasks"}
    has_imperfect: ClassVar[bool] = True
    markov_key: ClassVar[MarkovKey] = "state"
    multiline: ClassVar[bool] = True
    instructions: ClassVar[str] = (
        "You solve a task in a Linux shell. Each action is one bash command, whose output you see next. "
        f"The files in the working directory are judged when you send {SUBMIT}."
    )

    def __init__(
        self,
        split: str = "train",
        max_turns: int = 20,
        expert: bool | str = False,
        render_mode: str | None = None,
        tasks: str | Path | None = None,
        families: Sequence[str] | str = "all",
        levels: Sequence[int] | int = (1, 2, 3),
        size: int = 2000,
        test_size: int = 200,
        seed: int = 0,
        words: Literal["listed", "invented"] = "listed",
        form: Form = "text",
        backend: str = "bubblewrap",
        image: str = "",
        command_timeout: float = 10.0,
        max_output: int = 2000,
        memory: int = 256,
        show_changes: bool = False,
        chain: int = 1,
    ):
        super().__init__(split, max_turns, expert, render_mode)
        _require_choice("form", form, get_args(Form))
        _require_choice("words", words, ("listed", "invented"))
        if not 0 < command_timeout <= 3600:
            raise InvalidArgument(
                f"command_timeout must be above 0 and at most 3600 seconds (got {command_timeout})",
                key="command_timeout",
            )
        _require_least(size=(size, 0), test_size=(test_size, 0), chain=(chain, 1), max_output=(max_output, 100))
        if memory < 16:
            raise InvalidArgument(f"memory must be at least 16 MiB (got {memory})", key="memory")
        self.levels = _levels(levels)
        self.families = families if isinstance(families, str) else tuple(families)
        self.folder = Path(tasks) if tasks is not None else None
        self.size = size
        self.test_size = test_size
        self.seed = seed
        self.words = words
        self.chain = chain
        self.form = form
        self.tools = TOOLS if form == "tools" else ()
        self.command_timeout = command_timeout
        self.show_changes = show_changes
        limits = EpisodeLimits(memory=memory << 20, address_space=max(1 << 30, memory << 21))
        self.has_image = bool(image)
        self.sandbox: Sandbox = make_sandbox(backend, image, limits, max_output)
        # A setup takes longer than a reset, and the episodes of a group share their tree.
        self._tree = functools.lru_cache(maxsize=64)(self._prepare)
        self.exercise: Exercise | HarborTask | None = None
        self._progress = 0  # commands of the expert that were carried out
        self._state = ""
        self._status: int | None = None

    @classmethod
    def without_effect(cls, kwargs: Kwargs) -> frozenset[str]:
        return _GENERATED if kwargs.get("tasks") is not None else frozenset()

    def tasks(self, split: str) -> TaskSet:
        if split not in self.splits:
            raise unknown_split(type(self).__name__, split, self.splits)
        if self.folder is not None:
            return read_tasks(self.folder, self.has_image)[split]
        training = split == "train"
        size = self.size if training else self.test_size
        invent = training and self.words == "invented"
        return generate_tasks(split, size, self.families, self.levels, self.seed, invent, self.chain)

    # Episodes ---------------------------------------------------------------------------------------------------------

    def begin(self, task: Task) -> Outcome:
        self._progress = 0
        self._status = None
        if self.folder is not None:
            self.exercise = HarborTask.read(Path(task.source), needs_image=self.has_image)
            self._state = self.sandbox.start(self.exercise.tree)
        else:
            self.exercise = exercise(task.id)
            self._state = self.sandbox.start(self._tree(task.id))
            if self.exercise.services:
                result = self.sandbox.run(self.exercise.services, PREPARE_SECONDS)
                if result.status != 0:
                    raise SandboxLost(f"the services of {task.id} do not start: {result.errors.text()[:200]}")
                self._state = result.state
        return self._outcome(f"{self.exercise.text}\nThe shell is in {WORKING_FOLDER}.")

    def _prepare(self, task_id: str) -> Tree:
        return prepared_tree(self.sandbox, exercise(task_id))

    def act(self, action: str) -> Outcome:
        if self.form == "tools":
            return super().act(action)
        return self._submit(False) if action.strip() == SUBMIT else self._run(action, action)

    def call(self, tool: str, arguments: Any) -> Outcome:
        if tool == SUBMIT:
            return self._submit(False)
        values = arguments.model_dump()
        if any("\0" in value for value in values.values()):
            raise CallError("no argument may contain a NUL character")
        if tool == "bash":
            return self._run(arguments.command, arguments.command)
        # In the agent's own shell, so that a tool can do no more than a command.
        program = {"read": ["cat", "--"], "write": ["printf", "%s"], "edit": ["python3", "-I", "-c", _EDIT]}[tool]
        path = values.pop("path")
        line = [*program, *values.values()] if tool == "write" else [*program, path, *values.values()]
        return self._run(shlex.join(line) + (f" > {shlex.quote(path)}" if tool == "write" else ""), "")

    def refuse(self, reason: str) -> Outcome:
        return self._end_of_turn(f"That cannot be run: {reason}.", valid=False)

    def _run(self, command: str, action: str) -> Outcome:
        problem = _problem(command)
        if problem:
            return self.refuse(problem)
        try:
            result = self.sandbox.run(command, self.command_timeout)
        except (
            SandboxLost,
            BadTree,
        ) as error:  # a command can exhaust the sandbox: that ends its episode, not the training
            self._state = f"lost {self.turn}"
            return self._outcome(f"The episode ends: {error}.", terminated=True, extras={"verdict": "lost"})
        self._state = result.state
        self._status = result.status
        if action and action == self._next_command():
            self._progress += 1
        text = _observation(result)
        if self.show_changes and result.changes:
            text += "\n" + "\n".join(result.changes)
        return self._end_of_turn(text, changes=result.changes, diff=result.diff)

    def _end_of_turn(self, text: str, valid: bool = True, changes: Sequence[str] = (), diff: str = "") -> Outcome:
        """The outcome of a turn; the last one is judged like a submission."""
        if self.turn >= self.max_turns:
            outcome = self._submit(True)
            outcome.observation = f"{text}\n{outcome.observation}"
            outcome.valid = valid
            outcome.extras = {**outcome.extras, "changes": list(changes), "diff": diff}
            return outcome
        return self._outcome(text, valid=valid, extras={"changes": list(changes), "diff": diff})

    def _submit(self, truncated: bool) -> Outcome:
        reward = self._verdict()
        solved = reward >= 1.0
        self._state += f" judged {reward}"
        extras = {"verdict": "right" if solved else "wrong"}
        text = "The task is solved." if solved else "The task is not solved."
        return self._outcome(
            text, reward=reward, success=solved, terminated=not truncated, truncated=truncated, extras=extras
        )

    def _verdict(self) -> float:
        assert self.exercise is not None
        if isinstance(self.exercise, HarborTask):
            return self.exercise.judge(self.sandbox)
        return float(judge(self.sandbox, self.exercise.check))

    def _outcome(self, text: str, extras: Mapping[str, Any] | None = None, **fields: Any) -> Outcome:
        task_id = self.task.id if self.task else ""
        state = hashlib.sha256(f"{task_id}\0{self._state}".encode()).hexdigest()[:24]
        return Outcome(
            text,
            state=state,
            extras={"exit_status": self._status, "changes": [], "diff": "", **(extras or {})},
            **fields,
        )

    # States -----------------------------------------------------------------------------------------------------------

    def save(self) -> Saved:
        """The files, directory and variables of the episode; its processes are not part of it."""
        return self.sandbox.save()

    def restore(self, saved: Saved) -> None:
        """Continue the episode of the same task from a saved state."""
        self._state = self.sandbox.restore(saved)

    # Experts ----------------------------------------------------------------------------------------------------------

    def _next_command(self) -> str | None:
        commands = self._commands()
        return commands[self._progress] if self._progress < len(commands) else None

    def _commands(self) -> tuple[str, ...]:
        assert self.exercise is not None
        return self.exercise.wrong if self.imperfect else self.exercise.solution

    def expert_action(self) -> str | None:
        """The commands of the solution, one a turn, then ``submit``. The imperfect expert follows a hasty solution."""
        command = self._next_command()
        if self.form == "text":
            return SUBMIT if command is None else command
        return (ToolCall(SUBMIT) if command is None else ToolCall("bash", {"command": command})).text

    def sample_action(self, rng: np.random.Generator) -> str:
        """A harmless or harmful random command."""
        names = ["*", ".", "/tmp", "a.txt", "$(ls | head -1)"]
        commands = ["ls {}", "cat {} | head -3", "cd {}", "touch {}", "wc -c {}", "echo x > {}", "X={}", "pwd"]
        command = str(rng.choice(commands)).format(rng.choice(names))
        if self.form == "text":
            return command
        return ToolCall("bash", {"command": command}).text

    def close(self) -> None:
        sandbox = getattr(self, "sandbox", None)  # missing if the constructor failed
        if sandbox is not None:
            sandbox.close()
        super().close()


def _require_choice(name: str, value: object, choices: Sequence[str]) -> None:
    if value not in choices:
        raise InvalidArgument(f"{name} must be one of {', '.join(choices)} (got {value!r:.80})", key=name)


def _require_least(**numbers: tuple[int, int]) -> None:
    """numbers: value and minimum of each argument."""
    for name, (value, low) in numbers.items():
        if value < low:
            raise InvalidArgument(f"{name} must be at least {low} (got {value})", key=name)


def _levels(levels: Sequence[int] | int) -> tuple[int, ...]:
    chosen = (levels,) if isinstance(levels, int) else tuple(levels)
    highest = max(family.levels for family in FAMILIES.values())
    if not chosen or not all(isinstance(level, int) and 1 <= level <= highest for level in chosen):
        raise InvalidArgument(f"levels must be numbers from 1 to {highest} (got {levels!r:.80})", key="levels")
    return tuple(sorted(set(chosen)))


def _problem(command: str) -> str:
    """Why a command cannot be run; empty if it can."""
    if not command.strip():
        return "the command is empty"
    if len(command) > MAX_COMMAND:
        return f"a command has at most {MAX_COMMAND:,} characters, and this one has {len(command):,}"
    if "\0" in command:
        return "a command contains no NUL character"
    try:
        command.encode()
    except UnicodeEncodeError:
        return "the command contains half of a surrogate pair"
    return ""


def _observation(result: CommandResult) -> str:
    """What a command printed, then its status and the working directory, where they say something."""
    texts = [result.output.text(), result.errors.text()]
    if result.stopped:
        texts.append(f"[stopped: {result.stopped}]")
    if result.restarted:
        texts.append("[the shell ended; a new one runs, without the variables and processes of the old one]")
    printed = "\n".join(text.rstrip("\n") for text in texts if text.strip())
    status = f"[exit status {result.status}, in {result.directory}]"
    return f"{printed}\n{status}" if printed else status
