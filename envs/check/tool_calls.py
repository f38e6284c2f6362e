"""Checks the names and schemas of an environment's tools, and that bad calls do no harm."""

from __future__ import annotations

import json
import random
from contextlib import closing

import numpy as np

from gagpo.base.errors import GagpoError
from gagpo.envs.check.subject import Subject, require
from gagpo.envs.pool.wire import describe
from gagpo.envs.tools import Tool, ToolCall, tools_of

_SAMPLES = 3  # calls of each tool
WRONG = {
    "no call": "look around",
    "half a call": '{"name": "',
    "a list": "[1, 2]",
    "a number": "9" * 400,
    "deep nesting": '{"name": "a", "arguments": ' + '{"a":' * 2000 + "1" + "}" * 2001,
    "a key twice": '{"name": "a", "name": "a"}',
    "no tool of that name": ToolCall("no_such_tool", {"a": 1}).text,
    "half a surrogate pair": '{"name": "\\ud800"}',
}
"""Texts that are not a call of any environment; each must be answered as an invalid action."""


def tool_calls(subject: Subject) -> str:
    """Call every tool with fitting and wrong arguments, and send texts that are not calls."""
    with closing(subject.make()) as env:
        try:
            tools = tools_of(env.unwrapped)
        except GagpoError as error:
            require(False, f"its tools cannot be read: {describe(error)}")
        if not tools:
            return "it declares no tools: an action is a text, and prompt=tools calls act(command)"
        names = [tool.name for tool in tools]
        require(len(set(names)) == len(names), f"two tools have the same name: {', '.join(names)}")
        for tool in tools:
            try:
                json.dumps(tool.spec, allow_nan=False).encode()
            except (TypeError, ValueError) as error:
                require(False, f"the schema of tool {tool.name} is not plain JSON: {error}")
        (start, *_) = subject.starts(env)
        rng = random.Random(subject.seed)
        num_answered = 0
        env.reset(seed=start.seed, options=start.options)
        calls = [(tool.name, call) for tool in tools for call in _calls(tool, rng)]
        for name, action in [*WRONG.items(), *calls]:
            try:
                *_, terminated, truncated, info = env.step(action)
            except Exception as error:
                require(False, f"the call {action[:80]!a} breaks it: {describe(error)}")
            num_answered += 1
            if name in WRONG:
                require(not info.get("valid", True), f"{name} ({action[:80]!a}) is called a valid action")
                require(not info.get("success"), f"{name} as a call solves {start.name}")
            if terminated or truncated:
                env.reset(seed=start.seed, options=start.options)
    return f"{', '.join(names)}: {num_answered} calls are answered, {len(WRONG)} of them not valid calls"


def _calls(tool: Tool, rng: random.Random) -> list[str]:
    """Some calls that may fit, one without arguments, one with an unknown argument, one with wrong types."""
    fitting = [tool.sample(np.random.default_rng(rng.getrandbits(32))) for _ in range(_SAMPLES)]
    unknown_argument = ToolCall(tool.name, {**fitting[0].arguments, "no_such_argument": None})
    mistyped = ToolCall(tool.name, {name: [{"a": None}] for name in fitting[0].arguments})
    return [call.text for call in (*fitting, ToolCall(tool.name), unknown_argument, mistyped)]
