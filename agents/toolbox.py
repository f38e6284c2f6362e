"""Tools of an environment in a model's call format, and how responses and turns become each other.

A text environment is a toolbox with one tool. So a model that only knows tool calls acts in any environment, and the
stages after it see calls and actions alike.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gagpo.agents import parsing
from gagpo.agents.call_formats import FORMATS, CallFormat, call_id, find_format
from gagpo.agents.chat_template import PLACEHOLDER, TemplateFailed
from gagpo.agents.prompts import Message, Prompt
from gagpo.base.errors import InvalidArgument
from gagpo.data import Call, Turn
from gagpo.envs.tools import CallError, Tool, ToolCall, read_call
from gagpo.envs.tools.tool import ACT, find_tool

MOST_CALLS = 16  # of one response
Template = Callable[..., str]  # renders messages, with ``tools`` and ``add_generation_prompt``, as one text

_PROBE = ToolCall("probe_tool", {"word": PLACEHOLDER}, "probe0000")
_PROBE_TOOL = Tool(_PROBE.name, "?", {"type": "object", "properties": {"word": {"type": "string"}}})
_QUESTION = "\u241f"


class Toolbox:
    """The tools of an environment and the model's call format.

    tools: of the environment; a text environment has none and gets the single tool ``act(command)``.
    """

    def __init__(self, tools: Sequence[Tool], form: CallFormat):
        self.form = form
        self.tools = list(tools) or [ACT]
        self._is_text = not tools

    @property
    def specs(self) -> list[dict[str, Any]]:
        return [tool.spec for tool in self.tools]

    @property
    def digest(self) -> str:
        """Digest of everything that a model sees of the tools."""
        return hashlib.sha256(json.dumps(self.specs, sort_keys=True).encode()).hexdigest()[:16]

    def read(self, response: str) -> list[Call]:
        """The calls of a response in order; for a response without calls, one that holds the error."""
        texts = self.form.find(response)
        if not texts:
            return [Call("", f"There is no tool call in this. Call a tool like this: {self.form.example}")]
        return self.read_calls(texts)

    def read_calls(self, texts: Sequence[str]) -> list[Call]:
        """The calls of candidate texts; more than ``MOST_CALLS`` of them are an error."""
        if len(texts) > MOST_CALLS:
            return [Call("", f"More than {MOST_CALLS} tool calls at once; none was made.")]
        calls = []
        for number, text in enumerate(texts):
            try:
                call = read_call(text)
                calls.append(Call(self._action(call), id=call_id(call.id, number)))
            except CallError as error:
                calls.append(Call("", f"Error: {error}.", call_id("", number)))
        return calls

    def write(self, actions: Sequence[str]) -> str:
        """A response that does ``actions``, for demonstrations; actions that are not calls stay as they are."""
        if self._is_text:
            return self.form.write([ToolCall(ACT.name, {"command": action}) for action in actions])
        try:
            return self.form.write([read_call(action) for action in actions])
        except CallError:
            return "\n".join(actions)

    def _action(self, call: ToolCall) -> str:
        """What the environment gets: the call, or in a text environment the checked command."""
        if not self._is_text:
            return call.text
        command = str(find_tool(self.tools, call.name).fit(call.arguments).command).strip()
        if not command:
            raise CallError("the command is empty")
        return command


def answer_messages(calls: Sequence[Call], observation: str) -> list[Message]:
    """The answers to a turn's calls as messages; without calls, one answer."""
    calls = calls or [Call("", answer=observation)]
    return [
        {"role": "tool", "content": call.answer or "", "tool_call_id": call_id(call.id, number)}
        for number, call in enumerate(calls)
    ]


def shows_tools(template: Template) -> bool:
    """Whether a chat template renders tools and the answers to their calls."""
    question: list[Message] = [{"role": "user", "content": _QUESTION}]
    answered = [*question, {"role": "assistant", "content": "?"}, *answer_messages([], "\u241d")]
    prompt = _render(template, question, tools=[_PROBE_TOOL.spec])
    return _PROBE.name in prompt and "\u241d" in _render(template, answered)


def format_of(template: Template, name: str = "auto") -> CallFormat:
    """The call format of a chat template that shows tools, or the one called ``name``.

    Raises: InvalidArgument if the template uses an unknown format.
    """
    if name != "auto":
        return find_format(name)
    question: list[Message] = [{"role": "user", "content": _QUESTION}]
    prompt = _render(template, question, tools=[_PROBE_TOOL.spec])
    function = {"name": _PROBE.name, "arguments": _PROBE.arguments}
    call = {"id": _PROBE.id, "type": "function", "function": function}
    called = {"role": "assistant", "content": "", "tool_calls": [call]}
    chat = [*question, called, *answer_messages([], "!")]
    rendered = _render(template, chat, tools=[_PROBE_TOOL.spec], add_generation_prompt=False)
    response = rendered.rpartition(_QUESTION)[2].removeprefix(prompt.rpartition(_QUESTION)[2])
    for call_format in (
        FORMATS["mistral"],
        FORMATS["hermes"],
        FORMATS["llama"],
    ):  # llama last, because it needs no marks
        if any(_is_probe(text) for text in call_format.find(response)):
            return call_format
    raise InvalidArgument(
        f"the chat template of this model shows tool calls in none of the formats {', '.join(FORMATS)}",
        key="context.calls",
        advice="name the format in which the model writes them with context.calls",
    )


def _is_probe(text: str) -> bool:
    try:
        call = read_call(text)
    except CallError:
        return False
    return (call.name, call.arguments) == (_PROBE.name, _PROBE.arguments)


def _render(template: Template, chat: Sequence[Mapping[str, Any]], **options: Any) -> str:
    """The rendered chat, '' if the template refuses it."""
    try:
        return template(chat, **options)
    except TemplateFailed:
        return ""


@dataclass(frozen=True)
class ActionFormat:
    """Reads and writes responses as a prompt says.

    prompt: how the action is read.
    toolbox: for a prompt with tool calls.
    multiline: whether an action may have several lines.
    """

    prompt: Prompt
    toolbox: Toolbox | None = None
    multiline: bool = False

    def read(self, response: str, cut: bool = False) -> Turn:
        """The turn of ``response``, with the action or the calls found in it."""
        if self.toolbox is not None:
            return Turn.of_calls(response, self.toolbox.read(response), cut)
        return Turn.of(response, self.prompt.read(response, self.multiline), cut)

    def write(self, turn: Turn) -> str:
        """The shortest response with the actions of ``turn``."""
        if not turn.action:
            return ""
        if self.toolbox is None:
            return parsing.write(turn.action, self.prompt.kind, self.prompt.key)
        return self.toolbox.write([call.action for call in turn.calls if call.action] or [turn.action])
