"""What is asked of an evaluation: the model, the tasks, the prompts, and where the episodes go.

The command line and Python both make one :class:`EvaluationRequest`. A journal's key is made from it too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, TypeAdapter, model_validator
from pydantic.dataclasses import dataclass

from gagpo.agents.api.settings import ApiSettings
from gagpo.base.errors import InvalidArgument
from gagpo.runs.run_folder import RunFolder
from gagpo.settings import ContextSettings, RunSettings, SettingsError, load

PREFIX = "openai:"  # of a model behind a server
TEMPERATURE, MAX_TOKENS = 0.4, 512
WEIGHTLESS = ("random", "expert")

AtLeastOne = Annotated[int, Field(ge=1)]
NotNegative = Annotated[int, Field(ge=0)]


@dataclass(frozen=True, config=ConfigDict(extra="forbid", allow_inf_nan=False))
class EvaluationRequest:
    """One evaluation. An option that is None is taken from ``like``, else from the model's own run, else its default.

    model: a run folder (``runs/X``, ``runs/X@20`` for the checkpoint of iteration 20, ``runs/X@best`` for the one that
        training found best), ``starter:NAME``, a model folder, a hub name, ``random``, ``expert``, or ``openai:NAME``
        for a model behind a server.
    environment: environment id, or the name of one of the several environments of a run or config.
    split: the split to play; the environment's last one by default.
    kwargs: arguments of the environment.
    like: a run or config that says what is not given here, the number of tasks included.
    tasks: number of tasks, evenly spaced over the split; the whole split by default.
    tries: episodes of each task.
    temperature: sampling temperature, 0.4 by default; ``server`` leaves it to the server of ``openai:NAME``.
    max_tokens: most tokens of a response, 512 by default.
    context: how the model is prompted; its style is ``plain`` by default, ``tags`` at a server.
    seed: other episodes of the same tasks.
    workers: number of environment processes.
    concurrency: episodes at once, 256 by default, 16 at a server.
    device: where the weights go; the run's own, or ``cpu``.
    revision: revision of a hub model; the result names its commit.
    trust_remote_code: run the code that a hub model, or a run's model, brings along. Read it first.
    server: where ``openai:NAME`` is asked, and at what price.
    reasoning: whether ``openai:NAME`` sees its earlier thoughts again.
    episodes: a file for the episodes, one JSON object a line.
    journals: a folder in which finished episodes are kept, so that the same request continues after an interruption.
    quiet: no progress bar.
    """

    model: str
    _: KW_ONLY
    environment: str | None = None
    split: str | None = None
    kwargs: Mapping[str, object] | None = None
    like: str | Path | None = None
    tasks: AtLeastOne | None = None
    tries: AtLeastOne = 1
    temperature: Annotated[float, Field(ge=0)] | Literal["server"] | None = None
    max_tokens: AtLeastOne | None = None
    context: ContextSettings = ContextSettings()
    seed: NotNegative = 0
    workers: NotNegative = 2
    concurrency: AtLeastOne | None = None
    device: str | None = None
    revision: str | None = None
    trust_remote_code: bool = False
    server: ApiSettings | None = None
    reasoning: Literal["drop", "keep"] = "drop"
    episodes: Path | None = None
    journals: Path | None = None
    quiet: bool = False

    @model_validator(mode="after")
    def _of_one_kind(self) -> EvaluationRequest:
        """Refuse options that say nothing about this kind of model."""
        elsewhere = {"device": self.device, "template": self.context.template or None, "revision": self.revision}
        here = {"server": self.server, "temperature": self.temperature if self.temperature == "server" else None}
        for name, value in (elsewhere if self.served else here).items():
            if value is not None:
                raise InvalidArgument(misplaced(name, self.model))
        return self

    @property
    def served(self) -> bool:
        """Whether the model is behind a server."""
        return self.model.startswith(PREFIX)

    @property
    def sampling_temperature(self) -> float | None:
        """The temperature to ask for; None where the server has its own."""
        return None if isinstance(self.temperature, str) else self.temperature

    def completed(self, run: RunSettings | None, like: RunSettings | None) -> EvaluationRequest:
        """The request with every option that decides panel and prompts filled in from ``like`` and the own ``run``.

        Raises:
            SettingsError: nothing names an environment, or nothing says which of several is meant.
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
            "split": next(iter(panel.evaluation.splits), None) if panel else None,
            "tasks": like.evaluation.tasks if like else None,
            "temperature": panel.evaluation.temperature if panel else TEMPERATURE,
            "max_tokens": prompts.rollout.max_tokens if prompts else MAX_TOKENS,
        }
        context = prompts.context if prompts else ContextSettings(style="tags" if self.served else "plain")
        given = {name: getattr(self.context, name) for name in self.context.model_fields_set}
        context = context.model_copy(update={**({"template": {}} if self.served else {}), **given})
        own = env.kwargs if env and env.id == environment else {}
        found = {name: value for name, value in usual.items() if getattr(self, name) is None}
        found |= {"environment": environment, "kwargs": {**own, **(self.kwargs or {})}}
        return replace(self, context=context, **found)  # type: ignore[arg-type]

    def _in_one_env(self, settings: RunSettings | None) -> RunSettings | None:
        """The settings of a run of several environments as if it had only the one that is asked for."""
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
        """The options that decide what an episode is, as plain JSON values: for the key of a journal."""
        names = {"model", "environment", "split", "seed", "temperature", "max_tokens", "reasoning", "context"}
        facts: dict[str, object] = TypeAdapter(EvaluationRequest).dump_python(self, mode="json", include=names)
        return facts


def names_of(settings: RunSettings) -> list[str]:
    """The names of the environments of a run of several; an empty list for a run of one."""
    return [row.name for row in settings.environments]


def misplaced(option: str, model: str) -> str:
    """The complaint about an option that says nothing about this kind of model."""
    if model.startswith(PREFIX):
        return f"{option} is for a model in this process, and {model} is behind a server"
    return f"{option} is for a model behind a server ({PREFIX}MODEL), and {model} is not"


def settings_like(like: str | Path | None) -> RunSettings | None:
    """The settings of a run folder, of a config file, or of a shipped config."""
    if like is None:
        return None
    folder = Path(like)
    return RunFolder.open(folder).settings if (folder / "config.yaml").is_file() else load(like)
