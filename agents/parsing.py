"""From a response to an action. A response is untrusted text: it is searched, never evaluated."""

from __future__ import annotations

import re
from collections.abc import Callable

MAX_ACTION = 2000  # characters; no environment has longer actions, and garbage should cost nothing downstream


def _line(response: str) -> str | None:
    """The response itself, when it is one line."""
    text = response.strip()
    return text if text and "\n" not in text and len(text) <= MAX_ACTION else None


_TAG = re.compile(r"<action>((?:(?!</?action>).)*)</action>", re.DOTALL | re.IGNORECASE)


def _tag(response: str) -> str | None:
    """The contents of the last ``<action>`` element, when it is one line."""
    found = _TAG.findall(response)
    return _line(found[-1]) if found else None


def _whole(response: str) -> str | None:
    """Everything; the environment finds its way in it."""
    return response if response.strip() else None


PARSERS: dict[str, Callable[[str], str | None]] = {"line": _line, "tag": _tag, "whole": _whole}


SAYING = {"line": "{}", "whole": "{}", "tag": "<action>{}</action>"}  # by parser: an action and nothing else


def parse(response: str, parser: str) -> str | None:
    """The action in ``response``, or None when there is none: the turn is then penalised and the world gets ''.

    >>> parse("<think>the mug is hot</think><action> go to sinkbasin 1 </action>", "tag")
    'go to sinkbasin 1'
    >>> parse("I would rather not", "tag") is None
    True
    """
    return PARSERS[parser](response)
