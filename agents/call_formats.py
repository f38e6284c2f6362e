"""Formats of tool calls: find candidates for calls in a response, and write calls as a model family does.

A response is untrusted text: candidates are cut out in linear time, :func:`gagpo.envs.tools.read_call` checks them.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass

from gagpo.agents.parsing import MOST_TRIED
from gagpo.base.errors import InvalidArgument
from gagpo.base.thoughts import CLOSED, OPENED
from gagpo.envs.tools import ToolCall
from gagpo.envs.tools.call import MAX_CALL

MARK = "[TOOL_CALLS]"  # of Mistral
_CALL, _CALL_END = "<tool_call>", "</tool_call>"  # of Hermes
_PYTHON = "<|python_tag|>"  # of Llama
_ARGUMENTS, _ID = "[ARGS]", "[CALL_ID]"  # of Mistral
MARKS = (MARK, _CALL, _CALL_END, _PYTHON, _ARGUMENTS, _ID)
_NAMED = re.compile(r"\s*+([^\[\]{}\s]*+)\s*+(?:\[CALL_ID\]\s*+(\w*+)\s*+)?\[ARGS\]")
_BARE = re.compile(r"\s*+\[?\{")
_SEPARATORS = re.compile(r"[\s,;\[\]]*+")
_BRACES = re.compile(r'"(?:[^"\\]|\\.)*"?|[{}]', re.DOTALL)  # an unclosed string ends at the end


Reader = Callable[[str, int], tuple[list[str], int]]
"""Returns the candidates at a place of a response, and where they end."""


@dataclass(frozen=True)
class CallFormat:
    """One format.

    name: its name in settings.
    mark: what a call follows.
    read: finds the candidates after a mark.
    write: renders calls as a response.
    example: shown in error messages.
    bare: whether calls may also begin a response without a mark.
    """

    name: str
    mark: str
    read: Reader
    write: Callable[[list[ToolCall]], str]
    example: str
    bare: bool = False

    def find(self, response: str) -> list[str]:
        """The texts of all candidates in a response outside of its thoughts.

        JSON is read first, so marks within an argument are text. A ``</think>`` without its ``<think>`` makes
        everything before it a thought.
        """
        marks = _any_of(OPENED, CLOSED, self.mark)
        candidates: list[str] = []
        offset = 0
        may_be_bare = self.bare  # at the beginning, and after a thought
        for _ in range(MOST_TRIED):
            if may_be_bare and (start := _BARE.match(response, offset)):
                texts, offset = self.read(response, start.start())
                candidates += texts
                may_be_bare = False
            match = marks.search(response, offset)
            if match is None:
                break
            offset = match.end()
            may_be_bare = self.bare
            if match.group() == CLOSED:
                candidates = []
            elif match.group() == OPENED:
                end = response.find(CLOSED, offset)
                if end < 0:
                    break
                offset = end + len(CLOSED)
            else:
                texts, offset = self.read(response, offset)
                candidates += texts
                may_be_bare = False
        return candidates


def _objects(text: str, begin: int) -> tuple[list[str], int, bool]:
    """The objects ``{...}`` from ``begin`` on, separated by spaces, commas, semicolons and brackets.

    Returns them, the end of the last, and false if another begins there that is not closed.
    """
    objects: list[str] = []
    end = begin
    while len(objects) < MOST_TRIED:
        gap = _SEPARATORS.match(text, end)
        if gap is None or not text.startswith("{", gap.end()):
            break
        closed = _closing_brace(text, gap.end())
        if closed is None:
            return objects, end, False
        objects.append(text[gap.end() : closed])
        end = closed
    return objects, end, True


def _closing_brace(text: str, begin: int) -> int | None:
    """Where the object at ``begin`` ends; None if it is not closed, or longer than a call may be."""
    depth = 0
    for brace in _BRACES.finditer(text, begin, begin + MAX_CALL + 1):
        depth += {"{": 1, "}": -1}.get(brace.group(), 0)  # strings are matched whole, so their braces do not count
        if depth == 0:
            return brace.end()
    return None


@functools.cache
def _any_of(*marks: str) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, marks)))


def _until(response: str, begin: int, *ends: str) -> tuple[str, int]:
    """The text from ``begin`` to the first of ``ends`` or mark of a thought, and where it ends."""
    match = _any_of(OPENED, CLOSED, *ends).search(response, begin)
    end = match.start() if match else len(response)
    return response[begin:end], end


def _hermes(response: str, begin: int) -> tuple[list[str], int]:
    """The calls of one block."""
    texts, end, closed = _objects(response, begin)
    before, after = _until(response, end, _CALL, _CALL_END)
    if texts and closed and not before.strip(" \t\r\n,;[]"):
        return texts, after
    text, end = _until(response, begin, _CALL, _CALL_END)
    return [text], end


def _llama(response: str, begin: int) -> tuple[list[str], int]:
    texts, end, closed = _objects(response, begin)
    if texts and closed:
        return texts, end
    text, end = _until(response, end)
    return [*texts, text], end


def _mistral(response: str, begin: int) -> tuple[list[str], int]:
    """A list of calls, or a name with its arguments."""
    named = _NAMED.match(response, begin)
    texts, end, closed = _objects(response, named.end() if named else begin)
    if not (texts and closed):
        text, end = _until(response, named.end() if named else begin, MARK)
        texts = [text]
    return [call_text(named[1], texts[0], named[2] or "")] if named else texts, end


def call_text(name: str, arguments: str, number: str = "") -> str:
    """A call as JSON. arguments: unchecked JSON text, empty for none."""
    about = f'"name": {json.dumps(name)}, "id": {json.dumps(number)}'
    return f'{{{about}, "arguments": {arguments.strip() or "{}"}}}'


def _as_hermes(calls: list[ToolCall]) -> str:
    return "\n".join(f"<tool_call>\n{_escaped(call.text)}\n</tool_call>" for call in calls)


def _as_llama(calls: list[ToolCall]) -> str:
    return "; ".join(_json({"name": call.name, "parameters": call.arguments}) for call in calls)


def _as_mistral(calls: list[ToolCall]) -> str:
    rows = [{"name": call.name, "arguments": call.arguments, "id": call_id(call.id, i)} for i, call in enumerate(calls)]
    return f"{MARK} {_json(rows)}"


def call_id(name: str, number: int) -> str:
    """The id ``name`` if it has nine characters, as Mistral requires, else one made from the call's number."""
    return name if len(name) == 9 else f"call{number:05d}"


def nine_characters(name: str) -> str:
    """An id of nine letters and digits for any id, equal for equal ones; one that has that form stays as it is.

    >>> nine_characters("call00001"), nine_characters("call_abc123")
    ('call00001', '3d62e741f')
    """
    fits = len(name) == 9 and name.isascii() and name.isalnum()
    return name if fits else hashlib.sha256(name.encode()).hexdigest()[:9]


def _json(value: object) -> str:
    return _escaped(json.dumps(value, ensure_ascii=False))


def _escaped(text: str) -> str:
    """JSON in which no string spells a mark: its first character is escaped."""
    return _any_of(OPENED, CLOSED, *MARKS).sub(lambda mark: f"\\u{ord(mark[0][0]):04x}{mark[0][1:]}", text)


FORMATS = {
    call_format.name: call_format
    for call_format in (
        CallFormat(
            "hermes", _CALL, _hermes, _as_hermes, '<tool_call>\n{"name": "...", "arguments": {...}}\n</tool_call>'
        ),
        CallFormat("llama", _PYTHON, _llama, _as_llama, '{"name": "...", "parameters": {...}}', bare=True),
        CallFormat("mistral", MARK, _mistral, _as_mistral, f'{MARK} [{{"name": "...", "arguments": {{...}}}}]'),
    )
}


def find_format(name: str) -> CallFormat:
    """The format called ``name``. Raises: InvalidArgument naming the known ones."""
    if name not in FORMATS:
        raise InvalidArgument(f"unknown call format {name!r:.80}", advice=f"choose one of auto, {', '.join(FORMATS)}")
    return FORMATS[name]
