"""Prompt styles: how observations become messages, and which part of a response is the action.

A response is untrusted text: it is searched, never evaluated.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gagpo.base.errors import InvalidArgument

CALLS = "calls"
MAX_ACTION = 2000  # characters; no environment has longer actions
_TAG = re.compile(r"<action>((?:(?!</?action>).)*)</action>", re.DOTALL | re.IGNORECASE)


def _line(response: str) -> str | None:
    """The response itself if it is one line."""
    text = response.strip()
    return text if text and "\n" not in text and len(text) <= MAX_ACTION else None


def _tag(response: str) -> str | None:
    """The contents of the last ``<action>`` element if it is one line."""
    found = _TAG.findall(response)
    return _line(found[-1]) if found else None


def _whole(response: str) -> str | None:
    """The whole response; the environment reads it."""
    return response if response.strip() else None


PARSERS: dict[str, Callable[[str], str | None]] = {"line": _line, "tag": _tag, "whole": _whole}
RESPONSES = {"line": "{}", "whole": "{}", "tag": "<action>{}</action>"}  # by parser: a response that is only an action


def parse(response: str, parser: str) -> str | None:
    """The action in ``response``; None if there is none (an invalid turn, for which the environment gets '').

    >>> parse("<think>the mug is hot</think><action> go to sinkbasin 1 </action>", "tag")
    'go to sinkbasin 1'
    >>> parse("I would rather not", "tag") is None
    True
    """
    return PARSERS[parser](response)


@dataclass(frozen=True)
class PromptStyle:
    """One style of prompts; :func:`message` and :func:`window` fill the fields of its templates.

    opening: first user message; fields ``instructions`` (of the environment), ``observation``, ``admissible``.
    turn: later user messages of a full conversation; fields ``observation``, ``admissible``.
    windowed: the single user message of a windowed context; fields ``instructions``, ``task`` (the first observation),
        ``done`` (number of earlier turns), ``history``, ``observation``, ``admissible``.
    parser: name in :data:`PARSERS`, or ``calls`` for tool calls, see :mod:`gagpo.agents.toolbox`.
    system: system message.
    """

    opening: str
    turn: str
    windowed: str
    parser: str
    system: str | None = None

    def __post_init__(self) -> None:
        if self.parser not in (*PARSERS, CALLS):
            raise InvalidArgument(f"unknown parser {self.parser!r}; choose one of {', '.join((*PARSERS, CALLS))}")

    @property
    def calls(self) -> bool:
        """Whether actions are tool calls; messages after the first are then their answers."""
        return self.parser == CALLS


_ASK = (
    "First reason step by step about the situation inside <think> </think>. "
    "Then give exactly one action inside <action> </action>."
)

STYLES = {
    # For small models: only the environment's own text; the response is the action.
    "plain": PromptStyle(
        opening="{observation}{admissible}",
        turn="{observation}{admissible}",
        windowed="{task}\n{history}{observation}{admissible}",
        parser="line",
    ),
    # For instruction-tuned models: reasoning and a tagged action.
    "tags": PromptStyle(
        opening="{instructions}\n\n{observation}{admissible}\n\n" + _ASK,
        turn="{observation}{admissible}\n\n" + _ASK,
        windowed=(
            "{instructions}\n\nYour task and where it began:\n{task}\n\nYou have taken {done} actions. The latest "
            "observations and actions:\n{history}\nNow you see:\n{observation}{admissible}\n\n" + _ASK
        ),
        parser="tag",
    ),
    # For environments that read the whole response (maths).
    "whole": PromptStyle(
        opening="{instructions}\n\n{observation}{admissible}",
        turn="{observation}{admissible}",
        windowed="{instructions}\n\n{task}\n{history}{observation}{admissible}",
        parser="whole",
    ),
    # For models trained to call tools: the chat template shows the tools, and each call gets its own answer.
    "tools": PromptStyle(
        opening="{instructions}\n\n{observation}{admissible}",
        turn="{observation}{admissible}",
        windowed=(
            "{instructions}\n\n{task}\n\nThe latest observations and calls, of {done}:\n{history}"
            "{observation}{admissible}"
        ),
        parser=CALLS,
    ),
}


def text_style(name: str) -> PromptStyle:
    """The style called ``name``. Raises: InvalidArgument for an unknown one and for one with tool calls."""
    texts = [known for known, style in STYLES.items() if not style.calls]
    if name not in texts:
        raise InvalidArgument(f"unknown style {name!r:.80}; choose one of {', '.join(texts)}")
    return STYLES[name]


def style_name(style: PromptStyle) -> str:
    """The name of a style, ``own`` for one that is not in :data:`STYLES`."""
    return next((name for name, known in STYLES.items() if known == style), "own")


def admissible_line(actions: Sequence[str] | None) -> str:
    """The admissible actions as a line to append, '' if unknown."""
    return f"\nAdmissible actions: {', '.join(actions)}." if actions else ""


def message(style: PromptStyle, instructions: str, observation: str, admissible: str, first: bool) -> str:
    """The user message that shows ``observation`` in a full conversation."""
    if first:
        text = style.opening.format(instructions=instructions, observation=observation, admissible=admissible)
        return text.strip()
    return style.turn.format(observation=observation, admissible=admissible)


def window(
    style: PromptStyle, instructions: str, turns: Sequence[Any], observation: str, admissible: str, width: int
) -> str:
    """The user message that shows the task, the last ``width`` turns and ``observation``."""
    shown = turns[max(0, len(turns) - width) :] if width else []
    history = "".join(f"{turn.observation}\n> {turn.action}\n" for turn in shown)
    task = turns[0].observation if turns else observation
    if len(shown) == len(turns):  # history or observation show the task already
        task = ""
    fields = {"instructions": instructions, "task": task, "done": len(turns), "history": history}
    return style.windowed.format(observation=observation, admissible=admissible, **fields).strip()
