"""From a response to a turn and from actions to a response, in a prompt style, without a tokenizer."""

from __future__ import annotations

from dataclasses import dataclass

from gagpo.agents.episodes import Turn
from gagpo.agents.parsing import SAYING, parse
from gagpo.agents.prompts import PromptStyle
from gagpo.agents.toolbox import Toolbox


@dataclass(frozen=True)
class Phrasing:
    """How a prompt style reads and writes actions. toolbox: what can be called, for a style with tool calls."""

    style: PromptStyle
    toolbox: Toolbox | None = None

    def read(self, response: str, cut: bool = False) -> Turn:
        """The turn of ``response``, with the action or the calls found in it."""
        if self.toolbox is not None:
            return Turn.calling(response, self.toolbox.read(response), cut)
        return Turn.of(response, parse(response, self.style.parser), cut)

    def write(self, turn: Turn) -> str:
        """The response of this style that does what was done in ``turn`` and says nothing else."""
        if not turn.action:
            return ""
        if self.toolbox is None:
            return SAYING[self.style.parser].format(turn.action)
        return self.toolbox.write([call.action for call in turn.calls if call.action] or [turn.action])
