"""How the model is trained and measured: optimiser, adapter, updates, processes and evaluations."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from gagpo.base.errors import InvalidArgument
from gagpo.base.options import Options


class OptimizerSettings(Options):
    """AdamW; the rate rises linearly over ``warmup_iterations`` and then follows ``lr_scheduler``."""

    learning_rate: float = Field(1e-6, gt=0, le=10, description="the highest rate")
    weight_decay: float = Field(0.0, ge=0, description="weight decay of matrices; norms and biases have none")
    betas: tuple[float, float] = Field((0.9, 0.999), description="decay rates of AdamW's moments")
    scale_by_groups: bool = Field(
        True, description="multiply the rate by the square root of the fraction of task groups with an advantage"
    )
    max_grad_norm: float = Field(1.0, gt=0, description="gradients are clipped to this norm")
    warmup_iterations: int = Field(0, ge=0, description="iterations over which the rate rises")
    lr_scheduler: Literal["constant", "linear", "cosine"] = Field(
        "constant", description="schedule of the rate after the warmup"
    )

    @field_validator("betas")
    @classmethod
    def _averages(cls, betas: tuple[float, float]) -> tuple[float, float]:
        if not all(0 <= beta < 1 for beta in betas):
            raise InvalidArgument(f"each must be in [0, 1), got {list(betas)}", key="each")
        return betas


class LoraSettings(Options):
    """Train a low-rank adapter instead of the weights; its default learning rate is ten times that of the weights."""

    rank: int = Field(32, ge=1, le=16384, description="rank of the adapter's matrices")
    alpha: float = Field(32.0, gt=0, description="the adapter's output is scaled by alpha / rank")
    targets: str | list[str] = Field(
        "all-linear", description="all-linear (without the output layer), or names of linear layers: [q_proj, v_proj]"
    )
    base_dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto",
        description="format that frozen matrices of linear layers are stored in; auto: bfloat16 if training and "
        "sampling compute in it, with the same updates as float32",
    )


class TrainingSettings(Options):
    """The training loop and its checkpoints."""

    iterations: int = Field(150, ge=0, description="iterations of collecting and updating")
    max_turns: int | None = Field(
        None, ge=1, description="stop after the iteration that reaches this number of environment turns"
    )
    epochs: int = Field(1, ge=1, description="passes over an iteration's rows")
    minibatches: int = Field(1, ge=1, description="optimiser steps of an epoch")
    microbatch_tokens: int = Field(
        16384, ge=1, description="padded tokens of one forward pass; affects memory and speed, not results"
    )
    target_kl: float | None = Field(
        0.05,
        gt=0,
        description="KL of an iteration's update, nats per token, to which updates beyond 1.5 times as much are scaled "
        "down; null: no limit",
    )
    ema: bool = Field(
        True,
        description="keep a moving average of the weights, a fifth of the run behind, evaluated at the end: RUN@ema",
    )
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto",
        description="format of forward and backward passes; auto: what the machine computes fast when the run "
        "begins; weights are float32",
    )
    gradient_checkpointing: bool = Field(False, description="compute activations twice to save memory")
    offload: bool = Field(
        False,
        description="keep weights, gradients and optimiser states in host memory, and take optimiser steps on the CPU; "
        "needs several processes",
    )
    unsharded: Literal["auto", "least", "layers", "gradients", "all"] = Field(
        "auto",
        description="what a rank holds unsharded while it accumulates gradients: the layers it computes; the gradients "
        "too, which are reduced once a step; or all weights too, which are gathered once a step. Each machine has a "
        "copy of all shards, so that only gradients cross the network; least: layers, and shards over all machines. "
        "auto: the fastest that fits by the plan, chosen when the run begins",
    )
    save_every: int = Field(10, ge=1, description="iterations between checkpoints")
    max_checkpoints: int = Field(2, ge=1, description="number of latest checkpoints to keep")
    best_metric: Literal["success_rate", "reward_mean"] | None = Field(
        "success_rate",
        description="also keep the checkpoint with the highest value of this metric in training; null: none",
    )
    save_episodes_every: int = Field(
        5, ge=0, description="keep the episodes of the first, every n-th and the last iteration; 0: write none"
    )

    @property
    def measures_average(self) -> bool:
        """Whether a run ends with an evaluation of its moving average."""
        return self.ema and self.iterations > 0


class RanksSettings(Options):
    """Several processes that train one model; see docs/scale.md."""

    timeout: float = Field(60.0, ge=1, description="seconds without a heartbeat after which a process is lost")


class EvaluationSettings(Options):
    """Evaluation on fixed task sets before, during and after training."""

    splits: list[str] = Field(["valid_unseen"], description="splits to evaluate on before and after training")
    episodes_per_task: int = Field(1, ge=1, description="episodes of each task")
    tasks: int | None = Field(None, ge=1, description="evenly spaced tasks of the split; absent: all")
    temperature: float = Field(0.4, ge=0, description="sampling temperature; 0 is greedy")
    every: int = Field(
        0,
        ge=0,
        description="iterations between evaluations during training, on the validation split (`train_dev`, "
        "`validation`, `valid_seen`, `dev`) if the environment has one; 0: none",
    )
    before: bool = Field(True, description="evaluate before training")
