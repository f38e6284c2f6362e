"""The request of an evaluation, from the command line or Python: model, tasks, prompts, files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, replace
from pathlib import Path
from typing import Annotated

from pydantic import ConfigDict, Field, TypeAdapter, model_validator
from pydantic.dataclasses import dataclass

from gagpo.agents.api.settings import ApiSettings
from gagpo.base.errors import InvalidArgument
from gagpo.runs.run_folder import RunFolder
from gagpo.settings import ContextSettings, RunSettings, SettingsError, load_stored

PREFIX = "openai:"  # marks a model behind a server
TEMPERATURE, MAX_TOKENS = 0.4, 512
WEIGHTLESS = ("random", "expert")

AtLeastOne = Annotated[int, Field(ge=1)]
NotNegative = Annotated[int, Field(ge=0)]


@dataclass(frozen=True, config=ConfigDict(extra="forbid", allow_inf_nan=False))
class EvaluationRequest:
    """One evaluation. An option that is None is taken from ``like``, else from the model's run, else its default.

    model: a run folder (``runs/X``, ``runs/X@20`` for iteration 20, ``runs/X@best``), ``starter:NAME``, a model folder,
        a hub name, ``random``, ``expert``, or ``openai:NAME`` for a model behind a server.
    environment: environment id, or the name of one of several environments of a run or config.
    split: the split to play; by default the environment's last.
    kwargs: arguments of the environment.
    like: a run or config that gives the options that are None, including ``tasks``.
    tasks: number of tasks, evenly spaced over the split; by default all.
    episodes_per_task: number of episodes of each task.
    temperature: 0.4 by default; some models behind a server accept only 1.
    max_tokens: token limit of a response, 512 by default.
    context: how the model is prompted; the prompt is ``plain`` by default, ``tags`` at a server.
    seed: seed of the episodes.
    workers: number of environment processes.
    concurrency: episodes at once; by default 256, 16 at a server, and one per CPU core where each starts a program.
    device: by default the run's, else ``cpu``.
    revision: revision of a hub model; the result gives its commit.
    trust_remote_code: run code that comes with the model or that the run's settings name. Read it first.
    server: URL, prices and limits of ``openai:NAME``.
    episodes: file for the episodes, one JSON object per line.
    journals: folder for finished episodes, so that the same request can resume.
    quiet: no progress bar.
    """

    model: str
    _: KW_ONLY
    environment: str | None = None
    split: str | None = None
    kwargs: Mapping[str, object] | None = None
    like: str | Path | None = None
    tasks: AtLeastOne | None = None
    episodes_per_task: AtLeastOne = 1
    temperature: Annotated[float, Field(ge=0)] | None = None
    max_tokens: AtLeastOne | None = None
    context: ContextSettings = ContextSettings()
    seed: NotNegative = 0
    workers: NotNegative = 2
    concurrency: AtLeastOne | None = None
    device: str | None = None
    revision: str | None = None
    trust_remote_code: bool = False
    server: ApiSettings | None = None
    episodes: Path | None = None
    journals: Path | None = None
    quiet: bool = False

    @model_validator(mode="after")
    def _of_one_kind(self) -> EvaluationRequest:
        """Reject options that do not apply to this kind of model."""
        given: dict[str, object] = {"server": self.server}
        place = f"behind a server ({PREFIX}MODEL), and {self.model} is not"
        if self.served:
            given = {"device": self.device, "template": self.context.template or None, "revision": self.revision}
            place = f"in this process, and {self.model} is behind a server"
        for name, value in given.items():
            if value is not None:
                raise InvalidArgument(f"{name} is for a model {place}")
        return self

    @property
    def served(self) -> bool:
        """Whether the model is behind a server."""
        return self.model.startswith(PREFIX)

    @property
    def sampling_temperature(self) -> float:
        """The temperature of a model."""
        return TEMPERATURE if self.temperature is None else self.temperature

    def completed(self, run: RunSettings | None, like: RunSettings | None) -> EvaluationRequest:
        """The request with the options of panel and prompts filled in from ``like`` and the model's ``run``.

        Raises:
            SettingsError: the environment is not given, or it is unclear which of several is meant.
        """
        several = [one for one in (run, like) if one is not None and one.environments]
        run, like = self._in_one_env(run), self._in_one_env(like)
        panel, prompts = like or run, run or like
        env = panel.only_environment.environment if panel else None
        by_name = any(self.environment in names_of(one) for one in several)
        environment = (None if by_name else self.environment) or (env.id if env else None)
        if environment is None:
            named = "" if self.model in WEIGHTLESS else f"{self.model} is no run here, so "
            raise SettingsError(f"{named}name the environment with --env, or a run to take it from with --like")
        usual: dict[str, object] = {
            "split": next(iter(panel.evaluation.splits), None) if panel and env and env.id == environment else None,
            "tasks": like.evaluation.tasks if like else None,
            "temperature": panel.evaluation.temperature if panel else TEMPERATURE,
            "max_tokens": prompts.rollout.max_tokens if prompts else MAX_TOKENS,
        }
        context = prompts.context if prompts else ContextSettings(prompt="tags" if self.served else "plain")
        given = {name: getattr(self.context, name) for name in self.context.model_fields_set}
        context = context.model_copy(update={**({"template": {}} if self.served else {}), **given})
        own = env.kwargs if env and env.id == environment else {}
        found = {name: value for name, value in usual.items() if getattr(self, name) is None}
        found |= {"environment": environment, "kwargs": {**own, **(self.kwargs or {})}}
        return replace(self, context=context, **found)  # type: ignore[arg-type]

    def _in_one_env(self, settings: RunSettings | None) -> RunSettings | None:
        """The settings of a run, reduced to the requested one of its environments."""
        if settings is None or not settings.environments:
            return settings
        if self.environment in names_of(settings):
            return settings.alone(settings.environment_named(self.environment))
        alike = [one for one in settings.all_environments if one.environment.id == self.environment]
        if len(alike) != 1:
            names = ", ".join(names_of(settings))
            raise SettingsError(f"run {settings.name!r} has several environments: name one with --env ({names})")
        return settings.alone(alike[0])

    def facts(self) -> dict[str, object]:
        """The options that an episode depends on, as plain JSON values, for the key of a journal."""
        names = {"model", "environment", "split", "seed", "temperature", "max_tokens", "context"}
        facts: dict[str, object] = TypeAdapter(EvaluationRequest).dump_python(self, mode="json", include=names)
        return facts


def names_of(settings: RunSettings) -> list[str]:
    """The names of the environments of a run of several; an empty list for a run of one."""
    return [row.name for row in settings.environments]


def settings_like(like: str | Path | None) -> RunSettings | None:
    """The settings of a run folder, of a config file, or of a shipped config."""
    if like is None:
        return None
    return RunFolder.open(Path(like)).stored_settings() if is_run_folder(like) else load_stored(like)


def is_run_folder(path: str | Path) -> bool:
    """Whether a folder holds the settings of a run."""
    return (Path(path) / "config.yaml").is_file()
