"""The environment of an OpenEnv server as a text environment: its tasks and splits, and episodes in one session."""

from __future__ import annotations

import copy
import threading
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar

import numpy as np

from gagpo.base.errors import InvalidArgument
from gagpo.envs.base import Info, Kwargs, Outcome, TextEnv
from gagpo.envs.openenv.description import DESCRIBE_SECONDS, ServerDescription, addresses, describe, list_tasks
from gagpo.envs.openenv.errors import ServerLost, ServerSilent
from gagpo.envs.openenv.loop import CLOSE_SECONDS, LoopThread
from gagpo.envs.openenv.session import Session
from gagpo.envs.plain import MAX_TURNS, SEEDS, seed_ranges
from gagpo.envs.pool import Pool
from gagpo.envs.tasks import Task, TaskSet

NAME = "gagpo/OpenEnv-v0"  # of every environment on a server, in the digests of seeds
STEP_SECONDS = 60.0
RESET_SECONDS = 300.0


class RemoteEnv(TextEnv):
    """An environment on one or several OpenEnv servers.

    The tasks are those that the server lists, with the ids and hashes that they have in the server's process. The
    seeds are the tasks where it lists none, or where ``tasks`` names seeds.

    url: the servers' addresses, separated by commas. All must serve the same environment; the first that answers
        describes it.
    tasks: the seeds of each split as inclusive ranges.
    field: the field of an action that carries the text.
    actions: texts for random play, where the server lists no admissible actions.

    Raises:
        ServerLost: no server answers.
        ServerFailed: what a server says about its environment is invalid.
    """

    splits: ClassVar[tuple[str, ...]] = ()  # an instance's are those of its server or of its seeds
    immaterial = TextEnv.immaterial | {"tasks"}  # the hash of the tasks covers them
    packages: ClassVar[Mapping[str, str]] = {"openenv": "gagpo[openenv]"}

    def __init__(
        self,
        url: str,
        tasks: Mapping[str, object] | None = None,
        field: str = "action",
        actions: Sequence[object] | None = None,
        split: str | None = None,
        max_turns: int = MAX_TURNS,
        expert: bool | str = False,
        render_mode: str | None = None,
    ):
        self.urls = addresses(url)
        self.field = field
        self.actions = [str(action) for action in actions or ()]
        self.session = Session(self.urls[0], field)
        self.step_timeout = STEP_SECONDS
        self.reset_timeout = RESET_SECONDS
        self.loop = LoopThread("openenv")
        try:
            self.description = self._describe()
            seeds_are_tasks = bool(tasks) or not self.description.splits
            self._seeds = seed_ranges(tasks or SEEDS) if seeds_are_tasks else {}
            self._tasks: dict[str, TaskSet] = {}
            self._tasks_lock = threading.Lock()
            self.splits = tuple(self._seeds) or self.description.splits  # type: ignore[misc]
            super().__init__(split or self.splits[0], max_turns, expert, render_mode)
        except BaseException:
            self.loop.close()
            raise
        self.instructions = self.description.instructions  # type: ignore[misc]
        self.multiline = self.description.multiline  # type: ignore[misc]
        self.tools = self.description.tools
        self._seed: int | None = None

    @classmethod
    def open_pool(
        cls,
        kwargs: Kwargs,
        memory: int | None,
        step_timeout: float = STEP_SECONDS,
        reset_timeout: float = RESET_SECONDS,
    ) -> Pool:
        """A pool of sessions, which :func:`gagpo.envs.pool.opening.open_pool` opens."""
        from gagpo.envs.openenv.pool import SessionPool

        env = cls(**kwargs)
        env.step_timeout = step_timeout
        env.reset_timeout = reset_timeout
        return SessionPool(env)

    def at(self, url: str) -> RemoteEnv:
        """The same environment with a session at the server ``url``; it shares the tasks and the event loop."""
        env = copy.copy(self)
        env.session = Session(url, self.field)
        env._over = True
        return env

    def tasks(self, split: str) -> TaskSet:
        if split not in self.splits:
            raise InvalidArgument(f"no split {split!r:.80}", advice=f"choose one of {', '.join(self.splits)}")
        with self._tasks_lock:  # sessions in many threads ask for them at once
            if split not in self._tasks:
                self._tasks[split] = self._seed_tasks(split) if self._seeds else self._list(split)
            return self._tasks[split]

    def reset(self, *, seed: int | None = None, options: Mapping[str, object] | None = None) -> tuple[str, Info]:
        self._seed = seed
        return super().reset(seed=seed, options=options)

    def begin(self, task: Task) -> Outcome:
        arguments: dict[str, object] = {} if self._seed is None else {"seed": self._seed}
        if self._seeds:
            arguments = {"seed": int(task.source)}
        else:
            arguments |= {"split": task.split, "index": int(task.source)}
        if self.description.sends_states:
            arguments["training"] = True
        task_id = "" if self._seeds else task.id
        return self._answer(self.session.reset(arguments, task_id), self.reset_timeout)

    def act(self, action: str) -> Outcome:
        text = action.encode(errors="replace").decode()  # a lone surrogate cannot be sent
        return self._answer(self.session.step(text), self.step_timeout)

    def sample_action(self, rng: np.random.Generator) -> str:
        if self.tools:
            return self.tools[int(rng.integers(len(self.tools)))].sample(rng).text
        return super().sample_action(rng)

    def end_session(self) -> None:
        """Close the connection; the next reset makes another."""
        with suppress(TimeoutError):  # the server does not answer: the connection ends with the loop
            self.loop.run(self.session.close(), CLOSE_SECONDS)

    def close(self) -> None:
        self.end_session()
        self.loop.close()

    def _answer(self, request: Coroutine[Any, Any, Outcome], timeout: float) -> Outcome:
        try:
            outcome = self.loop.run(request, timeout)
        except TimeoutError:
            raise ServerSilent(f"did not answer within {timeout:g} s", where=self.session.url) from None
        if self.actions:
            outcome.admissible_actions = list(self.actions)
        return outcome

    def _describe(self) -> ServerDescription:
        """The description by the first server that answers."""
        lost: list[str] = []
        for url in self.urls:
            try:
                return self.loop.run(describe(url), 3 * DESCRIBE_SECONDS)
            except ServerLost as error:
                lost.append(str(error))
            except TimeoutError:
                lost.append(f"{url} cannot be reached: no answer within {3 * DESCRIBE_SECONDS:g} s")
        raise ServerLost("; ".join(lost))

    def _seed_tasks(self, split: str) -> TaskSet:
        named_seeds = ((f"{split}-{seed:07d}", str(seed)) for seed in self._seeds[split])
        return TaskSet(split, (Task(name, split, digest=f"{NAME} {seed}", source=seed) for name, seed in named_seeds))

    def _list(self, split: str) -> TaskSet:
        error: Exception = ServerSilent("no server answered")
        for url in self.urls:
            try:
                return self.loop.run(list_tasks(url, self.description.name, split), DESCRIBE_SECONDS)
            except ServerLost as reason:
                error = reason
            except TimeoutError:
                error = ServerSilent(f"did not list its tasks within {DESCRIBE_SECONDS:g} s", where=url)
        raise error
