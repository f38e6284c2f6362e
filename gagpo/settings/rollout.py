"""How episodes are collected, and what samples their responses."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from gagpo.agents.engines.base import Sampling
from gagpo.agents.engines.ranks import require_one_gpu
from gagpo.agents.engines.registry import ENGINES
from gagpo.agents.precision import require_known
from gagpo.base.errors import InvalidArgument
from gagpo.base.options import Options, by_name
from gagpo.envs.pool.pool import WORKERS
from gagpo.settings.environment import Kwargs

MOST_EPISODES = 1_000_000
"""Of an iteration: with one short turn each, some gigabytes of memory before any is learned from."""


def require_few(tasks: int, samples: int) -> None:
    """InvalidArgument where an iteration has more than :data:`MOST_EPISODES`."""
    if (episodes := tasks * samples) > MOST_EPISODES:
        raise InvalidArgument(
            f"tasks={tasks:,} x samples={samples:,} are {episodes:,} episodes, all held in memory until the update; at "
            f"most {MOST_EPISODES:,} an iteration: lower samples or tasks, and raise training.iterations"
        )


class RolloutSettings(Options):
    """How episodes are collected: ``tasks`` x ``samples`` episodes an iteration."""

    tasks: int = Field(16, ge=1, description="task groups of an iteration")
    samples: int = Field(8, ge=1, description="episodes of a group")
    temperature: float = Field(1.0, gt=0, description="that responses are sampled at")
    max_tokens: int = Field(512, ge=1, description="most tokens of a response")
    workers: Literal["auto"] | int = Field(
        "auto",
        description="environment processes, at most 1024; 0 steps them in the trainer's own; auto: 0 for the suite's "
        "own environments that cannot hang, else 2",
    )
    concurrency: int = Field(256, ge=1, description="most episodes under way at once")
    lockstep: bool = Field(True, description="bit-for-bit repeatable batches; false for slow, uneven environments")
    ahead: int = Field(
        0,
        ge=0,
        le=64,
        description="batches sampled while an update runs, with lockstep repeatably; 0: only the newest weights sample",
    )
    max_staleness: int = Field(
        4,
        ge=1,
        description="with ahead: updates that an episode's first turn may lie behind; older ones are played again",
    )
    worker_memory: int | None = Field(
        4096, ge=1, description="MiB that an environment process may take beyond what all share; null: no limit"
    )
    step_deadline: float = Field(60.0, gt=0, description="seconds")
    reset_deadline: float = Field(300.0, gt=0, description="seconds")

    @property
    def processes(self) -> int | Literal["auto"]:
        """What a pool is told of ``workers``: a thread that samples ahead steps nothing itself."""
        return WORKERS if self.ahead and self.workers == "auto" else self.workers

    @property
    def lanes(self) -> int:
        """How many environments are stepped side by side, at most."""
        return WORKERS if self.workers == "auto" else max(1, self.workers)

    @property
    def sampling(self) -> Sampling:
        return Sampling(self.temperature, self.max_tokens)

    @model_validator(mode="after")
    def _few_enough(self) -> RolloutSettings:
        require_few(self.tasks, self.samples)
        return self

    @model_validator(mode="after")
    def _young_enough(self) -> RolloutSettings:
        if self.workers != "auto" and not 0 <= self.workers <= 1024:
            raise InvalidArgument(f"workers is auto, or a number from 0 to 1024, got {self.workers}")
        if self.ahead > self.max_staleness:
            raise InvalidArgument(
                f"ahead={self.ahead} samples with weights that many updates old, which max_staleness="
                f"{self.max_staleness} refuses: raise max_staleness or lower ahead"
            )
        if self.ahead and self.workers == 0:
            raise InvalidArgument(
                "ahead samples in a thread, and workers=0 steps environments in whatever thread asks: set workers=1"
            )
        return self


class EngineSettings(Options):
    """What samples the responses; a name alone is short for ``{name: ...}``."""

    name: str = Field(
        "transformers",
        description="transformers, vllm, vllm-server, an installed package's, or module:Name",
    )
    dtype: Literal["float32", "bfloat16"] = Field(
        "float32", description="what is sampled in, and what the reference policy is held in"
    )
    memory: float | None = Field(None, gt=0, lt=1, description="share of the device for an engine with its own memory")
    sleep: bool = Field(
        True, description="free the engine's memory during updates; false where it has a device or machine of its own"
    )
    options: Kwargs = Field({}, description="what else the engine takes")

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
        require_one_gpu(self.name, self.options)
        return self

    def arguments(self) -> dict[str, Any]:
        """Keyword arguments for :func:`gagpo.agents.setup.make_engine`."""
        memory = {} if self.memory is None else {"memory": self.memory}
        return {"dtype": self.dtype, **memory, **self.options}
