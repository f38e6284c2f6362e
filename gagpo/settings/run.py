"""All settings of a run, and which of them exclude each other."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field, field_validator, model_validator

from gagpo.algorithms import Algorithm
from gagpo.base.errors import GagpoError, InvalidArgument
from gagpo.base.nearest import hint
from gagpo.base.options import Options
from gagpo.envs.tasks import split_task
from gagpo.settings.environment import ContextSettings, EnvironmentRow, EnvironmentSettings, RunEnvironment, fault_of
from gagpo.settings.rollout import EngineSettings, RolloutSettings
from gagpo.settings.sft import SftSettings
from gagpo.settings.training import EvaluationSettings, LoraSettings, OptimizerSettings, RanksSettings, TrainingSettings
from gagpo.trackers import TRACKERS

DEVICES = ("cpu", "cuda", "mps", "xpu", "hpu", "npu")
"""Devices of torch that hold numbers, unlike ``meta``. A run checks at its start whether the machine has the device."""


class SettingsError(GagpoError, ValueError):
    """Settings that cannot be used; the message names file, key and remedy."""


class RunSettings(Options):
    """All settings of a run, as its config gives them; :func:`gagpo.settings.resolve` fills what is left open."""

    name: str = Field(description="name of the run and its folder")
    seed: int = Field(1, ge=0, lt=2**32, description="seed of all random choices")
    model: str = Field(description="a model folder, a hub name, or starter:NAME")
    revision: str | None = Field(
        None, description="branch, tag or commit of a hub model; a resumed run keeps its commit"
    )
    trust_remote_code: bool = Field(False, description="run the code of a hub model; read it first")
    device: str = Field("cpu", description="cpu, cuda, mps and others, or one of several GPUs: cuda:1")
    threads: int = Field(0, ge=0, le=1024, description="torch threads; 0 for one per core")
    processes: int = Field(
        1,
        ge=1,
        le=1024,
        description="processes on this machine that train together; the number of torchrun takes precedence",
    )
    ranks: RanksSettings = RanksSettings()
    engine: EngineSettings = EngineSettings()
    environment: EnvironmentSettings | None = None
    environments: list[EnvironmentRow] = Field(
        [], max_length=64, description="several environments to train on together, instead of `environment`"
    )
    context: ContextSettings = ContextSettings()
    rollout: RolloutSettings = RolloutSettings()
    reward: Literal["environment", "success"] = Field(
        "environment", description="the environment's rewards, or success: 1 for a success and 0 otherwise"
    )
    invalid_action_penalty: float = Field(
        0.01, ge=0, description="subtracted from the reward of a turn without a valid action"
    )
    algorithm: Algorithm
    optimizer: OptimizerSettings = OptimizerSettings()
    lora: LoraSettings | None = Field(None, description="train an adapter; absent: all weights")
    training: TrainingSettings = TrainingSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    trackers: list[str] = Field(["tensorboard"], description="where metrics are logged in addition to the run's folder")
    sft: SftSettings | None = None

    @model_validator(mode="after")
    def _require_environments(self) -> RunSettings:
        if (self.environment is None) == (not self.environments):
            fault = "is missing" if self.environment is None else "and key 'environments' are both given"
            raise InvalidArgument(
                f"key 'environment' {fault}",
                key="environment",
                advice="give one environment there, or several in environments",
            )
        if fault := fault_of(self.environments):
            raise InvalidArgument(f"environments: {fault}", key="environments")
        return self

    @model_validator(mode="after")
    def _require_controllers_for_single_groups(self) -> RunSettings:
        if self.rollout.ahead and self.algorithm.controllers.variance_filter:
            raise InvalidArgument(
                (
                    "controllers.variance_filter compares the groups of a batch, and rollout.ahead has one "
                    "group at a time"
                ),
                key="rollout.ahead",
                advice="set rollout.ahead=0, or use dynamic_sampling",
            )
        if self.rollout.ahead and self.algorithm.controllers.agpo:
            raise InvalidArgument(
                (
                    "controllers.agpo sets temperatures and clip radii from probes with the newest weights, "
                    "and rollout.ahead samples with older ones"
                ),
                key="rollout.ahead",
                advice="set rollout.ahead=0",
            )
        return self

    @model_validator(mode="after")
    def _require_buffer_within_response(self) -> RunSettings:
        overlong = self.algorithm.controllers.overlong
        shortest = min(env.max_tokens for env in self.all_environments)
        if overlong is not None and overlong.buffer is not None and overlong.buffer > shortest:
            raise InvalidArgument(
                (
                    f"controllers.overlong.buffer must be at most the response limit, {shortest} tokens (got "
                    f"{overlong.buffer})"
                ),
                key="controllers.overlong.buffer",
                advice="lower it, or raise rollout.max_tokens",
            )
        return self

    @field_validator("name")
    @classmethod
    def _safe_name(cls, name: str) -> str:
        is_plain = name and not name.startswith(".") and not any(letter in name for letter in "/\\\0")
        if not is_plain or len(name.encode()) > 200:
            raise InvalidArgument(f"name must be one plain folder name, got {name!r:.80}", key="name")
        return name

    @field_validator("device")
    @classmethod
    def _known_device(cls, device: str) -> str:
        device_type, colon, number = device.partition(":")
        if device_type not in DEVICES or (colon and not re.fullmatch("[0-9]{1,3}", number)):
            raise InvalidArgument(
                f"device must be one of {', '.join(DEVICES)}, or such as cuda:1, got {device!r:.80}", key="device"
            )
        return device

    @field_validator("trackers", mode="before")
    @classmethod
    def _one_tracker(cls, trackers: object) -> object:
        """Read ``trackers=wandb`` as a list of one."""
        return [trackers] if isinstance(trackers, str) else trackers

    @field_validator("trackers")
    @classmethod
    def _known_trackers(cls, trackers: list[str]) -> list[str]:
        for name in trackers:
            TRACKERS.place(name)
        return trackers

    # The environments -------------------------------------------------------------------------------------------------

    @property
    def all_environments(self) -> list[RunEnvironment]:
        """The environments of the run, with their resolved settings."""
        limit = self.rollout.max_tokens
        if self.environment is not None:
            return [RunEnvironment("", 1.0, self.environment, self.context, limit, self.evaluation)]
        return [
            RunEnvironment(
                row.name,
                row.weight,
                EnvironmentSettings.model_construct(id=row.id, split=row.split, kwargs=row.kwargs),
                self.context.model_copy(update=row.context),
                limit if row.max_tokens is None else row.max_tokens,
                self.evaluation.model_copy(update=row.evaluation),
            )
            for row in self.environments
        ]

    @property
    def panels(self) -> list[str]:
        """The names of all task sets: a split, or NAME.SPLIT where there are several environments."""
        return [name for env in self.all_environments for name in env.panels]

    @property
    def longest_response(self) -> int:
        """Maximum number of tokens of a response in any environment."""
        return max(env.max_tokens for env in self.all_environments)

    @property
    def only_environment(self) -> RunEnvironment:
        """The single environment of the run; SettingsError if there are several."""
        envs = self.all_environments
        if len(envs) > 1:
            names = ", ".join(env.name for env in envs)
            raise SettingsError(
                f"run {self.name!r} has several environments ({names})", key="environments", advice="name one"
            )
        return envs[0]

    def environment_of(self, task: str) -> RunEnvironment:
        """The environment of a task, by its name within the run."""
        return self.environment_named(split_task(task)[0] if self.environments else "")

    def environment_named(self, name: str) -> RunEnvironment:
        """The environment called ``name``; SettingsError if there is none."""
        envs = {env.name: env for env in self.all_environments}
        if name not in envs:
            raise SettingsError(
                f"run {self.name!r} has no environment {name!r:.60}", advice=hint(name, filter(None, envs))
            )
        return envs[name]

    def alone(self, env: RunEnvironment) -> RunSettings:
        """The settings of a run with ``env`` as its only environment."""
        if not self.environments:
            return self
        changes: dict[str, object] = {name: getattr(env, name) for name in ("environment", "context", "evaluation")}
        changes["environments"] = []
        if env.max_tokens != self.rollout.max_tokens:  # otherwise it stays unset, and the value derived by SFT applies
            changes["rollout"] = self.rollout.model_copy(update={"max_tokens": env.max_tokens})
        return self.model_copy(update=changes)
