"""The settings of a run: one YAML file, typed, with dotted overrides and errors that name the nearest valid key."""

from __future__ import annotations

import datetime
import difflib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, Field, ValidationError, model_validator

from gagpo import settings_keys
from gagpo.agents.engines.base import Sampling
from gagpo.agents.engines.registry import place_of
from gagpo.agents.precision import require_known
from gagpo.agents.prompts import STYLES
from gagpo.algorithms import Algorithm
from gagpo.cluster.settings import ClusterSettings
from gagpo.envs.errors import GagpoError, InvalidArgument
from gagpo.section import Section as _Section
from gagpo.supervised.sections import WarmStartSettings

LORA_RATE = 1e-5
"""The learning rate of an adapter unless it is set: ten times that of all weights."""


class SettingsError(GagpoError, ValueError):
    """Settings that cannot be used; the message names file, key and remedy."""


def _plain(value: Any, where: str = "") -> Any:
    """``value`` if JSON can hold it as it is: what it could not would change on its way to the run's config.yaml."""
    if isinstance(value, dict):
        for key, part in value.items():
            if not isinstance(key, str):
                raise ValueError(f"the key {key!r}{where} is not text; quote it")
            _plain(part, f" of {key}")
    elif isinstance(value, list):
        for part in value:
            _plain(part, where)
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"the value {value}{where} is not a finite number")
    elif not isinstance(value, str | int | float | None):
        raise ValueError(f"the value {value!s:.40}{where} is of type {type(value).__name__}; quote it to make it text")
    return value


Kwargs = Annotated[dict[Any, Any], AfterValidator(_plain)]
"""Plain values by name, as YAML and JSON both write them."""


class EnvironmentSettings(_Section):
    """Which environment, and with what arguments; ``kwargs`` are those of its constructor."""

    id: str = Field(description="a registered id, or module:Name-v0 of a file in the working directory")
    split: str = Field("train", description="the split that is trained on")
    kwargs: Kwargs = Field({}, description="arguments of the environment's constructor")


class ContextSettings(_Section):
    """What the model is shown. history: ``full``, or the number of earlier turns a window shows."""

    style: str = Field(
        "plain",
        description="how observations become messages: plain for small models, tags or whole for instruct models",
    )
    history: Literal["full"] | int = Field(
        "full", description="full, or the number of earlier turns that a window shows"
    )
    admissible: bool = Field(False, description="list the admissible actions in the prompt")
    template: dict[str, str | int | float | bool | datetime.date] = Field(
        {}, description="variables of the chat template; date (YYYY-MM-DD) stands for today's"
    )

    @model_validator(mode="after")
    def _known_style(self) -> ContextSettings:
        if self.style not in STYLES:
            raise InvalidArgument(f"unknown style {self.style!r}; choose one of {', '.join(STYLES)}")
        return self


class RolloutSettings(_Section):
    """How episodes are collected: ``tasks`` x ``samples`` episodes an iteration."""

    tasks: int = Field(16, ge=1, description="task groups of an iteration")
    samples: int = Field(8, ge=1, description="episodes of a group")
    temperature: float = Field(1.0, gt=0, description="that responses are sampled at")
    max_tokens: int = Field(512, ge=1, description="most tokens of a response")
    workers: int = Field(2, ge=0, le=1024, description="environment processes; 0 steps them in the trainer's own")
    concurrency: int = Field(256, ge=1, description="most episodes under way at once")
    lockstep: bool = Field(True, description="bit-for-bit repeatable batches; false for slow, uneven environments")
    ahead: int = Field(
        0,
        ge=0,
        le=64,
        description="batches sampled while an update runs; 0: only the newest weights sample, repeatably",
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
    def sampling(self) -> Sampling:
        return Sampling(self.temperature, self.max_tokens)

    @model_validator(mode="after")
    def _young_enough(self) -> RolloutSettings:
        if self.ahead > self.max_staleness:
            raise InvalidArgument(
                f"ahead={self.ahead} samples with weights that many updates old, which max_staleness="
                f"{self.max_staleness} refuses: raise max_staleness or lower ahead"
            )
        if self.ahead and not self.workers:
            raise InvalidArgument(
                "ahead samples in a thread, and workers=0 steps environments in whatever thread asks: set workers=1"
            )
        return self


class OptimizerSettings(_Section):
    """AdamW; the rate rises linearly over ``warmup`` iterations and then follows the schedule to the run's last one.

    Weights decay, gains of norms and biases do not.
    """

    name: Literal["adamw", "adamw8bit", "paged_adamw8bit"] = Field(
        "adamw", description="the 8-bit ones need bitsandbytes; paged moments leave a full GPU for the host's memory"
    )
    learning_rate: float = Field(1e-6, gt=0, description="the highest rate")
    weight_decay: float = Field(0.0, ge=0, description="AdamW's, of matrices only")
    betas: tuple[float, float] = Field((0.9, 0.999), description="AdamW's averages of gradient and square")
    max_grad_norm: float = Field(1.0, gt=0, description="gradients are clipped to this norm")
    warmup: int = Field(0, ge=0, description="iterations over which the rate rises")
    schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant", description="what the rate does after the warmup"
    )


class LoraSettings(_Section):
    """Train a low-rank adapter in place of the weights; the learning rate is then ten times the usual unless set."""

    rank: int = Field(32, ge=1, description="of the adapter's matrices")
    alpha: float = Field(32.0, gt=0, description="the adapter's share is scaled by alpha / rank")
    targets: str | list[str] = Field(
        "all-linear", description="all-linear (the output layer aside), or names of linear layers: [q_proj, v_proj]"
    )


class EngineSettings(_Section):
    """What samples the responses; a name alone is short for ``{name: ...}``."""

    name: str = Field(
        "transformers", description="transformers, vllm, vllm-server, an installed package's, or module:Name"
    )
    dtype: Literal["float32", "bfloat16"] = Field(
        "float32", description="what is sampled in, and what the reference policy is held in"
    )
    memory: float | None = Field(None, gt=0, lt=1, description="share of the device for an engine with its own memory")
    sleep: bool = Field(
        True, description="free the engine's memory during updates; false where it has a device or machine of its own"
    )
    compile: Literal["auto", "never"] = Field(
        "auto", description="auto: the transformers engine decodes in CUDA graphs on a GPU; never: kernel by kernel"
    )
    options: dict[str, Any] = Field({}, description="what else the engine takes")

    @model_validator(mode="before")
    @classmethod
    def _by_name(cls, value: Any) -> Any:
        if isinstance(value, str):
            value = {"name": value}
        if isinstance(value, dict) and value.get("dtype") == "float16":
            require_known("float16")
        return value

    @model_validator(mode="after")
    def _known(self) -> EngineSettings:
        place_of(self.name)
        return self

    def arguments(self) -> dict[str, Any]:
        """Keyword arguments for :func:`gagpo.agents.setup.make_engine`."""
        shared: dict[str, Any] = {} if self.memory is None else {"memory": self.memory}
        if self.compile != "auto":
            shared["compile"] = self.compile
        return {"dtype": self.dtype, **shared, **self.options}


class TrainingSettings(_Section):
    """minibatches: updates per epoch; microbatch_tokens: padded tokens of one forward pass."""

    iterations: int = Field(150, ge=0, description="of collecting and updating")
    turns: int | None = Field(None, ge=1, description="end with the iteration that reaches so many environment turns")
    epochs: int = Field(1, ge=1, description="passes over an iteration's rows")
    minibatches: int = Field(1, ge=1, description="optimiser steps of an epoch")
    microbatch_tokens: int = Field(
        16384, ge=1, description="padded tokens of one forward pass: memory and speed, never the result"
    )
    precision: Literal["float32", "bfloat16"] = Field(
        "float32", description="what forward and backward passes compute in; weights are float32"
    )
    max_skipped: int = Field(
        3, ge=1, description="so many steps in a row with a loss or gradient that is not finite end the run"
    )
    gradient_checkpointing: bool = Field(False, description="compute activations twice to save their memory")
    save_every: int = Field(10, ge=1, description="iterations between checkpoints")
    keep: int = Field(2, ge=1, description="last checkpoints kept")
    best: Literal["success_rate", "reward_mean"] | None = Field(
        "success_rate", description="also kept: the checkpoint with the highest of this in training; null for none"
    )
    best_over: int = Field(10, ge=1, description="iterations that training.best is the mean of")
    keep_episodes: int = Field(5, ge=0, description="every how many iterations the episodes are written; 0 never")


class RanksSettings(_Section):
    """Where several processes train one model; see docs/scale.md."""

    deadline: float = Field(60.0, ge=1, description="seconds without a sign of life after which a process is lost")
    patience: float = Field(
        3600.0, ge=1, description="seconds that processes wait for each other, or for a checkpoint to be written"
    )


class EvaluationSettings(_Section):
    """A fixed panel, every task ``tries`` times: before, every ``every`` iterations (0: never between) and after."""

    splits: list[str] = Field(["valid_unseen"], description="panels, each a whole split or a part of it")
    tries: int = Field(1, ge=1, description="how often each task is played")
    tasks: int | None = Field(None, ge=1, description="an evenly spaced part of the split; the whole split if absent")
    temperature: float = Field(0.4, ge=0, description="that responses are sampled at; 0 is greedy")
    every: int = Field(0, ge=0, description="iterations between evaluations; 0 for none between before and after")
    before: bool = Field(True, description="false where the same model was measured already")


class RunSettings(_Section):
    """Everything a run is made of."""

    name: str = Field(description="of the run and its folder")
    seed: int = Field(1, ge=0, description="of everything that is drawn")
    model: str = Field(description="a model folder, a hub name, or starter:NAME")
    revision: str | None = Field(
        None, description="branch, tag or commit of a hub model; a run goes on with the commit that it began with"
    )
    trust_remote_code: bool = Field(False, description="run the code that a hub model brings along; read it first")
    device: str = Field("cpu", description="cpu, cuda, cuda:1, ...")
    threads: int = Field(0, ge=0, le=1024, description="torch threads; 0 for one per core")
    processes: int = Field(
        1, ge=1, le=1024, description="on this machine, that train one model together; torchrun's number goes before it"
    )
    ranks: RanksSettings = RanksSettings()
    engine: EngineSettings = EngineSettings()
    environment: EnvironmentSettings
    context: ContextSettings = ContextSettings()
    rollout: RolloutSettings = RolloutSettings()
    invalid_penalty: float = Field(0.01, ge=0, description="what a turn without a valid action costs")
    algorithm: Algorithm
    optimizer: OptimizerSettings = OptimizerSettings()
    lora: LoraSettings | None = Field(None, description="train an adapter; absent: all weights")
    training: TrainingSettings = TrainingSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    cluster: ClusterSettings = ClusterSettings()
    trackers: list[str] = Field(["tensorboard"], description="where numbers go besides the run's folder; see docs")
    warm_start: WarmStartSettings | None = None

    @model_validator(mode="before")
    @classmethod
    def _precisions(cls, value: Any) -> Any:
        """Runs of earlier versions say ``dtype: float32``, which is what weights in training are now in any case."""
        if not isinstance(value, dict) or "dtype" not in value:
            return value
        if value["dtype"] != "float32":
            raise InvalidArgument(
                "dtype: weights in training are always float32, or small updates are rounded away; set "
                "training.precision=bfloat16 for what is computed in and engine.dtype=bfloat16 for what is sampled in"
            )
        return {key: other for key, other in value.items() if key != "dtype"}

    @model_validator(mode="after")
    def _fitting_correction(self) -> RunSettings:
        """Where sampler and trainer compute differently, ratios start from the trainer's own numbers unless said.

        Where the sampler's weights are older too, each token is weighted for it: the clip's decoupled objective (Hilton
        et al. 2021), whose trust region lies around the weights before the update and not around the sampler's.
        """
        same = self.engine.name == "transformers" and self.engine.dtype == self.training.precision == "float32"
        ahead = self.rollout.ahead > 0
        if (ahead or not same) and "correction" not in self.algorithm.model_fields_set:
            correction = type(self.algorithm.correction)(name="token" if ahead else "recompute")
            object.__setattr__(self, "algorithm", self.algorithm.model_copy(update={"correction": correction}))
        return self

    @model_validator(mode="after")
    def _controllers_that_can_wait(self) -> RunSettings:
        if self.rollout.ahead and self.algorithm.controllers.agpo:
            raise InvalidArgument(
                "controllers.agpo sets temperatures and clip radii from probes of the weights that are about to be "
                "updated, and rollout.ahead samples with older ones: set rollout.ahead=0"
            )
        return self

    @model_validator(mode="after")
    def _rate_of_an_adapter(self) -> RunSettings:
        if self.lora is not None and "learning_rate" not in self.optimizer.model_fields_set:
            optimizer = self.optimizer.model_copy(update={"learning_rate": LORA_RATE})
            object.__setattr__(self, "optimizer", optimizer)
        return self

    @model_validator(mode="after")
    def _safe_name(self) -> RunSettings:
        if not self.name or self.name.startswith(".") or any(c in self.name for c in "/\\\0"):
            raise InvalidArgument(f"a run's name is one plain folder name, got {self.name!r}")
        return self


SHIPPED = Path(__file__).parent / "configs"
"""The configs that come with the package."""


def shipped_configs() -> dict[str, Path]:
    """The configs that come with the package, by name."""
    return {path.stem: path for path in sorted(SHIPPED.glob("*.yaml"))}


def find_config(config: str | Path) -> Path:
    """The settings file of a path, or of the name of a shipped config (``alfworld-small``); else SettingsError."""
    path = Path(config)
    if path.is_file():
        return path
    known = shipped_configs()
    if str(config) in known:
        return known[str(config)]
    if path.is_dir() and (path / "config.yaml").is_file():
        raise SettingsError(f"{path} is a run folder; `gagpo train --resume {path}` continues it")
    near = difflib.get_close_matches(path.stem, known, n=1, cutoff=0.3)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise SettingsError(f"there is no settings file {path}{hint} (`gagpo configs` lists those that ship)")


def load(config: str | Path, overrides: Sequence[str] = ()) -> RunSettings:
    """Read a YAML file and apply ``section.key=value`` overrides (values are YAML too).

    config: a path, or the name of a shipped config. Raises :class:`SettingsError` for a file that is not YAML, an
    unknown key (naming the nearest) or a wrong type.
    """
    path = find_config(config)
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        first = str(error).replace("\n", " ")[:300] or type(error).__name__
        raise SettingsError(f"{path} is not a YAML file: {first}") from None
    if not isinstance(values, dict):
        raise SettingsError(f"{path} must hold keys and values, got {type(values).__name__}")
    for override in overrides:
        _apply(values, override)
    return parse(values, str(path))


def parse(values: dict[str, Any], where: str) -> RunSettings:
    """Typed settings from plain values; ``where`` names their origin in errors."""
    try:
        return RunSettings.model_validate(values)
    except ValidationError as error:
        raise SettingsError("; ".join(_explain(item, where) for item in error.errors()[:5])) from None


def dump(settings: RunSettings) -> str:
    """The resolved settings as YAML, readable by :func:`load`."""
    return yaml.safe_dump(settings.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def _apply(values: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise SettingsError(f"an override looks like section.key=value, got {override!r}")
    *path, last = key.split(".")
    place = values
    for depth, part in enumerate(path):
        inner = place.setdefault(part, {})
        if inner is None:
            inner = place[part] = {}
        if isinstance(inner, str) and path[0] == "algorithm":  # a mere name is short for a cell
            inner = place[part] = {"name" if depth else "preset": inner}
        if not isinstance(inner, dict):
            raise SettingsError(f"override {override!r}: {part!r} holds a single value, not a section")
        place = inner
    try:
        place[last] = yaml.safe_load(text)
    except yaml.YAMLError:
        raise SettingsError(f"override {override!r}: the value is not YAML; quote it") from None


def _explain(item: Any, where: str) -> str:
    location = [str(part) for part in item["loc"]]
    key = settings_keys.place(RunSettings, location)
    if item["type"] == "extra_forbidden":
        return f"{where}: unknown key {key!r}; the nearest valid key is {settings_keys.nearest(RunSettings, key)!r}"
    if item["type"] == "missing":
        return f"{where}: key {key!r} is missing"
    message = item["msg"].removeprefix("Value error, ")
    plain = isinstance(item["input"], str | int | float | None)
    return f"{where}: {key or 'settings'}: {message}" + (f", got {item['input']!r:.80}" if location and plain else "")
