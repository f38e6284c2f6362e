"""The request of an evaluation, from Python or the command line: model, tasks, prompts, files.

The options of ``gagpo eval`` are generated from these fields, so the module imports neither the settings of runs nor
numpy: ``--help`` needs it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from gagpo.agents.api.settings import PREFIX, ApiSettings
from gagpo.base.errors import InvalidArgument
from gagpo.base.options import Flag, Options

WEIGHTLESS = ("random", "expert")


class ContextOptions(Options):
    """How the model is prompted: any keys of a run's section ``context``, checked when the request is completed.

    The fields are the keys that are options of the command. None: as in the run.
    """

    model_config = ConfigDict(extra="allow")

    prompt: Annotated[str | Mapping[str, object] | BaseModel | None, Flag()] = Field(
        None, description="A shipped prompt (plain, tags, ...) or a YAML file."
    )
    history: Annotated[str | int | None, Flag()] = Field(
        None, description="Earlier turns in the prompt: full, or a number."
    )
    admissible: Annotated[bool | None, Flag()] = Field(None, description="List the admissible actions.")

    def keys(self) -> dict[str, Any]:
        """The keys that have a value."""
        return {name: value for name, value in self if value is not None}


class EvaluationRequest(Options):
    """One evaluation. An option that is None is taken from ``like``, else from the model's run, else its default.

    Fields with a ``Flag`` are options of ``gagpo eval``; their descriptions are its help.
    """

    model: Annotated[str, Flag()] = Field(
        description="A run folder (runs/X; runs/X@20, @best, @ema), a model, `random`, `expert`, or openai:MODEL."
    )
    environment: Annotated[str | None, Flag("--env")] = Field(
        None, description="Environment id, or the name of one in a run; by default all of the run's."
    )
    split: Annotated[str | None, Flag()] = Field(None, description="Split to evaluate on.")
    kwargs: Annotated[Mapping[str, object] | None, Flag("--kwargs", "-k")] = Field(
        None, description="Environment argument, name=value (YAML); repeat for more."
    )
    like: Annotated[str | Path | None, Flag("--like", "--config")] = Field(
        None, description="Take environment, split, tasks and prompts from this run or config."
    )
    suite: Annotated[str | None, Flag()] = Field(
        None, description="Evaluate on the task sets of a suite: agents, or a YAML file."
    )
    tasks: Annotated[int | None, Flag()] = Field(
        None, ge=1, description="Number of tasks, evenly spaced; the whole split by default."
    )
    episodes_per_task: Annotated[int, Flag()] = Field(1, ge=1, description="Episodes of each task.")
    temperature: Annotated[float | None, Flag()] = Field(
        None, ge=0, description="Sampling temperature; the run's, else 0.4."
    )
    max_tokens: Annotated[int | None, Flag()] = Field(None, ge=1, description="Token limit of a response.")
    context: Annotated[ContextOptions, Flag()] = Field(
        ContextOptions(), description="how the model is prompted; the prompt is plain by default, tags at a server"
    )
    seed: Annotated[int, Flag()] = Field(0, ge=0, description="Seed of the episodes.")
    workers: Annotated[int, Flag()] = Field(2, ge=0, description="Environment processes.")
    concurrency: Annotated[int | None, Flag()] = Field(
        None,
        ge=1,
        description="Concurrent episodes; by default 256, at a server 16, of programs one per CPU core.",
    )
    device: Annotated[str | None, Flag()] = Field(None, description="cpu, cuda, ...")
    revision: Annotated[str | None, Flag()] = Field(None, description="Branch, tag or commit of a hub model.")
    trust_remote_code: Annotated[bool, Flag("--trust-remote-code")] = Field(
        False, description="Run code that comes with the model or run; read it first."
    )
    server: Annotated[ApiSettings | None, Flag(panel=f"A model behind a server ({PREFIX}MODEL)")] = Field(
        None, description="URL, prices and limits of openai:MODEL"
    )
    episodes: Annotated[Path | None, Flag()] = Field(None, description="Write the episodes to this file (JSON lines).")
    journals: Path | None = Field(None, description="folder for finished episodes, so that the same request can resume")
    overrides: Sequence[str] = Field(
        (), description="section.key=value, as for train: of the run or config, or engine.key=value of any model"
    )
    quiet: Annotated[bool, Flag("--quiet", "-q")] = Field(False, description="No progress bars.")

    @field_validator("context", mode="before")
    @classmethod
    def _keys_of_settings(cls, context: object) -> object:
        """Accept a run's section ``context`` too; keys that it does not set are taken from the run."""
        if isinstance(context, BaseModel) and not isinstance(context, ContextOptions):
            return {name: getattr(context, name) for name in context.model_fields_set}
        return context

    @model_validator(mode="after")
    def _of_one_kind(self) -> EvaluationRequest:
        """Reject options that do not apply to this kind of model."""
        options: dict[str, object] = {"server": self.server}
        server = f"behind a server ({PREFIX}MODEL), and {self.model} is not"
        if self.served:
            template = self.context.keys().get("template") or None
            options = {"device": self.device, "template": template, "revision": self.revision}
            server = f"in this process, and {self.model} is behind a server"
        for name, value in options.items():
            if value is not None:
                raise InvalidArgument(f"{name} is for a model {server}", key=name)
        return self

    @property
    def served(self) -> bool:
        """Whether the model is behind a server."""
        return self.model.startswith(PREFIX)
