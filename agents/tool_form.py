"""Tools in a chat template: in the place that it has for them, or described in messages.

Which of the two a model needs is found by rendering a probe, not from a list of model names: a fine-tuned model often
has another template than its family, and a new family then works without a change here. The probe is rendered when
tools are first shown, because most environments have none.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from gagpo.agents.call_formats import FORMATS, CallFormat, find_format
from gagpo.agents.chat_template import ChatTemplate
from gagpo.agents.described_tools import DescribedTools, has_tool_messages
from gagpo.agents.toolbox import format_of, shows_tools


class ToolForm(ChatTemplate):
    """A chat template that shows tools, calls and their answers to any model.

    calls: the model's call format; ``auto`` detects it.
    """

    def __init__(self, tokenizer: Any, options: Mapping[str, Any], calls: str = "auto"):
        super().__init__(tokenizer, options)
        self._calls = calls

    @functools.cached_property
    def described(self) -> DescribedTools | None:
        """How messages describe tools to the model; None if its chat template has a place for them."""
        if shows_tools(super().render):
            return None
        return DescribedTools(FORMATS["hermes"] if self._calls == "auto" else find_format(self._calls))

    @functools.cached_property
    def call_format(self) -> CallFormat:
        """How the model writes tool calls. Raises: InvalidArgument for a template with an unknown format."""
        if self.described is not None:
            return self.described.form
        return format_of(super().render, self._calls)

    @property
    def shows_tools(self) -> bool:
        return self.described is None

    def render(self, chat: Sequence[Mapping[str, Any]], **options: Any) -> str:
        """The rendered messages; without a place for tools in the template, calls and answers are plain text."""
        if has_tool_messages(chat) and self.described:
            chat = self.described.plain(chat)
        return super().render(chat, **options)

    def begin(self, chat: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> str:
        """A conversation from its first message; without a place for ``tools``, they are in the system message."""
        if tools and self.described:
            return super().begin(self.described.with_tools(chat, tools))
        return super().begin(chat, tools)
