"""The base of environments whose actions are tool calls."""

from __future__ import annotations

from typing import Any

import numpy as np

from gagpo.envs.base import Outcome, TextEnv
from gagpo.envs.tools.call import CallError, read_call
from gagpo.envs.tools.tool import find_tool


class ToolEnv(TextEnv):
    """An environment that is acted on by calls of its ``tools``; a subclass writes :meth:`call` in place of ``act``.

    An action is one call as text: ``{"name": ..., "arguments": {...}}``. A text that is no call, an unknown tool and
    arguments that do not fit are answered with what is wrong, and are invalid.
    """

    def call(self, tool: str, arguments: Any) -> Outcome:
        """Carry out a call of one of the ``tools``; ``arguments`` are of that tool's model, or plain JSON without one.

        :class:`CallError` says that it cannot be done, and why: the turn is then invalid.
        """
        raise NotImplementedError

    def refuse(self, reason: str) -> Outcome:
        """What is answered to a call that cannot be carried out; an environment that knows its state says it here too."""
        return Outcome(reason, valid=False)

    def act(self, action: str) -> Outcome:
        try:
            call = read_call(action)
            return self.call(call.name, find_tool(self.tools, call.name).fit(call.arguments))
        except CallError as error:
            return self.refuse(str(error))

    def sample_action(self, rng: np.random.Generator) -> str:
        return self.tools[int(rng.integers(len(self.tools)))].sample(rng).text if self.tools else ""
