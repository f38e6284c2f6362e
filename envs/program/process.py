"""A program's run, in a process that the pool's fork server ends with everything it started."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
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
            FUNCTIONS.find(name)
        if agent:
            asyncio.run(_warmed())

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[str, Info]:
        order: Json = json.loads((options or {})["task"])
        os.environ.update(order["variables"])
        if "transcript" in order:
            return _reported(FUNCTIONS.find(self.judge)(order["row"], order["transcript"])), {"status": 0}
        if self.agent:
            return _reported(asyncio.run(_played(FUNCTIONS.find(self.agent), order["row"]))), {"status": 0}
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            alive = functools.partial(guard.die_with_parent, os.getpid())
            nothing = subprocess.DEVNULL
            child = subprocess.Popen(self.command, stdin=nothing, stdout=output, stderr=errors, preexec_fn=alive)
            return _tail(output, child), {"status": child.wait(), "errors": _tail(errors, child)}


async def _warmed() -> None:
    """Have a client answered here, and refused by the network: in its first calls it imports 144 modules."""
    import httpx2
    from openai import APIConnectionError, AsyncOpenAI

    said = {"choices": [{"index": 0, "message": {"role": "assistant", "content": ""}, "finish_reason": "stop"}]}
    here = httpx2.MockTransport(lambda request: httpx2.Response(200, json=said))
    for plain in (httpx2.AsyncClient(transport=here), httpx2.AsyncClient(verify=False)):
        async with AsyncOpenAI(base_url="http://127.0.0.1:9", api_key="-", http_client=plain, max_retries=0) as client:
            with suppress(APIConnectionError):
                await client.chat.completions.create(model="-", messages=[{"role": "user", "content": ""}])


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


def _tail(file: IO[bytes], child: subprocess.Popen[bytes]) -> str:
    """The end of what a child wrote, once it has ended."""
    child.wait()
    file.seek(max(0, file.seek(0, os.SEEK_END) - MOST_OUTPUT))
    return file.read().decode("utf-8", "replace")
