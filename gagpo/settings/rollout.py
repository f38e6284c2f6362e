"""How episodes are collected and responses are sampled."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, SerializeAsAny, ValidationInfo, field_validator, model_validator

from gagpo.agents.engines.base import Sampling
from gagpo.agents.engines.options import EngineOptions
from gagpo.agents.engines.registry import ENGINES, engine_options
from gagpo.base.defaults import MAX_TOKENS
from gagpo.base.errors import InvalidArgument
from gagpo.base.options import Options, by_name
from gagpo.model.dtypes import require_known
from gagpo.settings.environment import require_plain

MOST_EPISODES = 1_000_000
"""Maximum number of episodes of an iteration; with one short turn each they take some gigabytes of memory."""


class RolloutSettings(Options):
    """How episodes are collected: ``tasks`` x ``group_size`` episodes per iteration."""

    tasks: int = Field(16, ge=1, description="task groups per iteration")
    group_size: int = Field(8, ge=1, description="episodes per task group")
    temperature: float = Field(1.0, gt=0, description="sampling temperature")
    max_tokens: int = Field(MAX_TOKENS, ge=1, description="maximum number of tokens of a response")
    workers: Literal["auto"] | int = Field(
        "auto",
        description="environment processes, at most 1024; 0: step environments in the trainer's process; auto: 0 for "
        "environments of this package that cannot hang, else 2",
    )
    concurrency: int = Field(256, ge=1, description="maximum number of simultaneous episodes")
    deterministic: bool = Field(
        True, description="bit-identical batches in every run; false is faster where environments are slow or uneven"
    )
    ahead: int = Field(
        0,
        ge=0,
        le=64,
        description="batches sampled during updates; 0: sample with the newest weights only",
    )
    max_staleness: int = Field(
        4,
        ge=1,
        description="with ahead: maximum number of updates since the weights of an episode's first turn; older "
        "episodes are sampled again",
    )
    worker_memory: int | None = Field(
        4096, ge=1, description="memory limit of an environment process, in MiB beyond shared memory; null: no limit"
    )
    step_timeout: float = Field(60.0, gt=0, description="seconds")
    reset_timeout: float = Field(
        300.0, gt=0, description="seconds; also for the start of a worker, which gets at least 60"
    )

    @property
    def sampling(self) -> Sampling:
        return Sampling(self.temperature, self.max_tokens)

    @model_validator(mode="after")
    def _require_consistent(self) -> RolloutSettings:
        if (episodes := self.tasks * self.group_size) > MOST_EPISODES:
            raise InvalidArgument(
                f"tasks={self.tasks:,} x group_size={self.group_size:,} are {episodes:,} episodes, all held in memory "
                f"until the update",
                key="tasks",
                advice=(f"the maximum is {MOST_EPISODES:,}: lower group_size or tasks, and raise training.iterations"),
            )
        if self.workers != "auto" and not 0 <= self.workers <= 1024:
            raise InvalidArgument(f"workers must be auto or a number from 0 to 1024, got {self.workers}", key="workers")
        if self.ahead > self.max_staleness:
            raise InvalidArgument(
                f"ahead must be at most max_staleness, {self.max_staleness} (got {self.ahead})",
                key="ahead",
                advice="raise max_staleness or lower ahead",
            )
        if self.ahead and self.workers == 0:
            raise InvalidArgument(
                "ahead samples in a thread, which cannot step environments in the trainer's process",
                key="workers",
                advice="set workers=1",
            )
        return self


class EngineSettings(Options):
    """The engine that samples responses; a name is short for ``{name: ...}``."""

    name: str = Field(
        "transformers", description=f"{', '.join(ENGINES.builtin)}, the name of an installed plugin, or module:Name"
    )
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="format of the sampler's weights and of the reference policy; auto: as training.dtype"
    )
    gpu_memory_utilization: float | None = Field(
        None, gt=0, lt=1, description="fraction of the GPU's memory, for an engine that allocates memory in advance"
    )
    sleep: bool = Field(True, description="free the engine's memory during updates; false if it has a separate device")
    options: SerializeAsAny[EngineOptions] = Field(EngineOptions(), description="options of this engine")

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: object) -> object:
        value = by_name(value)
        if isinstance(value, dict) and value.get("dtype") == "float16":
            require_known("float16")
        return value

    @field_validator("name")
    @classmethod
    def _require_known_name(cls, name: str) -> str:
        ENGINES.place(name)
        return name

    @field_validator("options", mode="before")
    @classmethod
    def _of_the_engine(cls, options: object, info: ValidationInfo) -> object:
        """Validate the options by the engine's own class, unless that has been done."""
        name = info.data.get("name")  # absent if it is wrong
        if name is not None and type(options) is EngineOptions:  # the default
            return engine_options(name)
        if name is not None and isinstance(options, dict):
            require_plain(options)
            return engine_options(name, options)
        return options

    @model_validator(mode="after")
    def _memory_that_is_used(self) -> EngineSettings:
        if self.gpu_memory_utilization is not None and not self.options.takes_memory:
            raise InvalidArgument(
                f"gpu_memory_utilization has no effect on engine {self.name}, which allocates what it needs",
                key="gpu_memory_utilization",
                advice="remove it",
            )
        return self
