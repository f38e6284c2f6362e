"""Any environment as an OpenEnv server.

An observation holds only ``text``, because clients paste the whole observation into the prompt. ``metadata`` holds
``truncated``, ``success``, ``valid``, and after a reset ``split`` and ``index``. A reset with ``training=True`` adds
what a trainer needs and no agent may read: the key of the state, hashed, and the task's id. Experts and other entries
of ``info`` are never sent. The tasks of a split are listed by OpenEnv's Task API, and ``GET /gagpo`` describes the
environment to :class:`gagpo.envs.openenv.env.RemoteEnv`.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import socket
import time
from collections.abc import Mapping
from concurrent.futures import CancelledError
from typing import Any

import uvicorn
from fastapi import HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from gymnasium.utils import seeding
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, ConcurrencyConfig, EnvironmentMetadata, Observation, State
from pydantic import Field, field_validator
from pydantic_core import PydanticSerializationError

from gagpo.base.errors import InvalidArgument
from gagpo.base.limits import LimitBody, OwnPagesOnly
from gagpo.base.origin import LOOPBACK
from gagpo.envs.pool import Event
from gagpo.envs.pool.shared_pool import PoolClosed, SharedPool
from gagpo.envs.tasks import Task, TaskSet
from gagpo.envs.tools import tools_of
from gagpo.interop.games import Kwargs, opened

LARGEST = 1 << 20  # bytes of a message
KEY_BYTES = 16  # of a hashed state key: two of 10^9 states are equal by chance once in 10^20 servers
IDLE_SECONDS = 600.0  # after which an unused session ends


class TextAction(Action):
    """One action of the agent: any text."""

    action: str

    @field_validator("action", mode="before")
    @classmethod
    def _as_text(cls, value: object) -> str:
        """Accept other JSON values: a client that parses replies sends the answer 15 as a number."""
        text = value if isinstance(value, str) else json.dumps(value)
        return text.encode("utf-8", "replace").decode("utf-8")  # a lone surrogate cannot be sent on


class TextObservation(Observation):
    """What the agent sees."""

    text: str
    metadata: dict[str, object] = Field(default_factory=dict, exclude=True)  # sent next to the observation


class TextAndActions(TextObservation):
    """What the agent sees, with the admissible actions."""

    admissible_actions: list[str] | None = None


class SessionError(HTTPException):
    """A request that cannot be fulfilled; ``detail`` says why."""

    def __str__(self) -> str:
        return str(self.detail)


class OpenEnvEnvironment:
    """What all sessions of a server share: the worker processes, and the tasks of every split.

    Sessions are coroutines of the server's event loop. They wait for futures of the pool's thread; a step or reset has
    the pool's deadlines, so none waits for ever.

    Raises:
        InvalidArgument: an argument of the environment is wrong.
    """

    def __init__(
        self,
        env_id: str,
        kwargs: Kwargs | None = None,
        workers: int = 2,
        admissible: bool = False,
        session_timeout: float = 3600.0,
        step_timeout: float = 60.0,
    ):
        arguments = dict(kwargs or {})
        if arguments.pop("expert", False):
            raise InvalidArgument(
                "a server does not offer an expert", key="expert", advice="leave out the argument expert"
            )
        with opened(env_id, arguments) as env:
            self.tasks = {split: env.tasks(split) for split in getattr(env, "splits", ("train", "test"))}
            instructions = str(getattr(env, "instructions", ""))
            about = instructions or (type(env).__doc__ or "").strip().partition("\n\n")[0]
            self.split = getattr(env, "split", next(iter(self.tasks)))
            self.facts = {
                "instructions": instructions,
                "multiline": bool(getattr(env, "multiline", False)),
                "tools": [tool.spec["function"] for tool in tools_of(env)],
            }
        self.name = short_name(env_id)
        self.description = about
        self.admissible = admissible
        self.session_timeout = session_timeout
        self.pool = SharedPool(env_id, arguments, workers=workers, step_timeout=step_timeout)

    def of(self, split: str) -> TaskSet:
        if not isinstance(split, str) or split not in self.tasks:
            raise SessionError(404, f"no split {str(split)[:80]!r}; choose one of {', '.join(self.tasks)}")
        return self.tasks[split]


def short_name(env_id: str) -> str:
    """A name for addresses and folders.

    >>> short_name("gagpo/ALFWorld-v0"), short_name("guess:Guess-v0")
    ('alfworld', 'guess')
    """
    return env_id.rpartition(":")[2].rpartition("/")[2].rpartition("-v")[0].lower() or env_id.lower()


class ServedEnvironment(Environment[TextAction, TextObservation, State]):
    """One session: a slot in the shared pool."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, env: OpenEnvEnvironment):
        super().__init__()
        self.env = env
        self.slot = env.pool.open()
        self.until = time.monotonic() + env.session_timeout
        self._state = State(episode_id=None, step_count=0)
        self._is_closed = False
        self._for_training = False

    async def reset_async(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        split: str | None = None,
        index: int | None = None,
        task: str | None = None,
        training: bool = False,
        **extra_arguments: object,
    ) -> TextObservation:
        """Start the ``index``-th task of ``split``, or ``task`` by its id; without either, ``seed`` draws one.

        training: add the state's key to the metadata of this episode.
        """
        if extra_arguments:
            raise SessionError(
                422, f"unknown reset argument {min(extra_arguments)[:80]!r}; known: seed, split, index, task, training"
            )
        if type(training) is not bool:
            raise SessionError(422, "training must be true or false")
        if seed is not None and (type(seed) is not int or not 0 <= seed < 2**63):
            raise SessionError(422, "seed must be a whole number from 0 to 2^63 - 1")
        tasks = self.env.of(self.env.split if split is None else split)
        selected = self._choose(tasks, seed, index, task)
        event = await self._ask("reset", selected.id, seed)
        self._for_training = training
        self._state = State(episode_id=None if episode_id is None else str(episode_id)[:255], step_count=0)
        location = {"split": tasks.split, "index": tasks.index_of(selected.id)}
        return self._observation(event, {**location, "task": selected.id} if training else location)

    async def step_async(
        self, action: TextAction, timeout_s: float | None = None, **extra_arguments: object
    ) -> TextObservation:
        event = await self._ask("step", action.action)
        self._state.step_count += 1
        return self._observation(event, {})

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> TextObservation:
        return asyncio.run(self.reset_async(seed, episode_id, **kwargs))

    def step(self, action: TextAction, timeout_s: float | None = None, **kwargs: Any) -> TextObservation:
        return asyncio.run(self.step_async(action, timeout_s, **kwargs))

    @property
    def state(self) -> State:
        """Episode id and number of steps."""
        return self._state

    def close(self) -> None:
        self._is_closed = True
        self.env.pool.release(self.slot)

    # OpenEnv's Task API, which asks a new session for each request

    def list_splits(self) -> list[str]:
        return list(self.env.tasks)

    def num_tasks(self, split: str) -> int:
        return len(self.env.of(split))

    def list_tasks(self, split: str) -> list[dict[str, object]]:
        return self.get_task_range(split)

    def get_task(self, split: str, index: int) -> dict[str, object]:
        """Raises IndexError outside the split, which OpenEnv reports as 400."""
        tasks = self.env.of(split)
        if not 0 <= index < len(tasks):
            raise IndexError(index)
        return _listed(tasks[tasks.ids[index]], index)

    def get_task_range(self, split: str, start: int | None = None, stop: int | None = None) -> list[dict[str, object]]:
        rows = [_listed(task, index) for index, task in enumerate(self.env.of(split))]
        return rows[start:stop]

    def get_metadata(self) -> EnvironmentMetadata:
        return EnvironmentMetadata(name=self.env.name, description=self.env.description, version="1")

    def _choose(self, tasks: TaskSet, seed: int | None, index: int | None, task: str | None) -> Task:
        if not len(tasks):
            raise SessionError(404, f"split {tasks.split!r} is empty")
        if task is not None:
            if not isinstance(task, str) or task not in tasks:
                raise SessionError(404, f"split {tasks.split!r} has no task {str(task)[:80]!r}")
            return tasks[task]
        if index is None:
            return tasks.draw(seeding.np_random(seed)[0])
        if type(index) is not int or not 0 <= index < len(tasks):
            raise SessionError(404, f"split {tasks.split!r} has {len(tasks)} tasks, no index {str(index)[:20]}")
        return tasks[tasks.ids[index]]

    async def _ask(self, operation: str, *arguments: str | int | None) -> Event:
        if time.monotonic() > self.until:
            self.close()
        if self._is_closed:
            raise SessionError(410, f"the session is over (limit {self.env.session_timeout:g} s): open another")
        try:
            event = await asyncio.wrap_future(getattr(self.env.pool, operation)(self.slot, *arguments))
        except ValueError as error:
            raise SessionError(409, str(error).replace(f"slot {self.slot}", "this session")) from None
        except (PoolClosed, CancelledError) as error:
            raise SessionError(503, f"the server is closing: {error}") from None
        # A reset that started over is an ordinary beginning. After a step, the client's turns so far would be wrong.
        if event.kind == "failed" or (event.kind == "restarted" and operation == "step"):
            self.env.pool.release(self.slot)
            raise SessionError(
                500, f"the environment broke and the episode is lost; reset to play again ({event.error[:300]})"
            )
        return event

    def _observation(self, event: Event, metadata: Mapping[str, object]) -> TextObservation:
        observation = TextObservation(
            text=event.observation,
            done=event.terminated or event.truncated,
            reward=event.reward if event.kind == "step" else None,
            metadata={
                "truncated": event.truncated,
                "success": bool(event.info.get("success")),
                "valid": bool(event.info.get("valid")),
                **(_training_facts(event.info) if self._for_training else {}),
                **metadata,
            },
        )
        if not self.env.admissible:
            return observation
        return TextAndActions(**vars(observation), admissible_actions=event.info.get("admissible_actions"))


def _listed(task: Task, index: int) -> dict[str, object]:
    """A task as the Task API lists it. Its source, which may be a path or a solution, stays here."""
    return {"id": task.id, "index": index, "type": task.type, "digest": task.digest, "level": task.level}


def _training_facts(info: Mapping[str, Any]) -> dict[str, str]:
    """The state's key, hashed because it may spell out what the agent has to find, and the agent's parsed answer."""
    facts = {}
    if info.get("state") is not None:
        facts["state"] = hashlib.blake2b(str(info["state"]).encode(), digest_size=KEY_BYTES).hexdigest()
    if isinstance(info.get("answer"), str):
        facts["answer"] = info["answer"]
    return facts


async def _explain(request: Request, error: Exception) -> JSONResponse:
    """Say what is wrong with a request without repeating its values, which may not be valid JSON (NaN)."""
    assert isinstance(error, RequestValidationError)
    details = [
        {"loc": list(map(str, problem["loc"])), "msg": problem["msg"], "type": problem["type"]}
        for problem in error.errors()
    ]
    return JSONResponse({"detail": details}, 422)


async def _not_repeated(request: Request, error: Exception) -> JSONResponse:
    """Answer 422 where OpenEnv would repeat text of the request that UTF-8 cannot encode."""
    return JSONResponse({"detail": "the request holds text that is not valid Unicode, such as a lone surrogate"}, 422)


def serve(
    env_id: str,
    kwargs: Kwargs | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    max_sessions: int = 64,
    **options: Any,
) -> None:
    """Serve ``env_id`` until interrupted; print the address on standard output once it accepts connections.

    A client that disappears is noticed within 40 seconds. Requests from other sites' pages are rejected; at a loopback
    address, so are requests for any other host name.

    port: 0 takes a free one.
    options: of :class:`OpenEnvEnvironment`: ``workers``, ``admissible``, ``session_timeout`` and ``step_timeout``.
    """
    with socket.create_server((host, port)) as listener:
        env = OpenEnvEnvironment(env_id, kwargs, **options)
        try:
            app = create_app(
                lambda: ServedEnvironment(env),
                TextAction,
                TextAndActions if env.admissible else TextObservation,
                env_name=env.name,
                concurrency_config=ConcurrencyConfig(max_concurrent_envs=max_sessions, session_timeout=IDLE_SECONDS),
            )
            app.add_api_route("/gagpo", lambda: env.facts, methods=["GET"])
            app.add_exception_handler(RequestValidationError, _explain)
            app.add_exception_handler(PydanticSerializationError, _not_repeated)
            app.add_middleware(LimitBody, max_bytes=LARGEST)
            # Added last, so it checks requests first. Where other machines may connect, any host name is valid.
            app.add_middleware(OwnPagesOnly, hosts=LOOPBACK if host in LOOPBACK else None)
            config = uvicorn.Config(
                app,
                log_level="warning",
                ws_max_size=LARGEST,
                ws_ping_interval=20,
                ws_ping_timeout=20,
                timeout_keep_alive=30,
                timeout_graceful_shutdown=5,
            )
            print(f"serving {env_id} at http://{host}:{listener.getsockname()[1]}", flush=True)
            uvicorn.Server(config).run(sockets=[listener])
        finally:
            env.pool.close()
