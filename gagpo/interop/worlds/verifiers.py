"""Environments of the package verifiers as worlds: ``environment.id: verifiers://TASKSET``.

An environment of verifiers drives its episode itself: its ``run`` asks an agent for one reply after another. Here that
agent is a seat that hands each message out as an observation and takes the next action for the reply. So ``run`` plays
in a thread of its own, and every step of the world waits for it.
"""

from __future__ import annotations

import asyncio
import inspect
import queue
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, ClassVar, NamedTuple

from gagpo.base.errors import GagpoError, InvalidArgument, MissingPackage, first_line
from gagpo.base.tables import ascii_only
from gagpo.envs.base import Outcome, TextEnv
from gagpo.envs.tasks import Task, TaskSet

ANSWER_SECONDS = 600.0  # for what an environment says next; a pool's own deadlines are shorter
LEAVE_SECONDS = 5.0  # for an episode that is given up to end by itself


class CannotPlay(GagpoError):
    """An environment of verifiers that needs more than messages."""


class WorldBroke(GagpoError, RuntimeError):
    """The environment raised an error, or does not answer."""


class _Over(NamedTuple):
    """The end of an episode: what it paid in all, or what went wrong."""

    reward: float
    error: BaseException | None = None


class VerifiersWorld(TextEnv):
    """The tasks of a taskset, played by messages with the environment that verifiers pairs with it.

    settings: of the taskset, as on verifiers' command line; test: those that differ in the split ``test``. Without
    ``test`` the last ``held_out`` share of the tasks is that split. count: tasks that are read at most. solved: the
    reward from which an episode counts as a success. The reward is paid at the end, as verifiers adds it up; a turn
    limit ends the episode as verifiers' own would, and what it has earned is paid.

    Raises :class:`CannotPlay` where an environment needs more than messages: several agents, tools, a box.
    """

    choosing: ClassVar[frozenset[str]] = frozenset({"count", "held_out", "test"})

    def __init__(
        self,
        taskset: str,
        settings: Mapping[str, Any] | None = None,
        test: Mapping[str, Any] | None = None,
        held_out: float = 0.1,
        count: int = 10_000,
        solved: float = 1.0,
        split: str = "train",
        max_turns: int = 50,
        expert: bool | str = False,
        render_mode: str | None = None,
    ):
        super().__init__(split, max_turns, expert, render_mode)
        if not 0 < held_out < 1 or count < 2:
            raise InvalidArgument(f"held_out is a share below 1 and count at least 2, got {held_out} and {count}")
        name = taskset.partition("://")[2] or taskset
        shared = dict(settings or {})
        self._solved = solved
        self._episode: _Episode | None = None
        self._env, everything = _opened(name, shared, count)
        self._theirs: dict[str, dict[str, Any]] = {}  # by split and id: the task as verifiers has it
        if test is not None:
            chosen = {"train": everything, "test": _opened(name, shared | dict(test), count)[1]}
        else:
            first = min(len(everything) - 1, max(1, round(len(everything) * (1 - held_out))))
            chosen = {"train": everything[:first], "test": everything[first:]}
        self._tasks = {split: self._named(split, tasks) for split, tasks in chosen.items()}

    def tasks(self, split: str) -> TaskSet:
        if split not in self._tasks:
            raise InvalidArgument(f"there is no split {split!r:.80}; choose one of {', '.join(self._tasks)}")
        return self._tasks[split]

    def begin(self, task: Task) -> Outcome:
        self._leave()
        self._episode = _Episode(self._env, self._theirs[task.split][task.id])
        said = self._episode.next()
        if isinstance(said, _Over):
            raise WorldBroke(f"{task.id}: the episode ended before anybody was asked: {_reason(said.error)}")
        return Outcome(said)

    def act(self, action: str) -> Outcome:
        assert self._episode is not None
        self._episode.say(action)
        said = self._episode.next()
        terminated = isinstance(said, _Over)
        if not isinstance(said, _Over) and self.turn >= self.max_turns:
            said = self._episode.stop()
        if not isinstance(said, _Over):
            return Outcome(said)
        self._episode = None
        if said.error is not None:
            raise WorldBroke(_reason(said.error)) from said.error
        return Outcome("", reward=said.reward, terminated=terminated, success=said.reward >= self._solved)

    def close(self) -> None:
        self._leave()
        super().close()

    def _leave(self) -> None:
        if self._episode is not None:
            self._episode.leave()
            self._episode = None

    def _named(self, split: str, tasks: list[Any]) -> TaskSet:
        self._theirs[split] = theirs = {}
        found = []
        for number, task in enumerate(tasks):
            name = str(task.data.id or task.data.name or number)
            name = f"{name}-{number}" if name in theirs else name
            theirs[name] = task
            # Its place in the taskset is no part of its content: two of one content must not be in both splits.
            digest = type(task)(task.data.model_copy(update={"idx": None}), task.config).hash
            found.append(Task(name, split, type(task).__name__, digest))
        return TaskSet(split, sorted(found, key=lambda one: one.id))


class _Episode:
    """One episode as verifiers plays it, in a thread, and the way to and from it."""

    def __init__(self, env: Any, task: Any):
        self._said: queue.SimpleQueue[str | _Over] = queue.SimpleQueue()
        self._heard: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._env, self._task = env, task
        self._thread = threading.Thread(target=self._play, name="verifiers-episode", daemon=True)
        self._thread.start()

    def next(self) -> str | _Over:
        """What the environment says, or its end."""
        try:
            return self._said.get(timeout=ANSWER_SECONDS)
        except queue.Empty:
            raise WorldBroke(f"the environment has said nothing for {ANSWER_SECONDS:g} s") from None

    def say(self, text: str) -> None:
        self._heard.put(text)

    def stop(self) -> str | _Over:
        """Tell it that there will be no further reply; its end."""
        self._heard.put(None)
        while not isinstance(said := self.next(), _Over):
            self._heard.put(None)
        return said

    def leave(self) -> None:
        """Give it up."""
        self._heard.put(None)
        self._thread.join(LEAVE_SECONDS)

    def ask(self, text: str) -> str | None:
        """In its own thread: what is replied to ``text``; None where there will be no reply."""
        self._said.put(text)
        return self._heard.get()

    def _play(self) -> None:
        try:
            self._said.put(_Over(asyncio.run(self._run())))
        except BaseException as error:
            self._said.put(_Over(0.0, error))

    async def _run(self) -> float:
        from verifiers.v1.agent import Agents
        from verifiers.v1.episode import EnvInfo, Episode
        from verifiers.v1.trace import TraceTask

        env, task = self._env, self._task
        record = Episode(
            env=EnvInfo(id=env.config.env_id),
            task=TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash),
        )
        agents: Any = Agents(env.config, lambda name, config: _Seat(name, config, self, record.traces))
        await env.setup(agents)
        await env.run(task, agents)
        await env.finalize(task, record)
        return float(sum(trace.reward for trace in record.traces))


class _Seat:
    """The agent that an environment asks: its replies are the world's actions."""

    def __init__(self, name: str, config: Any, episode: _Episode, traces: list[Any]):
        self.name, self.config, self.trainable = name, config, True
        self._episode, self._traces = episode, traces

    async def run(self, task: Any, **more: Any) -> Any:
        """A whole run of a plain chat: the prompt, one reply, and the task's own score."""
        if more:
            raise CannotPlay(f"{type(task).__name__}: its environment runs an agent with {', '.join(more)}")
        async with self.interaction(task) as talk:
            await talk.turn()
        return talk.trace

    @asynccontextmanager
    async def interaction(self, task: Any, **more: Any) -> AsyncIterator[_Talk]:
        if more:
            raise CannotPlay(f"{type(task).__name__}: its environment opens a conversation with {', '.join(more)}")
        _require_playable(task)
        talk = _Talk(self, task, self._episode)
        yield talk
        talk.trace.is_completed = talk.trace.ok = True
        await task.score(talk.trace)
        self._traces.append(talk.trace)


class _Talk:
    """A conversation with the seat, and its record."""

    def __init__(self, seat: _Seat, task: Any, episode: _Episode):
        from verifiers.v1.rollout import state_cls
        from verifiers.v1.trace import AgentInfo, Trace, TraceTask

        self._task, self._episode = task, episode
        self.trace: Any = Trace(
            task=TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash),
            state=state_cls(type(task))(),
            agent=AgentInfo(config=seat.config, name=seat.name),
        )

    async def turn(self, message: Any = None) -> Any:
        """The reply to ``message``; to the task's prompt where there is none."""
        from verifiers.v1.agent import Segment
        from verifiers.v1.types import AssistantMessage, SystemMessage, UserMessage

        data, first = self._task.data, not self.trace.nodes
        if first and data.system_prompt:
            self._keep(SystemMessage(content=data.system_prompt))
        parts = [data.system_prompt, data.prompt_text] if first else []
        text = "\n\n".join(part for part in [*parts, _words(message)] if part)
        if not text:
            raise CannotPlay(f"{type(self._task).__name__}: nothing is said before a reply is asked for")
        if first and data.prompt_text:
            self._keep(UserMessage(content=data.prompt_text))
        if message is not None:
            self._keep(UserMessage(content=_words(message)))
        if self.trace.stop_condition is None:
            for hook in self._task.hooks("stop"):
                if not first and await _called(hook, self._task.data, self.trace):
                    self.trace.stop(hook.__name__)
        reply = None
        if self.trace.stop_condition is None:
            reply = await asyncio.get_running_loop().run_in_executor(None, self._episode.ask, text)
        if reply is None:
            if self.trace.stop_condition is None:
                self.trace.stop("max_turns")
            return Segment(messages=[], terminated=True)
        answer = AssistantMessage(content=reply)
        self._keep(answer, sampled=True)
        return Segment(messages=[answer])

    def _keep(self, message: Any, sampled: bool = False) -> None:
        from verifiers.v1.graph import MessageNode

        nodes = self.trace.nodes
        nodes.append(MessageNode(parent=len(nodes) - 1 if nodes else None, message=message, sampled=sampled))


async def _called(hook: Any, data: Any, trace: Any) -> bool:
    given = {"task": data, "trace": trace}
    found = hook(**{name: given[name] for name in inspect.signature(hook).parameters if name in given})
    return bool(await found if inspect.isawaitable(found) else found)


def _opened(name: str, settings: dict[str, Any], count: int) -> tuple[Any, list[Any]]:
    """The environment that verifiers pairs with a taskset, and the first ``count`` of its tasks."""
    try:
        import verifiers.v1 as vf
        from verifiers.v1.configs.agent import agent_config_fields
        from verifiers.v1.utils.loaders import load_environment, resolve_env_config
    except ImportError as error:
        raise MissingPackage(
            f"verifiers://{name} needs the package verifiers ({first_line(error)}): install it beside this project "
            "in an environment of its own, with the pins of constraints/verifiers.txt"
        ) from None
    try:
        env: Any = load_environment(resolve_env_config({"taskset": {"id": name, **settings}}))
        tasks = list(env.taskset.take(count))
    except Exception as error:  # somebody else's code may raise anything
        raise InvalidArgument(f"verifiers://{ascii_only(name)[:80]}: {_reason(error)}") from error
    seats = list(agent_config_fields(env.config))
    if len(seats) != 1:
        raise CannotPlay(f"verifiers://{name} has the agents {', '.join(seats)}: a world has one that acts")
    if len(tasks) < 2:
        raise InvalidArgument(f"verifiers://{name} lists {len(tasks)} tasks, and two splits need at least two")
    served = type(env).start is not vf.Env.start or type(tasks[0]).toolsets(tasks[0].config)
    if served or env.taskset.toolsets(env.taskset.config):
        raise CannotPlay(f"verifiers://{name} serves tools or resources of its own: a world is played by messages")
    _require_playable(tasks[0])
    return env, tasks


def _require_playable(task: Any) -> None:
    """CannotPlay for a task that is prepared or judged in a box, which nobody makes here."""
    import verifiers.v1 as vf

    kind = type(task)
    boxed = [
        name for name in ("setup", "finalize", "stage_verifier") if getattr(kind, name) is not getattr(vf.Task, name)
    ]
    for hook in [*task.hooks("reward"), *task.hooks("metric")]:
        wanted = inspect.signature(hook).parameters.get("runtime")
        boxed += [hook.__name__] if wanted is not None and wanted.default is inspect.Parameter.empty else []
    if kind.NEEDS_CONTAINER or boxed or task.data.image:
        why = ", ".join(boxed) or "its container"
        raise CannotPlay(f"{kind.__name__} needs a box to run in ({why}): a world is played by messages alone")


def _words(message: Any) -> str:
    """The text of a message, or of several."""
    if message is None or isinstance(message, str):
        return message or ""
    from verifiers.v1.types import content_text

    return "\n\n".join(content_text(one.content) for one in message if one.content)


def _reason(error: BaseException | None) -> str:
    return f"{type(error).__name__}: {ascii_only(first_line(error, 300))}" if error is not None else "without a word"
