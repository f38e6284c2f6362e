"""What the model is told: how observations become messages, and which part of a response is the action."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gagpo.agents.parsing import PARSERS
from gagpo.base.errors import InvalidArgument

CALLS = "calls"


@dataclass(frozen=True)
class PromptStyle:
    """A way of talking to the model; the templates' fields are filled by :func:`message` and :func:`window`.

    opening: first user message; fields ``instructions`` (of the environment), ``observation``, ``admissible``.
    turn: later user messages of a full conversation; fields ``observation``, ``admissible``.
    windowed: the single user message of a windowed context; fields ``instructions``, ``task`` (the first observation),
        ``done`` (number of earlier turns), ``history``, ``observation``, ``admissible``.
    parser: name in ``gagpo.agents.parsing.PARSERS``, or ``calls`` for tool calls: ``gagpo.agents.calls`` reads those.
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
        """Whether actions are tool calls; after the first message everything the model is shown answers one."""
        return self.parser == CALLS


_ASK = (
    "First reason step by step about the situation inside <think> </think>. "
    "Then give exactly one action inside <action> </action>."
)

STYLES = {
    # For small models: nothing but the environment's own words, and the response is the action.
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
    # For environments that read the whole response themselves (maths).
    "whole": PromptStyle(
        opening="{instructions}\n\n{observation}{admissible}",
        turn="{observation}{admissible}",
        windowed="{instructions}\n\n{task}\n{history}{observation}{admissible}",
        parser="whole",
    ),
    # For models that were trained to call tools: the chat template tells them, and each call is answered by itself.
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
    """The style of that name where a response is read as text alone; :class:`InvalidArgument` for any other."""
    texts = [known for known, style in STYLES.items() if not style.calls]
    if name not in texts:
        raise InvalidArgument(f"style {name!r:.80} is none that can be used here; choose one of {', '.join(texts)}")
    return STYLES[name]


def admissible_line(actions: Sequence[str] | None) -> str:
    """The admissible actions as one line to append, or nothing where they are unknown."""
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
    if len(shown) == len(turns):  # the task's text stands in the history (or is the observation) already
        task = ""
    fields = {"instructions": instructions, "task": task, "done": len(turns), "history": history}
    return style.windowed.format(observation=observation, admissible=admissible, **fields).strip()
