"""Thoughts in a response: text that is neither an action nor an answer."""

from __future__ import annotations

import re

OPENED, CLOSED = "<think>", "</think>"  # the marks of a thought
_THOUGHT = re.compile(f"{OPENED}|{CLOSED}")


def without_thoughts(response: str) -> str:
    """A response without its thoughts, closed or not.

    Everything before a ``</think>`` without its ``<think>`` is a thought too: some chat templates open the thought.

    >>> without_thoughts("<think>left?</think>right")
    'right'
    >>> without_thoughts("left?</think>right<think>or left")
    'right'
    """
    outside: list[str] = []  # outside of thoughts
    is_thought = False
    begin = 0
    for mark in _THOUGHT.finditer(response):
        if mark.group() == CLOSED:
            if not is_thought:
                outside.clear()
            is_thought = False
            begin = mark.end()
        elif not is_thought:
            outside.append(response[begin : mark.start()])
            is_thought = True
    if not is_thought:
        outside.append(response[begin:])
    return "".join(outside)
