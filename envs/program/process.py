"""A program's run, in a process that the pool's fork server ends with everything it started."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import gymnasium

from gagpo.base.separation import separate
from gagpo.envs.base import Info
from gagpo.envs.gateway.messages import Json
from gagpo.envs.program.command import run
from gagpo.envs.program.sandboxed import run_sandboxed
from gagpo.envs.rewards.calls import author, call_reward, needs_token_ids, secret_columns
from gagpo.envs.rewards.functions import FUNCTIONS, report


class ProgramProcess(gymnasium.Env[str, str]):
    """``reset`` runs the program, or the reward function, to its end, or describes that function. Its ``task`` is JSON.

    It returns the output, with ``status`` and ``errors`` of a command in the ``info``. For arguments see
    :class:`gagpo.envs.program.env.ProgramEnv`.
    """

    def __init__(
        self, command: Sequence[str], agent: str, reward: str, sandbox: str = "none", memory: int | None = None
    ):
        self.command = list(command)
        self.agent = agent
        self.reward_function = reward
        self.sandbox = sandbox
        self.memory = memory

    @staticmethod
    def preload(
        command: Sequence[str], agent: str, reward: str, sandbox: str = "none", memory: int | None = None
    ) -> None:
        """Import once what all runs need, so that they share it; runs in the fork server.

        The user's modules run here for the first time, so this process is separated from the training process before:
        they cannot read its environment variables. Processes that make sandboxes import none of them, and are not
        separated: that can forbid the mounts of a sandbox.
        """
        if sandbox == "none":
            separate()
        for name in filter(None, (agent, reward)):
            FUNCTIONS.find(name)
        if agent:
            asyncio.run(_warm_up_client())

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[str, Info]:
        order: Json = json.loads((options or {})["task"])
        if "describe" in order:
            function = FUNCTIONS.find(self.reward_function)
            return json.dumps([secret_columns(function), needs_token_ids(function)]), {"status": 0}
        if self.sandbox == "none":
            separate()  # from other episodes, whose keys this one must not read
        os.environ.update(order["variables"])
        tempfile.tempdir = None  # the cached choice of the fork server: the next use reads TMPDIR again
        if "transcript" in order:
            function = FUNCTIONS.find(self.reward_function)
            row = order["row"]
            return report(call_reward(function, row, order["transcript"]), author(row)), {"status": 0}
        if self.agent:
            reward = asyncio.run(_run_agent(FUNCTIONS.find(self.agent), order["row"]))
            # Without a returned reward it may have posted one, so None is not an error.
            return "" if reward is None else report(reward, "the agent"), {"status": 0}
        if self.sandbox == "none":
            status, output, errors = run(self.command)
        else:
            status, output, errors = run_sandboxed(self.command, order["variables"], self.memory)
        return output, {"status": status, "errors": errors}


async def _warm_up_client() -> None:
    """Make a request to a mock, and one that the network rejects: the client's first calls import 144 modules."""
    import httpx2
    from openai import APIConnectionError, AsyncOpenAI

    completion = {"choices": [{"index": 0, "message": {"role": "assistant", "content": ""}, "finish_reason": "stop"}]}
    mock = httpx2.MockTransport(lambda request: httpx2.Response(200, json=completion))
    for http_client in (httpx2.AsyncClient(transport=mock), httpx2.AsyncClient(verify=False)):
        async with AsyncOpenAI(
            base_url="http://127.0.0.1:9", api_key="-", http_client=http_client, max_retries=0
        ) as client:
            with suppress(APIConnectionError):
                await client.chat.completions.create(model="-", messages=[{"role": "user", "content": ""}])


async def _run_agent(agent: Callable[..., Any], row: Json) -> object:
    """What the agent returns for its task."""
    from openai import AsyncOpenAI, DefaultAsyncHttpxClient

    http_client = DefaultAsyncHttpxClient(verify=False)  # no TLS here, and loading certificates takes 40 ms
    async with AsyncOpenAI(max_retries=0, timeout=None, http_client=http_client) as client:
        result = agent(row, client)
        return await result if inspect.isawaitable(result) else result
