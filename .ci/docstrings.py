"""A griffe extension of the site: what docstrings write for Sphinx and doctest is shown as Markdown.

Roles (``:class:`Run```) become code, examples (``>>> 1``) become blocks, which Markdown would take for quotations.
"""

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:\w+):`~?([^`]+)`")
CODE = re.compile(r"``([^`\n]+)``")
EXAMPLE = re.compile(r"(?:^[ ]*>>> .*\n(?:^[ ]*\S.*(?:\n|\Z))*)+", re.MULTILINE)


class Docstrings(griffe.Extension):
    """Rewrites the docstring of every object."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = shown(obj.docstring.value)


def shown(text: str) -> str:
    """A docstring as Markdown.

    >>> shown("See :class:`gagpo.a.B` and :func:`f`: ``x``.")
    'See `B` and `f`: `x`.'
    """
    text = ROLE.sub(lambda match: f"`{match[1].rpartition('.')[2]}`", text)
    text = CODE.sub(r"`\1`", text)
    return EXAMPLE.sub(_block, text + "\n").rstrip("\n")


def _block(match: re.Match[str]) -> str:
    lines = match[0].rstrip("\n").split("\n")
    margin = min(len(line) - len(line.lstrip()) for line in lines)
    body = "\n".join(line[margin:] for line in lines)
    return f"\n```pycon\n{body}\n```\n"
