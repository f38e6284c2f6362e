"""``gagpo/Program-v0``: an agent program that asks a language model over HTTP."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

from gagpo.base.cores import available_cores
from gagpo.base.errors import InvalidArgument, MissingPackage
from gagpo.base.nearest import hint
from gagpo.base.sandbox import require_sandbox
from gagpo.envs.base import Kwargs, MarkovKey, Outcome, TextEnv
from gagpo.envs.command import command_words
from gagpo.envs.gateway.messages import Json
from gagpo.envs.pool import Pool
from gagpo.envs.program.episodes import Limits
from gagpo.envs.program.tasks import SPLITS, read_tasks
from gagpo.envs.program.variables import named, passed
from gagpo.envs.rewards.functions import FUNCTIONS
from gagpo.envs.tasks import Task, TaskSet

Sandbox = Literal["none", "bubblewrap"]


class ProgramEnv(TextEnv):
    """Runs a program for each task, and shows each of its requests to a model.

    The program finds the address of the model in ``OPENAI_BASE_URL`` and ``ANTHROPIC_BASE_URL``, and its task in
    ``GAGPO_TASK_FILE`` and, unless it is long, in ``GAGPO_TASK``. It ends the episode by ending itself.

    command: the program and its arguments, as a list or one line; ``python`` is this interpreter.
    agent: instead of a command, ``module:function``: ``async def play(task, client) -> reward``.
    tasks: a file of rows or a folder of such files; see :func:`gagpo.envs.program.tasks.read_tasks`.
    columns: new names of its columns, such as ``{"question": "Q"}`` for the column ``Q``.
    reward: ``module:function``: ``def reward(task, transcript)``, which returns the reward at the end of the program.
        By default the program reports it; with ``reward`` only the function's value counts.
    hidden: columns that only ``reward`` gets, not the program. By default those that its parameters name.
    reward_environment: names of environment variables that only ``reward`` gets, such as the key of another model.
    max_turns: requests that are answered.
    tokens: sampled tokens after which no request is answered.
    timeout: seconds for the program's own work in an episode, without waiting for answers.
    memory: megabytes that the program and each process it starts may allocate; None for no limit.
    sandbox: ``bubblewrap`` runs the command with its own network, processes and memory files, and this machine's files
        read-only. It reaches the gateway and nothing else, and writes to ``TMPDIR``, ``/tmp`` and ``/dev/shm``.
    environment: names of environment variables that it gets in addition to the usual ones, such as ``PATH``
        (:data:`gagpo.envs.program.variables.PASSED`).
    """

    splits: ClassVar[tuple[str, ...]] = SPLITS
    markov_key: ClassVar[MarkovKey | None] = "state"
    choosing: ClassVar[frozenset[str]] = frozenset({"tasks", "columns"})
    code_arguments: ClassVar[frozenset[str]] = frozenset({"command", "agent", "reward"})
    sends_requests: ClassVar[bool] = True
    has_own_data = True

    def __init__(
        self,
        tasks: str | Path,
        command: str | Sequence[str] = "",
        agent: str = "",
        reward: str = "",
        max_turns: int = 50,
        tokens: int = 1_000_000,
        timeout: float = 600.0,
        memory: int | None = None,
        sandbox: Sandbox = "none",
        environment: str | Sequence[str] = (),
        columns: Mapping[str, str] | None = None,
        hidden: str | Sequence[str] | None = None,
        reward_environment: str | Sequence[str] = (),
        **kwargs: Any,
    ):
        super().__init__(max_turns=max_turns, **kwargs)
        if not (find_spec("uvicorn") and find_spec("starlette")):
            raise MissingPackage(
                "a program needs starlette and uvicorn", advice="pip install -c constraints.txt -e '.[gateway]'"
            )
        arguments = command_words(command)
        if bool(arguments) == bool(agent):
            raise InvalidArgument("give either command='python my_agent.py' or agent='module:function'", key="command")
        for name, value in (("agent", agent), ("reward", reward)):
            if value and not (isinstance(value, str) and all(value.partition(":")[::2])):
                raise InvalidArgument(f"{name} must be written module:function, got {value!r:.80}", key=name)
        if sandbox not in get_args(Sandbox):
            raise InvalidArgument(f"sandbox must be none or bubblewrap (got {sandbox!r:.80})", key="sandbox")
        if agent and sandbox != "none":
            raise InvalidArgument(
                "sandbox: an agent shares its process with others",
                key="sandbox",
                advice="give command='python my_agent.py'",
            )
        if arguments and arguments[0] == "python":
            arguments[0] = sys.executable
        if arguments and shutil.which(arguments[0]) is None:
            raise InvalidArgument(f"command: there is no program {arguments[0]!r:.80} here", key="command")
        for name, limit in (("tokens", tokens), ("timeout", timeout), ("memory", memory)):
            if limit is not None and not 0 < limit < 2**31:
                raise InvalidArgument(f"{name} must be above 0, got {limit!r:.40}", key=name)
        self.program = {"command": arguments, "agent": agent, "reward": reward, "sandbox": sandbox, "memory": memory}
        self.memory = memory
        self.tokens = tokens
        self.timeout = timeout
        self.environment = named(environment)
        self.reward_environment = named(reward_environment, "reward_environment")
        if not reward and (hidden is not None or self.reward_environment):
            raise InvalidArgument("hidden and reward_environment need reward='module:function'", key="reward")
        self.concurrency = available_cores()  # each episode starts a program
        self._tasks, self._rows = read_tasks(tasks, columns)
        self.hidden = None if hidden is None else self._hidden(hidden)
        # By default the last split is evaluated, so it must not be empty where the other has tasks.
        self.splits = tuple(sorted(SPLITS, key=lambda split: len(self._tasks[split]) > 0))  # type: ignore[misc]

    @classmethod
    def open_pool(
        cls, kwargs: Kwargs, memory: int | None, step_timeout: float = 60.0, reset_timeout: float = 300.0
    ) -> Pool:
        """The pool of programs that :func:`gagpo.envs.pool.opening.open_pool` opens."""
        from gagpo.envs.program.pool import ProgramPool

        env = cls(**kwargs)
        if env.program["sandbox"] != "none":
            require_sandbox()
        limits = Limits(env.max_turns, env.tokens, env.timeout, reset_timeout, step_timeout)
        every = passed([*env.environment, *env.reward_environment])
        of_reward = {name: every.pop(name) for name in env.reward_environment if name not in env.environment}
        memory = env.memory or memory
        return ProgramPool(
            env.program, limits, env._find, memory, variables=every, hidden=env.hidden, reward_variables=of_reward
        )

    def require_functions(self) -> None:
        """Import the agent and the reward function here; in a run, the program's process does it."""
        for name in ("agent", "reward"):
            if function := self.program[name]:
                FUNCTIONS.find(str(function))

    def tasks(self, split: str) -> TaskSet:
        if split not in self._tasks:
            raise InvalidArgument(f"no split {split!r}", advice=f"choose from {', '.join(SPLITS)}")
        return self._tasks[split]

    def _hidden(self, names: str | Sequence[str]) -> list[str]:
        """The columns that ``hidden`` lists, as a list or as one text with commas."""
        listed = names.replace(",", " ").split() if isinstance(names, str) else list(names)
        columns = sorted({column for row in self._rows.values() for column in row} - {"id", "split", "type"})
        for name in listed:
            if name not in columns:
                raise InvalidArgument(
                    f"hidden: no row has a column {name!r:.80}", key="hidden", advice=hint(str(name), columns)
                )
        return listed

    def begin(self, task: Task) -> Outcome:
        raise InvalidArgument("a program needs a model that it asks", advice="use gagpo train or gagpo eval")

    def _find(self, name: str) -> tuple[Task, Json]:
        split = next((split for split in SPLITS if name in self._tasks[split]), self.split)
        return self._tasks[split][name], self._rows[name]
