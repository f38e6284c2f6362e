"""A page as the agent sees it: a list of lines, of which those that can be used have a number."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Observation = Literal["full", "interactive"]
OBSERVATIONS: tuple[Observation, ...] = ("full", "interactive")
FIELDS = ("input", "textarea")
_INDENT = "  "
_UNSEEN = -5  # pixels above the window from which a line counts as scrolled away


@dataclass(frozen=True)
class Line:
    """One line of a page.

    number: for actions, from 1; 0 if it cannot be used.
    depth: of its indentation.
    role: ``text``, ``heading``, ``button``, ``link``, ``input``, ``option``, ... or a group such as ``dialog``.
    name: what it is called on the page.
    value: of a field, else None.
    states: such as ``selected`` or ``disabled``; for an icon without a name also its name in the markup.
    top: pixels below the upper edge of the window.
    """

    number: int
    depth: int
    role: str
    name: str
    value: str | None
    states: tuple[str, ...]
    top: int

    @property
    def text(self) -> str:
        """The line without indentation.

        >>> Line(4, 0, "input", "search", "red", (), 0).text
        '[4] input "search" = "red"'
        >>> Line(7, 1, "option", "Large", None, ("selected",), 0).text
        '[7] option Large (selected)'
        """
        if self.role == "text":
            return self.name
        texts = [f"[{self.number}]"] if self.number else []
        texts.append(self.role)
        if self.role == "option":
            texts.append(self.name)
        elif self.name:
            texts.append(f'"{self.name}"')
        if self.value is not None:
            texts.append(f'= "{self.value}"')
        if self.states:
            texts.append(f"({', '.join(self.states)})")
        return " ".join(segment for segment in texts if segment)

    @property
    def usable(self) -> bool:
        return self.number > 0 and not {"covered", "disabled"} & set(self.states)


@dataclass(frozen=True)
class WebPage:
    """What the browser shows.

    path: of its address.
    lines: from top to bottom.
    notes: what happened since the last reading, such as a dialog.
    can_scroll: whether the page can be scrolled up and down.
    key: identifies the visible page and the values of its fields.
    place: number of the page in the browser's history.
    stored: the site has stored something in the browser.
    unclean: something was stored when its document began.
    probe: value of the source's expression.
    """

    path: str
    lines: tuple[Line, ...]
    notes: tuple[str, ...]
    can_scroll: tuple[bool, bool]
    key: str
    place: int = 0
    stored: bool = False
    unclean: bool = False
    probe: Any = None

    @classmethod
    def of(cls, answer: Any) -> WebPage:
        """The page in what the script returned."""
        lines = tuple(
            Line(number, depth, role, name, value, tuple(states), top)
            for number, depth, role, name, value, states, top in answer["lines"]
        )
        visible = [line[:6] for line in answer["lines"]]
        content = json.dumps([answer["path"], answer["title"], visible, answer["hidden"]])
        up, down = answer["scroll"]
        key = hashlib.sha256(content.encode("utf-8", "replace")).hexdigest()[:32]
        return cls(
            answer["path"],
            lines,
            tuple(answer["notes"]),
            (up, down),
            key,
            place=answer["place"],
            stored=answer["stored"],
            unclean=answer["unclean"],
            probe=answer["probe"],
        )

    def line(self, number: int) -> Line | None:
        """The line with this number."""
        return next((line for line in self.lines if line.number == number and number > 0), None)

    def find(self, *roles: str, name: str | None = None) -> Iterator[Line]:
        """The usable lines of some roles (any if none is given), and of a name if one is given."""
        for line in self.lines:
            if line.usable and (not roles or line.role in roles) and name in (None, line.name):
                yield line

    def text(self, observation: Observation, limit: int) -> str:
        """The lines, indented, in at most about ``limit`` characters; marks say how much is cut.

        A cut page begins at the first line that is in the window, so scrolling shows the rest.
        """
        lines = [line for line in self.lines if line.number or observation == "full"]
        flat = observation == "interactive"
        texts = [_printable((0 if flat else line.depth) * _INDENT + line.text) for line in lines]
        if sum(len(text) + 1 for text in texts) <= limit:
            return "\n".join(texts)
        first = self._first_in_window(lines)
        end = first
        length = 0
        while end < len(texts) and (end == first or length + len(texts[end]) < limit):
            length += len(texts[end]) + 1
            end += 1
        body = texts[first:end]
        if len(body) == 1 and len(body[0]) > limit:
            body = [f"{body[0][:limit]}... (cut)"]
        above = [f"... {first} lines above: scroll[up]"] if first else []
        below = [f"... {len(texts) - end} lines below: scroll[down]"] if end < len(texts) else []
        return "\n".join([*above, *body, *below])

    def _first_in_window(self, lines: Sequence[Line]) -> int:
        if not self.can_scroll[0]:
            return 0
        return next((i for i, line in enumerate(lines) if line.top >= _UNSEEN), 0)


def _printable(text: str) -> str:
    """``text`` without lone surrogates, which files and tokenizers cannot store."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
