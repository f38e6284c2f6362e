"""The environments of a run, and how the model is prompted in them."""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator

from gagpo.agents.call_formats import find_format
from gagpo.agents.prompts import Prompt, find_prompt
from gagpo.base.errors import InvalidArgument
from gagpo.base.options import Options, explain
from gagpo.envs.offers import resolvers
from gagpo.envs.plain import seed_ranges
from gagpo.envs.tasks import in_environment
from gagpo.settings.training import EvaluationSettings


def require_plain(value: object, where: str = "") -> object:
    """``value``; ValueError if JSON cannot hold it unchanged, because the run's config.yaml must be read back."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise ValueError(f"the key {key!r}{where} is not text; quote it")
            require_plain(inner, f" of {key}")
    elif isinstance(value, list):
        for inner in value:
            require_plain(inner, where)
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"the value {value}{where} is not a finite number")
    elif not isinstance(value, str | int | float | None):
        raise ValueError(f"the value {value!s:.40}{where} is of type {type(value).__name__}; quote it to make it text")
    return value


Kwargs = Annotated[dict[Any, Any], AfterValidator(require_plain)]
"""Plain values by name, as YAML and JSON both write them."""


def _history(value: object) -> object:
    number = value
    if isinstance(value, str) and value.isdecimal() and len(value) < 10:
        number = int(value)
    if number != "full" and (isinstance(number, bool) or not isinstance(number, int) or number < 0):
        raise InvalidArgument(f"history must be full or a number of turns, got {value!r:.80}", key="history")
    return number


History = Annotated[Literal["full"] | int, BeforeValidator(_history)]
"""The earlier turns that a prompt shows."""


def _read_prompt(value: object) -> object:
    return find_prompt(value) if isinstance(value, str) else value


Template = dict[str, str | int | float | bool | datetime.date]


def _call_format(name: str) -> str:
    return name if name == "auto" else find_format(name).name


Calls = Annotated[str, AfterValidator(_call_format)]
"""The format of tool calls."""


def _require_seed_ranges(tasks: dict[str, str]) -> dict[str, str]:
    seed_ranges(tasks)
    return tasks


class EnvironmentSettings(Options):
    """The environment of a run."""

    id: str = Field(
        description="a registered id, module:Name-v0 or module:Class of a file in the working directory, "
        f"or an id that begins with {', '.join(resolvers())} before a name"
    )
    split: str = Field("train", description="split to train on")
    kwargs: Kwargs = Field({}, description="arguments of the environment's constructor")
    tasks: Annotated[dict[str, str], AfterValidator(_require_seed_ranges)] = Field(
        {},
        description="for an environment without tasks: the seeds of each split, {train: 0-999, test: 1000-1099}; "
        "passed on as kwargs.tasks",
    )

    @model_validator(mode="before")
    @classmethod
    def _with_tasks(cls, values: object) -> object:
        if not isinstance(values, dict) or not values.get("tasks"):
            return values
        return {**values, "kwargs": {**(values.get("kwargs") or {}), "tasks": values["tasks"]}}


class ContextSettings(Options):
    """How the model is prompted."""

    prompt: Annotated[Prompt, BeforeValidator(_read_prompt)] = Field(
        default_factory=lambda: find_prompt("plain"),
        description="a shipped prompt (plain by default, tags, action, whole, tools, think-act), a YAML file, or its "
        "keys; a run records the content",
    )
    history: History = Field("full", description="full, or the number of earlier turns in the prompt")
    admissible: bool = Field(False, description="list the admissible actions in the prompt")
    template: Template = Field(
        {}, description="variables of the chat template; date (YYYY-MM-DD) replaces the current date"
    )
    calls: Calls = Field(
        "auto",
        description="format of tool calls: hermes, llama, mistral; auto: the format of the chat template",
    )

    @model_validator(mode="before")
    @classmethod
    def _renamed(cls, values: object) -> object:
        if isinstance(values, dict) and "style" in values:
            raise InvalidArgument(
                "style is renamed to context.prompt", key="style", advice=f"write prompt: {values['style']!s:.80}"
            )
        return values


def _some_keys(section: type[Options], values: Mapping[str, Any], allowed: Sequence[str]) -> dict[str, Any]:
    """Validated values of some keys of a section; InvalidArgument for a key that is not ``allowed``."""
    if rejected := [name for name in values if name in section.model_fields and name not in allowed]:
        raise InvalidArgument(
            f"{rejected[0]} cannot differ between environments, only {', '.join(allowed)}", key=rejected[0]
        )
    try:
        settings = section.model_validate(dict(values))
    except ValidationError as error:
        raise explain(error, allowed, None) from None
    return {name: getattr(settings, name) for name in values}


def _context(values: dict[str, Any]) -> dict[str, Any]:
    return _some_keys(ContextSettings, values, list(ContextSettings.model_fields))


def _evaluation(values: dict[str, Any]) -> dict[str, Any]:
    return _some_keys(EvaluationSettings, values, ["splits", "episodes_per_task", "tasks"])


class EnvironmentRow(EnvironmentSettings):
    """One of several environments that a run trains on together; the run's settings apply unless set here."""

    name: str = Field(
        pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,39}$",
        description="in the names of metrics, task sets and tasks: letters, digits, - and _",
    )
    weight: float = Field(
        1.0, ge=1e-6, le=1e6, description="fraction of the task groups, relative to other environments"
    )
    context: Annotated[dict[str, Any], AfterValidator(_context)] = Field(
        {}, description="keys of `context` that differ from the run's"
    )
    max_tokens: int | None = Field(
        None, ge=1, description="maximum number of tokens of a response; absent: rollout.max_tokens"
    )
    evaluation: Annotated[dict[str, Any], AfterValidator(_evaluation)] = Field(
        {}, description="splits, episodes_per_task or tasks that differ from the run's `evaluation`"
    )


@dataclass(frozen=True)
class RunEnvironment:
    """An environment of a run with its resolved settings.

    name: empty in a run with a single ``environment``.
    weight: fraction of the task groups, relative to other environments.
    max_tokens: maximum number of tokens of a response.
    """

    name: str
    weight: float
    environment: EnvironmentSettings
    context: ContextSettings
    max_tokens: int
    evaluation: EvaluationSettings

    @property
    def panels(self) -> dict[str, str]:
        """The splits to evaluate, by the task set's name within the run."""
        return {in_environment(self.name, split): split for split in self.evaluation.splits}


def fault_of(rows: Sequence[EnvironmentRow]) -> str:
    """What is wrong with the rows together, or ''."""
    first: dict[str, int] = {}
    for number, row in enumerate(rows):
        if row.name.casefold() in first:  # used in file names, which some systems compare without case
            earlier = first[row.name.casefold()]
            return f"rows {earlier} and {number} are both named {row.name!r}: give each a different name"
        first[row.name.casefold()] = number
    return ""
