"""The environment of a run, and what the model is shown of it."""

from __future__ import annotations

import datetime
import math
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from gagpo.agents.call_formats import find_format
from gagpo.agents.prompts import STYLES
from gagpo.base.errors import InvalidArgument
from gagpo.base.options import Options


def _plain(value: object, where: str = "") -> object:
    """``value`` if JSON can hold it as it is: what it could not would change on its way to the run's config.yaml."""
    if isinstance(value, dict):
        for key, part in value.items():
            if not isinstance(key, str):
                raise ValueError(f"the key {key!r}{where} is not text; quote it")
            _plain(part, f" of {key}")
    elif isinstance(value, list):
        for part in value:
            _plain(part, where)
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"the value {value}{where} is not a finite number")
    elif not isinstance(value, str | int | float | None):
        raise ValueError(f"the value {value!s:.40}{where} is of type {type(value).__name__}; quote it to make it text")
    return value


Kwargs = Annotated[dict[Any, Any], AfterValidator(_plain)]
"""Plain values by name, as YAML and JSON both write them."""


def _history(value: object) -> object:
    number = int(value) if isinstance(value, str) and value.isdecimal() and len(value) < 10 else value
    if number != "full" and (isinstance(number, bool) or not isinstance(number, int) or number < 0):
        raise InvalidArgument(f"history is full or a number of turns, got {value!r:.80}")
    return number


History = Annotated[Literal["full"] | int, BeforeValidator(_history)]
"""Which turns of an episode a prompt shows."""


def _known_style(style: str) -> str:
    if style not in STYLES:
        raise InvalidArgument(f"unknown style {style!r:.80}; choose one of {', '.join(STYLES)}")
    return style


Style = Annotated[str, AfterValidator(_known_style)]
Template = dict[str, str | int | float | bool | datetime.date]


def _known_calls(calls: str) -> str:
    return calls if calls == "auto" else find_format(calls).name


Calls = Annotated[str, AfterValidator(_known_calls)]
"""The format that a model calls tools in."""


class EnvironmentSettings(Options):
    """Which environment, and with what arguments; ``kwargs`` are those of its constructor."""

    id: str = Field(
        description="a registered id, module:Name-v0 of a file in the working directory, or http://HOST:PORT"
    )
    split: str = Field("train", description="the split that is trained on")
    kwargs: Kwargs = Field({}, description="arguments of the environment's constructor")


class ContextSettings(Options):
    """What the model is shown. history: ``full``, or the number of earlier turns a window shows."""

    style: Style = Field(
        "plain",
        description="how observations become messages: plain for small models, tags or whole for instruct models, "
        "tools for models that were trained to call tools",
    )
    history: History = Field("full", description="full, or the number of earlier turns that a window shows")
    admissible: bool = Field(False, description="list the admissible actions in the prompt")
    template: Template = Field({}, description="variables of the chat template; date (YYYY-MM-DD) stands for today's")
    calls: Calls = Field(
        "auto",
        description="with style tools, the format that the model calls in: hermes, llama, mistral; auto: what its chat "
        "template shows",
    )
