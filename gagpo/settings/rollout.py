"""How episodes are collected and responses are sampled."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from gagpo.agents.engines.base import Sampling
from gagpo.agents.engines.ranks import require_one_gpu
from gagpo.agents.engines.registry import ENGINES, SERVERS
from gagpo.base.errors import InvalidArgument
from gagpo.base.options import Options, by_name
from gagpo.model.dtypes import require_known
from gagpo.settings.environment import Kwargs

MOST_EPISODES = 1_000_000
"""Maximum number of episodes of an iteration; with one short turn each they take some gigabytes of memory."""


class RolloutSettings(Options):
    """How episodes are collected: ``tasks`` x ``group_size`` episodes per iteration."""

    tasks: int = Field(16, ge=1, description="task groups per iteration")
    group_size: int = Field(8, ge=1, description="episodes per task group")
    temperature: float = Field(1.0, gt=0, description="sampling temperature")
    max_tokens: int = Field(512, ge=1, description="maximum number of tokens of a response")
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
                f"until the update; the maximum is {MOST_EPISODES:,}: lower group_size or tasks, and raise "
                "training.iterations"
            )
        if self.workers != "auto" and not 0 <= self.workers <= 1024:
            raise InvalidArgument(f"workers must be auto or a number from 0 to 1024, got {self.workers}")
        if self.ahead > self.max_staleness:
            raise InvalidArgument(
                f"ahead must be at most max_staleness, {self.max_staleness} (got {self.ahead}): raise max_staleness or "
                "lower ahead"
            )
        if self.ahead and self.workers == 0:
            raise InvalidArgument(
                "ahead samples in a thread, which cannot step environments in the trainer's process: set workers=1"
            )
        return self


class EngineSettings(Options):
    """The engine that samples responses; a name is short for ``{name: ...}``."""

    name: str = Field("transformers", description="transformers, vllm, the name of an installed plugin, or module:Name")
    dtype: Literal["float32", "bfloat16"] = Field(
        "float32", description="format of the sampler's weights and of the reference policy"
    )
    gpu_memory_utilization: float | None = Field(
        None, gt=0, lt=1, description="fraction of the GPU's memory, for an engine that allocates memory in advance"
    )
    sleep: bool = Field(True, description="free the engine's memory during updates; false if it has a separate device")
    options: Kwargs = Field({}, description="further options of the engine")

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: object) -> object:
        value = by_name(value)
        if isinstance(value, dict) and value.get("dtype") == "float16":
            require_known("float16")
        return value

    @model_validator(mode="after")
    def _known(self) -> EngineSettings:
        ENGINES.place(self.name)
        if self.name in SERVERS:
            require_one_gpu(self.options)
        return self

    def arguments(self) -> dict[str, Any]:
        """Keyword arguments for :func:`gagpo.agents.setup.make_engine`."""
        arguments: dict[str, Any] = {"dtype": self.dtype}
        if self.gpu_memory_utilization is not None:
            arguments["memory"] = self.gpu_memory_utilization
        return {**arguments, **self.options}
