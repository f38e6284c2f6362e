"""A program's run, in a process that the pool's fork server ends with everything it started."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import IO, Any

import gymnasium

from gagpo.base import guard
from gagpo.base.registry import Registry
from gagpo.envs.base import Info
from gagpo.envs.program.messages import Json

FUNCTIONS: Registry[Callable[..., Any]] = Registry("function", "gagpo.functions", {})
MOST_OUTPUT = 64 << 10  # bytes of a program's output that are read, the last ones


class ProgramProcess(gymnasium.Env[str, str]):
    """``reset`` runs the program, or the reward function, to its end. Its ``task`` is JSON.

    It returns the output, with ``status`` and ``errors`` of a command in the ``info``. For arguments see
    :class:`gagpo.envs.program.env.ProgramEnv`.
    """

    def __init__(self, command: Sequence[str], agent: str, reward: str):
        self.command, self.agent, self.judge = list(command), agent, reward

    @staticmethod
    def preload(command: Sequence[str], agent: str, reward: str) -> None:
        """Import once what all runs need."""
        for name in filter(None, (agent, reward)):
            _function(name)
        if agent:
            asyncio.run(_warmed())

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[str, Info]:
        order: Json = json.loads((options or {})["task"])
        os.environ.update(order["variables"])
        if "transcript" in order:
            return _reported(_function(self.judge)(order["row"], order["transcript"])), {"status": 0}
        if self.agent:
            return _reported(asyncio.run(_played(_function(self.agent), order["row"]))), {"status": 0}
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            streams = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": errors}
            alive = functools.partial(guard.die_with_parent, os.getpid())
            done = subprocess.run(self.command, **streams, preexec_fn=alive, check=False)
            return _tail(output), {"status": done.returncode, "errors": _tail(errors)}


def _function(name: str) -> Callable[..., Any]:
    """The function ``module:name``; modules of the working directory are found last."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    return FUNCTIONS.find(name)


async def _warmed() -> None:
    """Have one answer that never leaves this process: in its first call a client makes 30 ms of classes."""
    import httpx2
    from openai import AsyncOpenAI

    said = {"choices": [{"index": 0, "message": {"role": "assistant", "content": ""}, "finish_reason": "stop"}]}
    network = httpx2.MockTransport(lambda request: httpx2.Response(200, json=said))
    plain = httpx2.AsyncClient(transport=network)
    async with AsyncOpenAI(base_url="http://127.0.0.1", api_key="none", http_client=plain) as client:
        await client.chat.completions.create(model="none", messages=[{"role": "user", "content": ""}])


async def _played(agent: Callable[..., Any], row: Json) -> object:
    """What the agent returns for its task."""
    from openai import AsyncOpenAI, DefaultAsyncHttpxClient

    plain = DefaultAsyncHttpxClient(verify=False)  # no TLS here, and loading certificates takes 40 ms
    async with AsyncOpenAI(max_retries=0, timeout=None, http_client=plain) as client:
        found = agent(row, client)
        return await found if inspect.isawaitable(found) else found


def _reported(result: object) -> str:
    """The result of a function as a program reports it."""
    return json.dumps(result if isinstance(result, dict) else {"reward": result})


def _tail(file: IO[bytes]) -> str:
    file.seek(max(0, file.seek(0, os.SEEK_END) - MOST_OUTPUT))
    return file.read().decode("utf-8", "replace")
