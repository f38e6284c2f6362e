"""Tool calls as a person types them: ``price lamp``, ``price item=lamp`` or JSON."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import JsonValue

from gagpo.envs.tools.call import CallError, ToolCall, read_call
from gagpo.envs.tools.tool import Tool, find_tool


def usage(tool: Tool) -> str:
    """How a call is typed, and what the tool does.

    >>> schema = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
    >>> usage(Tool("add", "The sum.", schema))
    'add A B: The sum.'
    """
    call = " ".join([tool.name, *(name.upper() for name in _properties(tool))])
    return f"{call}: {tool.description}" if tool.description else call


def read_typed(line: str, tools: Sequence[Tool]) -> ToolCall:
    """The call in a line: JSON, or the tool's name and its arguments in order or as ``name=value``.

    Words are separated as in a shell. The last of the arguments in order takes the remaining words if it is text.

    Raises: CallError saying what to type.
    """
    if line.lstrip().startswith("{"):
        return read_call(line)
    try:
        tokens = shlex.split(line)
    except ValueError as error:
        raise CallError(f"{error}: close the quote") from None
    if not tokens:
        raise CallError("type the name of a tool")
    tool = find_tool(tools, tokens[0])
    properties = _properties(tool)
    texts: dict[str, str] = {}
    in_order: list[str] = []
    for word in tokens[1:]:
        name, equals, text = word.partition("=")
        if equals and name in properties and name not in texts:
            texts[name] = text
        else:
            in_order.append(word)
    names = [name for name in properties if name not in texts]
    if len(in_order) > len(names):
        if not names or not _is_text(properties[names[-1]]):
            raise CallError("too many arguments", advice=f"type {usage(tool)}")
        in_order[len(names) - 1 :] = [" ".join(in_order[len(names) - 1 :])]
    texts.update(zip(names, in_order, strict=False))
    return ToolCall(tool.name, {name: _value(text, properties[name]) for name, text in texts.items()})


def _properties(tool: Tool) -> Mapping[str, Any]:
    """The JSON schemas of a tool's arguments, which may come from a server."""
    properties = tool.parameters.get("properties")
    return properties if isinstance(properties, Mapping) else {}


def _is_text(schema: object) -> bool:
    return isinstance(schema, Mapping) and schema.get("type") == "string"


def _value(text: str, schema: object) -> JsonValue:
    """The value that a person typed: JSON where the schema takes other values than text."""
    if _is_text(schema):
        return text
    try:
        value: JsonValue = json.loads(text)
    except (ValueError, RecursionError):
        return text  # the tool says what is wrong with it
    return value
