"""The conditions of an evaluation: the options of a request, filled in from runs, configs and defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gagpo.base.options import Options
from gagpo.eval.request import WEIGHTLESS, EvaluationRequest
from gagpo.runs.reading import in_one_line
from gagpo.runs.run_folder import RunFolder
from gagpo.settings import ContextSettings, RunSettings, SettingsError, load_stored
from gagpo.settings.interface import interface_of

TEMPERATURE = 0.4
MAX_TOKENS = 512


@dataclass(frozen=True)
class Conditions:
    """What the episodes of an evaluation depend on, besides the model and the seed.

    environment: its id.
    split: None for the environment's last.
    kwargs: arguments of the environment.
    tasks: number of tasks; None for the whole split.
    temperature: of sampling.
    max_tokens: token limit of a response.
    context: how the model is prompted.
    """

    environment: str
    split: str | None
    kwargs: dict[str, object]
    tasks: int | None
    temperature: float
    max_tokens: int
    context: ContextSettings

    def record(self) -> dict[str, object]:
        """The part that does not depend on the tasks, as plain JSON values, for the key of a journal."""
        return {
            "environment": self.environment,
            "split": self.split,
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
            "context": self.context.model_dump(mode="json"),
        }


def conditions_of(request: EvaluationRequest, run: RunSettings | None, like: RunSettings | None) -> Conditions:
    """Fill in what a request leaves open: tasks from ``like``, else the run; prompts from the run, else ``like``.

    run: the settings of the run that the request names as its model.
    like: the settings of the run or config that it names in ``like``.

    Raises:
        SettingsError: the environment is not given, or it is unclear which of several is meant.
        InvalidArgument: a key of the request's ``context`` is wrong.
    """
    names = [*(names_of(run) if run else []), *(names_of(like) if like else [])]
    run = _in_one_env(request, run)
    like = _in_one_env(request, like)
    tasks_from = like or run
    prompts_from = run or like
    env = tasks_from.only_environment.environment if tasks_from else None
    environment = request.environment
    if environment is None or environment in names:
        environment = env.id if env else None
    if environment is None:
        not_a_run = "" if request.model in WEIGHTLESS else f"{request.model} is no run here, so "
        raise SettingsError(
            f"{not_a_run}name the environment with --env, or a run to take it from with --like", key="--env"
        )
    splits: Sequence[str] = ()
    kwargs: Mapping[str, object] = {}
    if tasks_from and env and env.id == environment:  # those of another environment do not apply
        splits = tasks_from.evaluation.splits
        kwargs = env.kwargs
    return Conditions(
        environment=environment,
        split=_first(request.split, *splits),
        kwargs={**_interface(run, environment), **kwargs, **(request.kwargs or {})},
        tasks=_first(request.tasks, like.evaluation.tasks if like else None),
        temperature=_first(request.temperature, tasks_from.evaluation.temperature if tasks_from else None, TEMPERATURE),
        max_tokens=_first(request.max_tokens, prompts_from.rollout.max_tokens if prompts_from else None, MAX_TOKENS),
        context=_context(request, prompts_from),
    )


def _interface(run: RunSettings | None, environment: str) -> dict[str, object]:
    """How the model of a run was trained to read and write in ``environment``."""
    return interface_of(run.only_environment.environment, environment) if run else {}


def _first(*values: Any) -> Any:
    """The first value that is not None; None without one."""
    return next((value for value in values if value is not None), None)


def _in_one_env(request: EvaluationRequest, settings: RunSettings | None) -> RunSettings | None:
    """The settings of a run, reduced to the requested one of its environments."""
    if settings is None or not settings.environments:
        return settings
    if request.environment in names_of(settings):
        return settings.alone(settings.environment_named(request.environment))
    matching = [env for env in settings.all_environments if env.environment.id == request.environment]
    if len(matching) != 1:
        names = ", ".join(names_of(settings))
        raise SettingsError(
            f"run {settings.name!r} has several environments", key="--env", advice=f"name one with --env ({names})"
        )
    return settings.alone(matching[0])


class _ContextSection(Options):
    """The section of a run whose keys a request may set."""

    context: ContextSettings


def _context(request: EvaluationRequest, settings: RunSettings | None) -> ContextSettings:
    """The prompts of a run, else the defaults, with the keys that the request sets."""
    keys = request.context.keys()
    with in_one_line():
        requested = _ContextSection.model_validate({"context": keys}).context
    context = settings.context if settings else ContextSettings(prompt="tags" if request.served else "plain")
    changes = {name: getattr(requested, name) for name in keys}
    if request.served:  # the server applies the chat template
        changes = {"template": {}, **changes}
    return context.model_copy(update=changes)


def names_of(settings: RunSettings) -> list[str]:
    """The names of the environments of a run of several; an empty list for a run of one."""
    return [row.name for row in settings.environments]


def settings_like(like: str | Path | None, overrides: Sequence[str] = ()) -> RunSettings | None:
    """The settings of a run folder, of a config file, or of a shipped config, with overrides."""
    if like is None:
        return None
    if is_run_folder(like):
        return RunFolder.open(Path(like)).stored_settings(overrides)
    return load_stored(like, overrides)


def is_run_folder(path: str | Path) -> bool:
    """Whether a folder contains the settings of a run."""
    return (Path(path) / "config.yaml").is_file()
