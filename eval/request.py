"""What is asked of an evaluation: who plays which tasks, how it is spoken to, and what becomes of the episodes.

The command line and Python both make one :class:`EvaluationRequest`, and a journal's key is made from it.
"""

from __future__ import annotations

import datetime
import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, replace
from pathlib import Path
from typing import Annotated, Literal, ParamSpec, TypeVar

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, model_validator
from pydantic.dataclasses import dataclass

from gagpo.agents.api.settings import ApiSettings
from gagpo.agents.prompts import STYLES
from gagpo.base.errors import InvalidArgument
from gagpo.runs.reading import in_one_line
from gagpo.runs.run_folder import RunFolder
from gagpo.settings import ContextSettings, RunSettings, SettingsError, load
from gagpo.settings.environment import History

PREFIX = "openai:"  # of a model behind a server
TEMPERATURE, MAX_TOKENS = 0.4, 512
P = ParamSpec("P")
R = TypeVar("R")


def _known_style(style: str) -> str:
    if style not in STYLES:
        raise InvalidArgument(f"unknown style {style!r}; choose one of {', '.join(STYLES)}")
    return style


Plain = str | int | float | bool | datetime.date
Style = Annotated[str, AfterValidator(_known_style)]


@dataclass(frozen=True, config=ConfigDict(extra="forbid", allow_inf_nan=False))
class EvaluationRequest:
    """One evaluation. What is None is taken from ``like``, else from the model's own run, else it has its default.

    A model is a run folder (``runs/X``; ``runs/X@20`` for the checkpoint of iteration 20, ``runs/X@best`` for the one
    that training itself found best), a starter, a model folder, a hub name, ``random``, ``expert``, or ``openai:NAME``
    behind a server.
    """

    model: str = Field(description="a run, a checkpoint, a folder, a hub name, random, expert or openai:NAME")
    _: KW_ONLY
    environment: str | None = Field(default=None, description="environment id")
    world: str | None = Field(default=None, description="which one of a run, or a config, of several worlds")
    split: str | None = Field(default=None, description="what is played; the environment's last one by default")
    kwargs: Mapping[str, object] | None = Field(default=None, description="arguments of the environment")
    like: str | Path | None = Field(default=None, description="a run or config that says what is not given, tasks too")
    tasks: int | None = Field(default=None, ge=1, description="so many, evenly spaced; the whole split by default")
    tries: int = Field(default=1, ge=1, description="episodes of each task")
    temperature: float | Literal["server"] | None = Field(
        default=None, description="0.4 by default; `server` leaves it to the server of openai:NAME"
    )
    max_tokens: int | None = Field(default=None, ge=1, description="of a response; 512 by default")
    style: Style | None = Field(default=None, description="of the prompts; plain by default, tags at a server")
    calls: str | None = Field(default=None, description="with style tools: the format that the model calls in")
    history: History | None = Field(default=None, description="full, or how many earlier turns a window shows")
    admissible: bool | None = Field(default=None, description="list the admissible actions")
    template: Mapping[str, Plain] | None = Field(default=None, description="variables of the chat template")
    seed: int = Field(default=0, ge=0, description="other episodes of the same tasks")
    workers: int = Field(default=2, ge=0, description="processes of environments")
    concurrency: int | None = Field(default=None, ge=1, description="episodes at once; 256, or 16 at a server")
    device: str | None = Field(default=None, description="of the weights; the run's own, or cpu")
    revision: str | None = Field(default=None, description="of a hub model; the result names its commit")
    trust_remote_code: bool = Field(default=False, description="run the code that a hub model brings")
    server: ApiSettings | None = Field(default=None, description="where openai:NAME is asked, and at what price")
    reasoning: Literal["drop", "keep"] = Field(
        default="drop", description="whether openai:NAME sees its thoughts again"
    )
    episodes: Path | None = Field(default=None, description="a file for the episodes, one JSON object a line")
    journals: Path | None = Field(default=None, description="a folder of episodes, for the same request to go on with")
    quiet: bool = Field(default=False, description="no progress bar")

    @model_validator(mode="after")
    def _of_one_kind(self) -> EvaluationRequest:
        elsewhere = {"device": self.device, "template": self.template, "revision": self.revision}
        here = {"server": self.server, "temperature": self.temperature if self.temperature == "server" else None}
        for name, value in (elsewhere if self.served else here).items():  # that say nothing about this model
            if value is not None:
                kind = "a model in this process" if self.served else f"a model behind a server ({PREFIX}MODEL)"
                raise InvalidArgument(f"{name} is about {kind}, and {self.model} is none")
        return self

    @property
    def served(self) -> bool:
        """Whether the model is behind a server."""
        return self.model.startswith(PREFIX)

    @property
    def sampling_temperature(self) -> float | None:
        """The temperature to ask for; None where the server has its own."""
        return None if isinstance(self.temperature, str) else self.temperature

    @property
    def context(self) -> ContextSettings:
        """How the model is spoken to."""
        given = {name: getattr(self, name) for name in ContextSettings.model_fields}
        return ContextSettings.model_validate({name: value for name, value in given.items() if value is not None})

    def completed(self, run: RunSettings | None, like: RunSettings | None) -> EvaluationRequest:
        """Everything that panel and player are chosen by filled in: from ``like``, and from the model's own ``run``.

        Raises SettingsError where nothing names an environment, or nothing which of several worlds is meant.
        """
        run, like = self._in_one_world(run), self._in_one_world(like)
        panel, prompts = like or run, run or like
        world = panel.only_world.environment if panel else None
        environment = self.environment or (world.id if world else None)
        if environment is None:
            named = "" if self.model in ("random", "expert") else f"{self.model} is no run here, so "
            raise SettingsError(f"{named}name the environment with --env, or a run to take it from with --like")
        context = prompts.context if prompts else ContextSettings(style="tags" if self.served else "plain")
        usual: dict[str, object] = {
            "split": panel.evaluation.splits[0] if panel else None,
            "tasks": like.evaluation.tasks if like else None,
            "temperature": panel.evaluation.temperature if panel else TEMPERATURE,
            "max_tokens": prompts.rollout.max_tokens if prompts else MAX_TOKENS,
            **{name: getattr(context, name) for name in ("style", "calls", "history", "admissible")},
            "template": None if self.served else context.template,
        }
        own = world.kwargs if world and world.id == environment else {}
        found = {name: value for name, value in usual.items() if getattr(self, name) is None}
        found |= {"environment": environment, "kwargs": {**own, **(self.kwargs or {})}}
        return replace(self, **found)  # type: ignore[arg-type]

    def _in_one_world(self, settings: RunSettings | None) -> RunSettings | None:
        """The settings of a run of several worlds as if it had the one that is asked for alone."""
        if settings is None or not settings.environments:
            return settings
        if self.world is not None:
            return settings.alone(settings.world_named(self.world))
        alike = [one for one in settings.worlds if one.environment.id == self.environment]
        if len(alike) != 1:
            names = ", ".join(one.name for one in settings.worlds)
            raise SettingsError(f"run {settings.name!r} has several worlds: name one with --world ({names})")
        return settings.alone(alike[0])

    def facts(self) -> dict[str, object]:
        """What of it decides what an episode is, as plain JSON values: for the key of a journal."""
        names = {"model", "environment", "split", "seed", "temperature", "max_tokens", "reasoning"}
        names |= ContextSettings.model_fields.keys()
        facts: dict[str, object] = TypeAdapter(EvaluationRequest).dump_python(self, mode="json", include=names)
        return facts


def settings_like(like: str | Path | None) -> RunSettings | None:
    """The settings of a run folder, of a config file, or of a shipped config."""
    if like is None:
        return None
    folder = Path(like)
    return RunFolder.open(folder).settings if (folder / "config.yaml").is_file() else load(like)


def taking(request: Callable[P, EvaluationRequest]) -> Callable[[Callable[[EvaluationRequest], R]], Callable[P, R]]:
    """A function of a request, called with the request's own arguments; they are what its help describes."""

    def taken(function: Callable[[EvaluationRequest], R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*arguments: P.args, **options: P.kwargs) -> R:
            with in_one_line():
                asked = request(*arguments, **options)
            return function(asked)

        described = (
            f"    {name}: {field.description}."
            for name, field in EvaluationRequest.__pydantic_fields__.items()  # type: ignore[attr-defined]
        )
        call.__doc__ = "\n".join([f"{inspect.getdoc(function)}\n", *described])
        call.__signature__ = inspect.signature(request)  # type: ignore[attr-defined]
        return call

    return taken
