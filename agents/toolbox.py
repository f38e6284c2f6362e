"""An environment's tools in one model's format: shown by its chat template, read from its responses."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jinja2 import TemplateError

from gagpo.agents.call_formats import FORMATS, CallFormat, find_format, call_id, strip_thought
from gagpo.agents.episodes import Call
from gagpo.base.errors import InvalidArgument
from gagpo.envs.tools import CallError, Tool, ToolCall, read_call
from gagpo.envs.tools.tool import ACT, find_tool

MOST_CALLS = 16  # of one response
Message = dict[str, Any]  # of a chat: role, content, and what a call or its answer has besides
Template = Callable[..., str]  # renders messages, with ``tools`` and ``add_generation_prompt``, as one text

_PROBE = ToolCall("probe_tool", {"word": "\u241e"}, "probe0000")
_ASKED = "\u241f"


class Toolbox:
    """What can be called in an environment, and how a model writes it.

    tools: those that the environment declares. A text environment declares none; its one tool is ``act(command)``.
    form: the format of the model's calls.
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
        """Digest of everything that a model is told of the tools."""
        return hashlib.sha256(json.dumps(self.specs, sort_keys=True).encode()).hexdigest()[:16]

    def read(self, response: str) -> list[Call]:
        """The calls of a response in order; for a response without calls, one with the error that says so."""
        texts = self.form.find(strip_thought(response))
        if not texts:
            return [Call("", f"There is no tool call in this. Call a tool like this: {self.form.example}")]
        return self.read_calls(texts)

    def read_calls(self, texts: Sequence[str]) -> list[Call]:
        """Candidates for calls, as a turn holds them; with more than ``MOST_CALLS`` none is made."""
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
        """The environment's actions as one response, for a demonstration.

        Actions that are not calls of an environment with tools stay as they are.
        """
        if self._is_text:
            return self.form.write([ToolCall(ACT.name, {"command": action}) for action in actions])
        try:
            return self.form.write([read_call(action) for action in actions])
        except CallError:
            return "\n".join(actions)

    def _action(self, call: ToolCall) -> str:
        """What the environment gets; in a text environment the command, whose arguments are checked here."""
        if not self._is_text:
            return call.text
        command = str(find_tool(self.tools, call.name).fit(call.arguments).command).strip()
        if not command:
            raise CallError("the command is empty")
        return command


def answer_messages(calls: Sequence[Call], observation: str, more: str = "") -> list[Message]:
    """The answers to a turn's calls as messages; a turn without calls is answered with ``observation``.

    more: text to append to the last answer.
    """
    called = calls or [Call("", answer=observation)]
    messages = [
        {"role": "tool", "content": one.answer or "", "tool_call_id": call_id(one.id, number)}
        for number, one in enumerate(called)
    ]
    messages[-1]["content"] += more
    return messages


def format_of(template: Template, name: str = "auto") -> CallFormat:
    """The format in which a chat template shows calls, or the named one of ``FORMATS``.

    Raises: InvalidArgument if the template has no place for tools or their answers, or shows calls in an unknown
        format.
    """
    tool = Tool(_PROBE.name, "?", {"type": "object", "properties": {"word": {"type": "string"}}})
    asked: list[Message] = [{"role": "user", "content": _ASKED}]
    told = _rendered(template, asked, tools=[tool.spec])
    answered = [*asked, {"role": "assistant", "content": "?"}, *answer_messages([Call("", answer="\u241d")], "")]
    if _PROBE.name not in told or "\u241d" not in _rendered(template, answered):
        raise InvalidArgument(
            "the chat template of this model has no place for tools and their answers, which style tools needs: choose "
            "style tags, or give the model's folder a chat_template.jinja that has one"
        )
    if name != "auto":
        return find_format(name)
    function = {"name": _PROBE.name, "arguments": _PROBE.arguments}
    call = {"id": _PROBE.id, "type": "function", "function": function}
    chat = [
        *asked,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        *answer_messages([Call("", answer="!")], ""),
    ]
    begun = told.rpartition(_ASKED)[2]
    shown = _rendered(template, chat, tools=[tool.spec], add_generation_prompt=False)
    response = shown.rpartition(_ASKED)[2].removeprefix(begun)
    for form in (FORMATS["mistral"], FORMATS["hermes"], FORMATS["llama"]):
        # Llama's format comes last, since it needs no marks.
        if any(_is_probe(text) for text in form.find(strip_thought(response))):
            return form
    raise InvalidArgument(
        f"the chat template of this model shows tool calls in none of the formats {', '.join(FORMATS)}: name the "
        "model's format with context.calls, or choose style tags"
    )


def _is_probe(text: str) -> bool:
    try:
        call = read_call(text)
    except CallError:
        return False
    return (call.name, call.arguments) == (_PROBE.name, _PROBE.arguments)


def _rendered(template: Template, chat: Sequence[Mapping[str, Any]], **options: Any) -> str:
    """The rendered chat, '' where the template refuses it."""
    try:
        return template(chat, **options)
    except (TemplateError, TypeError, ValueError, KeyError):
        return ""
