"""The base of environments whose actions are tool calls."""

from __future__ import annotations

from typing import Any

import numpy as np

from gagpo.envs.base import Outcome, TextEnv
from gagpo.envs.tools.call import CallError, read_call
from gagpo.envs.tools.tool import find_tool


class ToolEnv(TextEnv):
    """An environment whose actions are calls of its ``tools``; subclasses implement :meth:`call` instead of ``act``.

    An action is one call as text: ``{"name": ..., "arguments": {...}}``. Other text, an unknown tool or arguments that
    do not fit make the turn invalid, and the observation gives the reason.
    """

    def call(self, tool: str, arguments: Any) -> Outcome:
        """Carry out a call.

        tool: name of one of ``tools``.
        arguments: an instance of the tool's model, or plain JSON if it has none.

        Raises:
            CallError: the call cannot be carried out; makes the turn invalid.
        """
        raise NotImplementedError

    def refuse(self, reason: str) -> Outcome:
        """The outcome of a call that cannot be carried out; override it to add the state."""
        return Outcome(reason, valid=False)

    def act(self, action: str) -> Outcome:
        try:
            call = read_call(action)
            return self.call(call.name, find_tool(self.tools, call.name).fit(call.arguments))
        except CallError as error:
            return self.refuse(str(error))

    def sample_action(self, rng: np.random.Generator) -> str:
        return self.tools[int(rng.integers(len(self.tools)))].sample(rng).text if self.tools else ""
