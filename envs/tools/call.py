"""Parses tool calls. They are untrusted text of a model: bounded, checked and never evaluated."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass, field

from pydantic import JsonValue

from gagpo.base.errors import GagpoError

MAX_CALL = 20_000  # characters of one call
MAX_DEPTH = 32  # of nested lists and objects, so that arguments can be handled recursively
_QUOTED = 80  # characters of a model's text that an error quotes


class CallError(GagpoError, ValueError):
    """A call that cannot be carried out; the message is for the model that made it."""


@dataclass(frozen=True)
class ToolCall:
    """A call of a tool.

    name: name of the tool.
    arguments: plain JSON.
    id: identifies the call in formats that need it, else ''.

    >>> ToolCall("act", {"command": "left"}).text
    '{"name": "act", "arguments": {"command": "left"}}'
    >>> read_call('{"name": "act", "arguments": {"command": "left"}}').arguments
    {'command': 'left'}
    """

    name: str
    arguments: dict[str, JsonValue] = field(default_factory=dict)
    id: str = ""

    @property
    def text(self) -> str:
        """The call as an action: one line, equal for equal calls."""
        return json.dumps({"name": self.name, "arguments": self.arguments}, ensure_ascii=False)


def read_call(text: str) -> ToolCall:
    """Parse a call: a JSON object with ``name`` and ``arguments`` (or ``parameters``).

    Numbers must be finite and have at most 64 bits, keys must be unique, and text must be valid Unicode.

    Raises:
        CallError: any other text.
    """
    if len(text) > MAX_CALL:
        raise CallError(f"a call has at most {MAX_CALL:,} characters, and this one has {len(text):,}")
    call = _parsed(text)
    if not isinstance(call, dict):
        raise CallError(f"a call is a JSON object with a name and arguments, not {_kind(call)}")
    name = call.get("name")
    if not isinstance(name, str) or not name:
        raise CallError('the call names no tool: give its "name"')
    if "arguments" in call and "parameters" in call:
        raise CallError('the call has both "arguments" and "parameters": give one of them')
    arguments = call.get("arguments", call.get("parameters"))
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        raise CallError(f"the arguments of {quoted(name)} are a JSON object, not {_kind(arguments)}")
    call_id = call.get("id")
    is_valid_id = isinstance(call_id, str) and call_id.isalnum() and len(call_id) < 65
    return ToolCall(name, arguments, str(call_id) if is_valid_id else "")


def separate(action: str) -> list[str]:
    """Split an expert's action with several calls, one per line; any other action is returned as one item.

    >>> separate(ToolCall("look").text + chr(10) + ToolCall("go").text)
    ['{"name": "look", "arguments": {}}', '{"name": "go", "arguments": {}}']
    >>> len(separate("two lines" + chr(10) + "of a text"))
    1
    """
    lines = action.split("\n")
    if len(lines) == 1:
        return lines
    try:
        for line in lines:
            read_call(line)
    except CallError:
        return [action]
    return lines


def quoted(text: str) -> str:
    """A model's text for an error: short, on one line, ASCII only."""
    return ascii(text if len(text) <= _QUOTED else text[: _QUOTED - 1] + "…")


def _parsed(text: str) -> JsonValue:
    try:
        value: JsonValue = json.loads(
            text, object_pairs_hook=_object, parse_constant=_constant, parse_int=_integer, parse_float=_number
        )
        json.dumps(value, ensure_ascii=False).encode()  # raises UnicodeEncodeError for a lone surrogate
    except json.JSONDecodeError as error:
        raise CallError(f"the call is no JSON: {error.msg} at character {error.pos}") from None
    except UnicodeEncodeError:
        raise CallError("the call holds half of a surrogate pair") from None
    except RecursionError:
        raise CallError(f"the call is nested more than {MAX_DEPTH} deep") from None
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [child for parent in level for child in _parts(parent)]
    if level:
        raise CallError(f"the call is nested more than {MAX_DEPTH} deep")
    return value


def _parts(value: JsonValue) -> list[JsonValue]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _object(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    value = dict(pairs)
    if len(value) < len(pairs):
        double, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise CallError(f"the key {quoted(double)} stands twice in one object")
    return value


def _constant(text: str) -> JsonValue:
    raise CallError(f"{text} is no number that JSON has")


def _integer(text: str) -> int:
    if len(text) > 20 or not -(2**63) <= int(text) < 2**63:
        raise CallError("a whole number has more than 64 bits")
    return int(text)


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise CallError("a number is too large")
    return value


def _kind(value: JsonValue) -> str:
    descriptions = {bool: "true or false", str: "a text", list: "a list", dict: "an object", type(None): "null"}
    return descriptions.get(type(value), "a number")
