"""What the experts share: reading instructions, and the smallest step towards a filled form."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from gagpo.envs.web.actions import Command
from gagpo.envs.web.page import Line, WebPage

_QUOTED = re.compile(r'"(.*?)"')
SUBMITS = ("Submit", "Search", "Login", "OK", "Go!")


def quoted(instruction: str) -> list[str]:
    """The texts in quotation marks.

    >>> quoted('Enter "a" and "b, c".')
    ['a', 'b, c']
    """
    return _QUOTED.findall(instruction)


def between(instruction: str, begin: str, end: str) -> str:
    """The text between two others.

    >>> between("Select S4 and click Submit.", "Select ", " and click")
    'S4'
    """
    return instruction.partition(begin)[2].rpartition(end)[0].strip()


def click(line: Line | None) -> Command | None:
    return None if line is None else Command("click", line.number)


def first(lines: Iterable[Line]) -> Line | None:
    return next(iter(lines), None)


def click_named(page: WebPage, name: str, *roles: str) -> Command | None:
    """Click the first usable line of that name, also if only the case differs."""
    exact = first(page.find(*roles, name=name))
    return click(exact or first(line for line in page.find(*roles) if line.name.lower() == name.lower()))


def submit(page: WebPage) -> Command | None:
    """Click what sends the form."""
    return click(first(line for line in page.find("button", "clickable") if line.name in SUBMITS))


def fill(page: WebPage, *texts: tuple[Line | None, str]) -> Command | None:
    """Type into the first field that has another text; then send the form."""
    for line, text in texts:
        if line is None:
            return None
        if line.value != text:
            return Command("type", line.number, text)
    return submit(page)


def fields(page: WebPage) -> list[Line]:
    """The fields to type into, from top to bottom."""
    return list(page.find("input", "textarea", "number", "date", "time"))


def mark(page: WebPage, role: str, names: Collection[str]) -> Command | None:
    """Check the boxes of these names and no others, one a turn; then send the form."""
    for line in page.find(role):
        if ("checked" in line.states) != (line.name in names):
            return click(line)
    return submit(page)


def ordinal(instruction: str) -> int:
    """The first number such as 3rd; 0 if there is none.

    >>> ordinal("Find the 4th word")
    4
    """
    match = re.search(r"(\d+)(?:st|nd|rd|th)", instruction)
    return int(match[1]) if match else 0


def next_of(lines: list[Line], *states: str) -> Line | None:
    """The line after the last one in one of these states; the first one after all or if none is."""
    if not lines:
        return None
    last = max((i for i, line in enumerate(lines) if set(states) & set(line.states)), default=-1)
    return lines[(last + 1) % len(lines)]
