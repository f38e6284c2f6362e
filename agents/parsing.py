"""Find the action in a response. A response is untrusted text: it is searched, never evaluated."""

from __future__ import annotations

import re
from collections.abc import Callable

MAX_ACTION = 2000  # characters; no environment has longer actions


def _line(response: str) -> str | None:
    """The response itself if it is one line."""
    text = response.strip()
    return text if text and "\n" not in text and len(text) <= MAX_ACTION else None


_TAG = re.compile(r"<action>((?:(?!</?action>).)*)</action>", re.DOTALL | re.IGNORECASE)


def _tag(response: str) -> str | None:
    """The contents of the last ``<action>`` element if it is one line."""
    found = _TAG.findall(response)
    return _line(found[-1]) if found else None


def _whole(response: str) -> str | None:
    """The whole response; the environment reads it."""
    return response if response.strip() else None


PARSERS: dict[str, Callable[[str], str | None]] = {"line": _line, "tag": _tag, "whole": _whole}


SAYING = {"line": "{}", "whole": "{}", "tag": "<action>{}</action>"}  # by parser: a response that is only an action


def parse(response: str, parser: str) -> str | None:
    """The action in ``response``, None if there is none: the turn is then penalised and the environment gets ''.

    >>> parse("<think>the mug is hot</think><action> go to sinkbasin 1 </action>", "tag")
    'go to sinkbasin 1'
    >>> parse("I would rather not", "tag") is None
    True
    """
    return PARSERS[parser](response)
