"""How an action is read from a response. A response is untrusted text: it is searched, never evaluated."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from typing import Any

from gagpo.base.thoughts import without_thoughts

MAX_ACTION = 2000  # characters; no environment has longer actions
MOST_TRIED = 64  # places of a response at which JSON is tried, so that reading takes linear time
_FENCE = re.compile(r"```[\w+-]*[ \t]*\n(.*?)\n?[ \t]*```", re.DOTALL)


def _line(text: str, multiline: bool) -> str | None:
    """The text itself if it may be an action; with ``multiline``, without the code fence around it or its end."""
    text = text.strip()
    if len(text) > MAX_ACTION:
        return None
    if multiline:
        text = _FENCE.sub(r"\1", text).strip()
    return text if text and (multiline or "\n" not in text) else None


def _tag(text: str, name: str, multiline: bool) -> str | None:
    """The contents of the last element with this name."""
    contents = _element(name).findall(text)
    return _line(contents[-1], multiline) if contents else None


@functools.cache
def _element(name: str) -> re.Pattern[str]:
    return re.compile(rf"<{name}>((?:(?!</?{name}>).)*)</{name}>", re.DOTALL | re.IGNORECASE)


def _json(text: str, key: str, multiline: bool) -> str | None:
    """The text at ``key`` of the last JSON object that has it."""
    last = None
    offset = text.find("{")
    for _ in range(MOST_TRIED):
        if offset < 0:
            break
        value, end = _object(text, offset)
        if isinstance(value, dict) and isinstance(value.get(key), str):
            last = value[key]
        offset = text.find("{", end)
    return None if last is None else _line(last, multiline)


def _object(text: str, begin: int) -> tuple[Any, int]:
    """The JSON value at ``begin`` and its end; None if there is none."""
    try:
        return json.JSONDecoder(strict=False).raw_decode(text, begin)
    except (ValueError, RecursionError):
        return None, begin + 1


Parser = Callable[[str, str, bool], str | None]
PARSERS: dict[str, Parser] = {
    "line": lambda response, name, multiline: _line(without_thoughts(response), multiline),
    "tag": lambda response, name, multiline: _tag(without_thoughts(response), name, multiline),
    "json": lambda response, name, multiline: _json(without_thoughts(response), name, multiline),
    "whole": lambda response, name, multiline: response if response.strip() else None,
}
"""By kind: the action of a response, without its thoughts except for ``whole``, which the environment reads."""


def parse(response: str, kind: str, name: str = "action", multiline: bool = False) -> str | None:
    """The action in ``response``; None if there is none (an invalid turn, for which the environment gets '').

    kind: one of :data:`PARSERS`.
    name: of the element or the JSON key.
    multiline: whether an action may have several lines, or stand in a code fence.

    >>> parse("<think>the mug is hot</think><action> go to sinkbasin 1 </action>", "tag")
    'go to sinkbasin 1'
    >>> parse("I would rather not", "tag") is None
    True
    """
    return PARSERS[kind](response, name, multiline)


def write(action: str, kind: str, name: str) -> str:
    """The shortest response from which :func:`parse` reads ``action``."""
    if kind == "json":
        return json.dumps({name: action}, ensure_ascii=False)
    return f"<{name}>{action}</{name}>" if kind == "tag" else action
