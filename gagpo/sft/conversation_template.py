"""Conversations of a file as a model's chat template writes them, worded as the prompts of RL are."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gagpo.agents import chat_template
from gagpo.agents.call_formats import FORMATS, find_format
from gagpo.agents.described_tools import DescribedTools, has_tool_messages
from gagpo.agents.encoding import THOUGHT, TextEncoder, encoding_defect
from gagpo.agents.toolbox import shows_tools
from gagpo.base.errors import InvalidArgument, first_line

Message = Mapping[str, Any]


@dataclass(frozen=True)
class Conversation:
    """A conversation as a chat template takes it: texts become no control tokens, arguments of calls are objects.

    messages: each with ``role`` and ``content``.
    tools: for the template; None if there are none or messages describe them.
    """

    messages: Sequence[Message]
    tools: list[Any] | None


class ConversationTemplate:
    """A model's chat template, as a :class:`gagpo.agents.context.Context` uses it.

    A template without a place for tools gets messages that describe them. One that refuses the role system, or shows
    its text only before an answer, gets that text with the first user message.

    variables: of the template, as in ``context.template``; the date is fixed, so that prompts are those of RL.
    calls: the model's call format, as in ``context.calls``.
    """

    def __init__(self, encoder: TextEncoder, variables: Mapping[str, Any], calls: str):
        self.encoder = encoder
        chat_template.require_used(encoder.tokenizer, variables)
        self._variables = chat_template.variables(variables)
        render = functools.partial(
            chat_template.render, encoder.tokenizer, add_generation_prompt=True, **self._variables
        )
        self._described: DescribedTools | None = None
        if not shows_tools(render):
            self._described = DescribedTools(FORMATS["hermes"] if calls == "auto" else find_format(calls))
        self._has_system = _shows_system(render)

    def conversation(self, messages: Sequence[Message], tools: list[Any] | None) -> Conversation:
        """Checked messages and tools of a row as the template takes them; as many assistant messages in that order."""
        messages = [self._as_data(_with_parsed_arguments(message)) for message in messages]
        tools = self.encoder.protect_all(tools) if tools else None
        if self._described and (tools or has_tool_messages(messages)):
            messages = self._described.plain(messages)
            if tools:
                functions = [tool if "function" in tool else {"function": tool} for tool in tools]
                messages = self._described.with_tools(messages, functions)
            tools = None
        if messages[0]["role"] == "system" and not self._has_system:
            messages = chat_template.without_system(messages)
        return Conversation(messages, tools)

    def prompt(self, conversation: Conversation, place: int) -> str:
        """The text after which the model writes ``messages[place]``."""
        return self._render(conversation.messages[:place], conversation.tools, add_generation_prompt=True)

    def through(self, conversation: Conversation, place: int) -> str:
        """The text up to and with ``messages[place]``."""
        return self._render(conversation.messages[: place + 1], conversation.tools, add_generation_prompt=False)

    def through_next(self, conversation: Conversation, place: int) -> str:
        """The text up to and with the message that answers ``messages[place]``; '' if the template cannot show it."""
        messages = conversation.messages
        role = "tool" if messages[place].get("tool_calls") else "user"
        answered = [*messages[: place + 1], {"role": role, "content": "?"}]
        if place + 1 < len(messages) and messages[place + 1]["role"] in ("user", "tool"):
            answered[-1] = messages[place + 1]
        try:
            return self._render(answered, conversation.tools, add_generation_prompt=False)
        except InvalidArgument:
            return ""

    def _as_data(self, message: Message) -> Message:
        """The message with control tokens in its texts as plain text, except an assistant's marks of thoughts."""
        control_tokens = THOUGHT if message["role"] == "assistant" else ()
        extra = {key: value for key, value in message.items() if key not in ("role", "content")}
        fields = {key: self.encoder.protect_all(value) for key, value in extra.items()}
        return {**message, **fields, "content": self.encoder.protect(message.get("content") or "", control_tokens)}

    def _render(self, messages: Sequence[Message], tools: list[Any] | None, **options: Any) -> str:
        options = {**self._variables, **options}
        try:
            return str(
                self.encoder.tokenizer.apply_chat_template(
                    [dict(message) for message in messages], tools=tools, tokenize=False, **options
                )
            )
        except Exception as error:  # whatever a template raises for roles or calls that it does not know
            raise InvalidArgument(f"the model's chat template refuses it: {first_line(error, 200)}") from None


def _with_parsed_arguments(message: Message) -> Message:
    """The message with the arguments of its calls as objects: chat templates write them as JSON themselves."""
    if not message.get("tool_calls"):
        return message
    calls = []
    for call in message["tool_calls"]:
        arguments = call["function"]["arguments"]
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments)
            except (ValueError, RecursionError):
                raise InvalidArgument(
                    f"tool_calls: the arguments {arguments!r:.40} are not JSON", key="tool_calls"
                ) from None
            defect = encoding_defect(arguments)
            if defect:
                raise InvalidArgument(f"tool_calls: the arguments hold {defect}", key="tool_calls")
        calls.append({**call, "function": {**call["function"], "arguments": arguments}})
    return {**message, "tool_calls": calls}


def _shows_system(render: Callable[[Sequence[Message]], str]) -> bool:
    """Whether a template shows a system message before and after an answer."""
    question = [{"role": "system", "content": chat_template.PLACEHOLDER}, {"role": "user", "content": "?"}]
    answered = [*question, {"role": "assistant", "content": "?"}]
    try:
        return all(chat_template.PLACEHOLDER in render(messages) for messages in (question, answered))
    except chat_template.TemplateFailed:
        return False
