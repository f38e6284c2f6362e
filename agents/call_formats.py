"""Formats of tool calls: find candidates for calls in a response, and write calls as a model family does.

A response is untrusted text: candidates are cut out in linear time, :func:`gagpo.envs.tools.read_call` checks them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass

from gagpo.base.errors import InvalidArgument
from gagpo.envs.tools import ToolCall

MARK = "[TOOL_CALLS]"  # of Mistral
_PYTHON = "<|python_tag|>"  # of Llama
_BRACES = re.compile(r'"(?:[^"\\]|\\.)*"?|[{}]', re.DOTALL)  # an unclosed string ends at the end


@dataclass(frozen=True)
class CallFormat:
    """One format.

    name: its name in settings.
    find: returns the texts of all candidates in a response without its thought.
    write: renders calls as a response.
    example: shown in error messages.
    """

    name: str
    find: Callable[[str], list[str]]
    write: Callable[[list[ToolCall]], str]
    example: str


def strip_thought(response: str) -> str:
    """A response without the thought at its beginning, '' if the thought is not closed."""
    thought, closed, rest = response.partition("</think>")
    if closed:
        return rest
    return "" if thought.lstrip().startswith("<think>") else response


def objects(text: str) -> list[str]:
    """Every outermost ``{...}`` of ``text``; an unclosed one extends to the end.

    >>> objects('[{"a": "}"}, {"b": {}}]')
    ['{"a": "}"}', '{"b": {}}']
    """
    found: list[str] = []
    depth = begin = 0
    for piece in _BRACES.finditer(text):  # strings are skipped whole, so braces within them do not count
        if piece.group() == "{":
            begin = piece.start() if depth == 0 else begin
            depth += 1
        elif piece.group() == "}" and depth:
            depth -= 1
            if depth == 0:
                found.append(text[begin : piece.end()])
    return [*found, text[begin:]] if depth else found


def _hermes(response: str) -> list[str]:
    _, *rest = response.split("<tool_call>")
    return [piece.partition("</tool_call>")[0] for piece in rest]


def _llama(response: str) -> list[str]:
    _, tagged, rest = response.partition(_PYTHON)
    text = rest if tagged else response.strip()
    if not tagged and not text.startswith(("{", "[{")):
        return []
    return objects(text) or [text]


def _mistral(response: str) -> list[str]:
    _, *rest = response.split(MARK)
    found = []
    for piece in rest:  # a list, or a name with its arguments
        name, given, arguments = piece.partition("[ARGS]")
        name, _, number = name.partition("[CALL_ID]")
        if given:
            found.append(call_text(name.strip(), arguments, number.strip()))
        else:
            found += objects(piece) or [piece]
    return found


def call_text(name: str, arguments: str, number: str = "") -> str:
    """A call as JSON. arguments: unchecked JSON text, empty for none."""
    about = f'"name": {json.dumps(name)}, "id": {json.dumps(number)}'
    return f'{{{about}, "arguments": {arguments.strip() or "{}"}}}'


def _as_hermes(calls: list[ToolCall]) -> str:
    return "\n".join(f"<tool_call>\n{call.text}\n</tool_call>" for call in calls)


def _as_llama(calls: list[ToolCall]) -> str:
    return "; ".join(_json({"name": call.name, "parameters": call.arguments}) for call in calls)


def _as_mistral(calls: list[ToolCall]) -> str:
    rows = [{"name": call.name, "arguments": call.arguments, "id": call_id(call.id, i)} for i, call in enumerate(calls)]
    return f"{MARK} {_json(rows)}"


def call_id(given: str, number: int) -> str:
    """The given id if it has nine characters, as Mistral requires, else one made from the call's number."""
    return given if len(given) == 9 else f"call{number:05d}"


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


FORMATS = {
    one.name: one
    for one in (
        CallFormat("hermes", _hermes, _as_hermes, '<tool_call>\n{"name": "...", "arguments": {...}}\n</tool_call>'),
        CallFormat("llama", _llama, _as_llama, '{"name": "...", "parameters": {...}}'),
        CallFormat("mistral", _mistral, _as_mistral, f'{MARK} [{{"name": "...", "arguments": {{...}}}}]'),
    )
}


def find_format(name: str) -> CallFormat:
    """The format called ``name``. Raises: InvalidArgument naming the known ones."""
    if name not in FORMATS:
        raise InvalidArgument(f"unknown call format {name!r:.80}; choose one of auto, {', '.join(FORMATS)}")
    return FORMATS[name]
