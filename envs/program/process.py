"""A program's run, in a process that the pool's fork server ends with everything it started."""

from __future__ import annotations

import asyncio
import inspect
import json
import math
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import gymnasium

from gagpo.base.registry import Registry
from gagpo.base.separation import separate
from gagpo.envs.base import Info
from gagpo.envs.pool.wire import Garbage
from gagpo.envs.program.command import run
from gagpo.envs.program.messages import MAX_REWARD, Json
from gagpo.envs.program.rewards import author, call_reward, needs_token_ids, secret_columns
from gagpo.envs.program.sandboxed import run_sandboxed

FUNCTIONS: Registry[Callable[..., Any]] = Registry("function", "gagpo.functions", {})


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


def report(result: object, author: str) -> str:
    """The result of a function as a program reports it: one line of JSON.

    author: who returned it, for the error.

    Raises: Garbage for what is neither a number nor a mapping with one.
    """
    values = dict(result) if isinstance(result, Mapping) else {"reward": result}
    report: dict[str, float | bool] = {}
    if "reward" in values:
        report["reward"] = _number(values["reward"], author)
    success = _unwrapped(values.get("success"))
    if success is not None:
        if not isinstance(success, bool):
            raise Garbage(f"{author} returned {success!a:.40} as success; return True or False")
        report["success"] = success
    return json.dumps(report)


def _number(value: object, author: str) -> float:
    """A reward as a number: of Python, or a scalar of NumPy, torch and others."""
    number = _unwrapped(value)
    convertible = hasattr(type(number), "__float__") and not hasattr(number, "shape")
    try:
        if convertible:
            return _bounded(float(number), author)  # type: ignore[arg-type]
    except Garbage:
        raise
    except OverflowError:
        return _bounded(math.inf, author)
    except (TypeError, ValueError):
        pass
    shape = f"an array of shape {number.shape}" if hasattr(number, "shape") else type(number).__name__
    raise Garbage(f'{author} returned {shape} as the reward; return a number, or {{"reward": 1.0, "success": True}}')


def _bounded(number: float, author: str) -> float:
    if not abs(number) <= MAX_REWARD:
        raise Garbage(
            f"{author} returned {number} as the reward; return a number from {-MAX_REWARD:g} to {MAX_REWARD:g}"
        )
    return number


def _unwrapped(value: object) -> object:
    """The Python number in an array without dimensions; any other value as it is."""
    return value.item() if getattr(value, "shape", None) == () and hasattr(value, "item") else value
