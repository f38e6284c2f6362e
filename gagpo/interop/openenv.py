"""Any environment as an OpenEnv server.

An observation holds only ``text``, because clients paste the whole observation into the prompt. ``metadata`` holds
``truncated``, ``success``, ``valid``, and after a reset ``split`` and ``index``. State keys, experts and other entries
of ``info`` are not sent.
"""

from __future__ import annotations

import asyncio
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
from gagpo.interop.games import Kwargs, opened

LARGEST = 1 << 20  # bytes of a message
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


class ActionRefused(HTTPException):
    """A request that cannot be fulfilled; ``detail`` says why."""

    def __str__(self) -> str:
        return str(self.detail)


class OpenEnvEnvironment:
    """What all sessions of a server share: the worker processes, and the tasks of every split.

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
            raise InvalidArgument("a server does not offer an expert: leave out the argument expert")
        with opened(env_id, arguments) as env:
            self.tasks = {split: env.tasks(split) for split in getattr(env, "splits", ("train", "test"))}
            about = getattr(env, "instructions", "") or (type(env).__doc__ or "").strip().partition("\n\n")[0]
            self.split = getattr(env, "split", next(iter(self.tasks)))
        self.name, self.description = short_name(env_id), about
        self.admissible, self.session_timeout = admissible, session_timeout
        self.pool = SharedPool(env_id, arguments, workers=workers, step_timeout=step_timeout)

    def of(self, split: str) -> TaskSet:
        if not isinstance(split, str) or split not in self.tasks:
            raise ActionRefused(404, f"no split {str(split)[:80]!r}; choose one of {', '.join(self.tasks)}")
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
        self._closed = False

    async def reset_async(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        split: str | None = None,
        index: int | None = None,
        task: str | None = None,
        **unknown: object,
    ) -> TextObservation:
        """Start the ``index``-th task of ``split``, or ``task`` by its id; without either, ``seed`` draws one."""
        if unknown:
            raise ActionRefused(422, f"unknown reset argument {min(unknown)[:80]!r}; known: seed, split, index, task")
        if seed is not None and (type(seed) is not int or not 0 <= seed < 2**63):
            raise ActionRefused(422, "seed must be a whole number from 0 to 2^63 - 1")
        tasks = self.env.of(self.env.split if split is None else split)
        chosen = self._choose(tasks, seed, index, task)
        event = await self._ask("reset", chosen.id, seed)
        self._state = State(episode_id=None if episode_id is None else str(episode_id)[:255], step_count=0)
        return self._observation(event, {"split": tasks.split, "index": tasks.ids.index(chosen.id)})

    async def step_async(
        self, action: TextAction, timeout_s: float | None = None, **unknown: object
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
        self._closed = True
        self.env.pool.release(self.slot)

    def get_metadata(self) -> EnvironmentMetadata:
        return EnvironmentMetadata(name=self.env.name, description=self.env.description, version="1")

    def _choose(self, tasks: TaskSet, seed: int | None, index: int | None, task: str | None) -> Task:
        if not len(tasks):
            raise ActionRefused(404, f"split {tasks.split!r} is empty")
        if task is not None:
            if not isinstance(task, str) or task not in tasks:
                raise ActionRefused(404, f"split {tasks.split!r} has no task {str(task)[:80]!r}")
            return tasks[task]
        if index is None:
            return tasks.draw(seeding.np_random(seed)[0])
        if type(index) is not int or not 0 <= index < len(tasks):
            raise ActionRefused(404, f"split {tasks.split!r} has {len(tasks)} tasks, no index {str(index)[:20]}")
        return tasks[tasks.ids[index]]

    async def _ask(self, operation: str, *arguments: str | int | None) -> Event:
        if time.monotonic() > self.until:
            self.close()
        if self._closed:
            raise ActionRefused(410, f"the session is over (limit {self.env.session_timeout:g} s): open another")
        try:
            event = await asyncio.wrap_future(getattr(self.env.pool, operation)(self.slot, *arguments))
        except ValueError as error:
            raise ActionRefused(409, str(error).replace(f"slot {self.slot}", "this session")) from None
        except (PoolClosed, CancelledError) as error:
            raise ActionRefused(503, f"the server is closing: {error}") from None
        if (event.kind in ("restarted", "failed") and operation == "step") or event.kind == "failed":
            self.env.pool.release(self.slot)
            raise ActionRefused(
                500, f"the environment broke and the episode is lost; reset to play again ({event.error[:300]})"
            )
        return event

    def _observation(self, event: Event, more: Mapping[str, object]) -> TextObservation:
        info, stepped = event.info, event.kind == "step"
        done = event.terminated or event.truncated
        flags = {name: bool(info.get(name)) for name in ("success", "valid")}
        reward, metadata = event.reward if stepped else None, {"truncated": event.truncated, **flags, **more}
        shown = TextObservation(text=event.observation, done=done, reward=reward, metadata=metadata)
        if not self.env.admissible:
            return shown
        return TextAndActions(**vars(shown), admissible_actions=info.get("admissible_actions"))


async def _explain(request: Request, error: Exception) -> JSONResponse:
    """Say what is wrong with a request without repeating its values, which may not be valid JSON (NaN)."""
    assert isinstance(error, RequestValidationError)
    found = [{"loc": list(map(str, one["loc"])), "msg": one["msg"], "type": one["type"]} for one in error.errors()]
    return JSONResponse({"detail": found}, 422)


async def _not_repeated(request: Request, error: Exception) -> JSONResponse:
    """Answer 422 where OpenEnv would repeat text of the request that UTF-8 cannot encode."""
    return JSONResponse({"detail": "the request holds text that is not valid Unicode, such as a lone surrogate"}, 422)


def serve(
    env_id: str,
    kwargs: Kwargs | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    workers: int = 2,
    max_sessions: int = 64,
    admissible: bool = False,
    session_timeout: float = 3600.0,
    step_timeout: float = 60.0,
) -> None:
    """Serve ``env_id`` until interrupted; print the address on standard output once it accepts connections.

    A client that disappears is noticed within 40 seconds. Requests from other sites' pages are rejected; at a loopback
    address, so are requests for any other host name.

    port: 0 takes a free one.
    """
    with socket.create_server((host, port)) as listener:
        env = OpenEnvEnvironment(env_id, kwargs, workers, admissible, session_timeout, step_timeout)
        try:
            app = create_app(
                lambda: ServedEnvironment(env),
                TextAction,
                TextAndActions if admissible else TextObservation,
                env_name=env.name,
                concurrency_config=ConcurrencyConfig(max_concurrent_envs=max_sessions, session_timeout=IDLE_SECONDS),
            )
            app.add_exception_handler(RequestValidationError, _explain)
            app.add_exception_handler(PydanticSerializationError, _not_repeated)
            app.add_middleware(LimitBody, max_bytes=LARGEST)
            # The outermost. Any name is right where other machines may ask.
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
