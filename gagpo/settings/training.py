"""How the model is trained and measured: optimiser, adapter, updates, processes, cluster and evaluations."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator, model_validator

from gagpo.base.errors import InvalidArgument
from gagpo.base.options import Options


class OptimizerSettings(Options):
    """AdamW; the rate rises linearly over ``warmup`` iterations and then follows the schedule to the run's last one.

    Weights decay, gains of norms and biases do not.
    """

    name: Literal["adamw", "adamw8bit"] = Field(
        "adamw", description="adamw8bit: moments of one byte, by bitsandbytes, in one process"
    )
    learning_rate: float = Field(1e-6, gt=0, le=10, description="the highest rate")
    weight_decay: float = Field(0.0, ge=0, description="AdamW's, of matrices only")
    betas: tuple[float, float] = Field((0.9, 0.999), description="AdamW's averages of gradient and square")
    by_groups: bool = Field(
        True, description="multiply the rate by the root of the share of task groups that teach anything"
    )
    max_grad_norm: float = Field(1.0, gt=0, description="gradients are clipped to this norm")
    warmup: int = Field(0, ge=0, description="iterations over which the rate rises")
    schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant", description="what the rate does after the warmup"
    )

    @field_validator("betas")
    @classmethod
    def _averages(cls, betas: tuple[float, float]) -> tuple[float, float]:
        if not all(0 <= beta < 1 for beta in betas):
            raise InvalidArgument(f"each must lie in [0, 1), got {list(betas)}")
        return betas


class LoraSettings(Options):
    """Train a low-rank adapter in place of the weights; the learning rate is then ten times the usual unless set."""

    rank: int = Field(32, ge=1, le=16384, description="of the adapter's matrices")
    alpha: float = Field(32.0, gt=0, description="the adapter's share is scaled by alpha / rank")
    targets: str | list[str] = Field(
        "all-linear", description="all-linear (the output layer aside), or names of linear layers: [q_proj, v_proj]"
    )
    base: Literal["float32", "bfloat16", "4bit"] = Field(
        "float32",
        description="what the frozen matrices of linear layers are held in; with bfloat16 updates are those of "
        "float32, bit for bit; 4bit (bitsandbytes) rounds them",
    )


class TrainingSettings(Options):
    """minibatches: updates per epoch; microbatch_tokens: padded tokens of one forward pass."""

    iterations: int = Field(150, ge=0, description="of collecting and updating")
    turns: int | None = Field(None, ge=1, description="end with the iteration that reaches so many environment turns")
    epochs: int = Field(1, ge=1, description="passes over an iteration's rows")
    minibatches: int = Field(1, ge=1, description="optimiser steps of an epoch")
    microbatch_tokens: int = Field(
        16384, ge=1, description="padded tokens of one forward pass: memory and speed, never the result"
    )
    trust_region: float | None = Field(
        0.05,
        gt=0,
        description="nats per token that an iteration may move the policy; a longer step is shortened; null: no limit",
    )
    average: bool = Field(
        True, description="keep a moving average of the weights, measured at the end and named RUN@average"
    )
    precision: Literal["float32", "bfloat16"] = Field(
        "float32", description="what forward and backward passes compute in; weights are float32"
    )
    max_skipped: int = Field(
        3, ge=1, description="so many steps in a row with a loss or gradient that is not finite end the run"
    )
    gradient_checkpointing: bool = Field(False, description="compute activations twice to save their memory")
    offload: list[Literal["activations", "weights"]] = Field(
        [],
        description="what lies in the host's memory meanwhile: activations kept for gradient_checkpointing, and, of "
        "several processes, weights and moments, which step there",
    )
    save_every: int = Field(10, ge=1, description="iterations between checkpoints")
    keep: int = Field(2, ge=1, description="last checkpoints kept")
    best: Literal["success_rate", "reward_mean"] | None = Field(
        "success_rate", description="also kept: the checkpoint with the highest of this in training; null for none"
    )
    keep_episodes: int = Field(5, ge=0, description="every how many iterations the episodes are written; 0 never")

    @property
    def measures_average(self) -> bool:
        """Whether a run ends with a measurement of its averaged weights."""
        return self.average and self.iterations > 0

    @model_validator(mode="after")
    def _something_to_offload(self) -> TrainingSettings:
        if "activations" in self.offload and not self.gradient_checkpointing:
            raise InvalidArgument(
                "offload: [activations] moves what gradient checkpointing keeps, and gradient_checkpointing is false: "
                "set it to true"
            )
        return self


class RanksSettings(Options):
    """Where several processes train one model; see docs/scale.md."""

    deadline: float = Field(60.0, ge=1, description="seconds without a sign of life after which a process is lost")


class ClusterSettings(Options):
    """How a run is spread with ``gagpo train --ray``; nothing of it changes what is learned."""

    cpus: float = Field(1.0, ge=0, description="cores of each rank and vLLM server")
    restarts: int = Field(10, ge=0, description="how often the ranks may be restarted in an hour")
    start_deadline: float = Field(600.0, gt=0, description="seconds to find room in the cluster")


class EvaluationSettings(Options):
    """A fixed panel, every task ``tries`` times: before, every ``every`` iterations (0: never between) and after."""

    splits: list[str] = Field(["valid_unseen"], description="panels, each a whole split or a part of it")
    tries: int = Field(1, ge=1, description="how often each task is played")
    tasks: int | None = Field(None, ge=1, description="an evenly spaced part of the split; the whole split if absent")
    temperature: float = Field(0.4, ge=0, description="that responses are sampled at; 0 is greedy")
    every: int = Field(0, ge=0, description="iterations between evaluations; 0 for none between before and after")
    before: bool = Field(True, description="false where the same model was measured already")
