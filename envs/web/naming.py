"""Actions that name what they are done to: ``click[Buy Now]`` instead of ``click[3]``.

A number stands before the name that it belongs to. A language model copies a name in one step; for the number it has to
find the name first and then look back, which small models do not learn.
"""

from __future__ import annotations

import re

from gagpo.base.nearest import nearest
from gagpo.envs.tools import CallError
from gagpo.envs.tools.call import quoted
from gagpo.envs.web.actions import Command, Name, parse, typed
from gagpo.envs.web.page import FIELDS, Line, WebPage

INSTRUCTIONS = (
    "You use a web page. It is shown as a list; what can be used has a number. Each action is one line with a name, or "
    "with the number of what has no name: click[Buy Now], type[search] words (replaces the text of a field), "
    "select[Large] (chooses an option), press[Enter], scroll[down], scroll[up] or back."
)
LONGEST_NAME = 100  # characters; longer names are written as numbers

_CLICK_OR_SELECT = re.compile(r"(click|select)\[([^\n]{1,400})\]")
_TYPE = re.compile(r"type\[([^\[\]\n]{1,400})\](?: (.*))?", re.DOTALL)
_NUMBER = re.compile(r"[0-9]{1,6}")
_UNNAMEABLE = re.compile(r"[\[\]\n]")


def parse_named(action: str, page: WebPage) -> Command:
    """Read a line of text; a name means the first line of ``page`` that has it.

    Raises:
        CallError: it is no action, or nothing has the name; the message is for the agent.
    """
    action = action.strip()
    if match := _CLICK_OR_SELECT.fullmatch(action):
        name: Name = "click" if match[1] == "click" else "select"
        return Command(name, number_of(page, match[2], name))
    if match := _TYPE.fullmatch(action):
        return typed(number_of(page, match[1], "type"), match[2] or "")
    return parse(action, "NAME")


def number_of(page: WebPage, name: str, kind: Name) -> int:
    """The number of what an action of this kind names: of the first usable line with the name, else of the first.

    Raises:
        CallError: nothing has the name.
    """
    if _NUMBER.fullmatch(name):
        return int(name)
    candidates = [line for line in page.lines if line.number and _fits(line, kind)]
    with_name = [line for line in candidates if line.name == name]
    if not with_name:
        near = nearest(name, [line.name for line in candidates if line.name])
        advice = f"; nearest: {', '.join(map(quoted, near))}" if near else ""
        raise CallError(f"nothing to {kind} here is called {quoted(name)}{advice}")
    return next((line.number for line in with_name if line.usable), with_name[0].number)


def write_named(command: Command, page: WebPage) -> str:
    """The action as text, with the name where it leads back to the same line, else with the number."""
    line = page.line(command.number)
    if line is None or not 0 < len(line.name) <= LONGEST_NAME or line.name != line.name.strip():
        return str(command)
    if _UNNAMEABLE.search(line.name) or _NUMBER.fullmatch(line.name) or not _fits(line, command.name):
        return str(command)
    if number_of(page, line.name, command.name) != command.number:
        return str(command)
    suffix = f" {command.text}" if command.name == "type" else ""
    return f"{command.name}[{line.name}]{suffix}"


def _fits(line: Line, kind: Name) -> bool:
    """Whether actions of this kind are done to such a line; options of a list are selected, all else is clicked."""
    is_option = line.role == "option" and line.depth > 0
    if kind == "type":
        return line.role in FIELDS
    return is_option if kind == "select" else not is_option
