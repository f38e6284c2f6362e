"""Which credit, and its options. Every option belongs to one credit; an unknown one is refused."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

Level = Literal["episode", "turn", "token"]


class Strict(BaseModel):
    """Settings that refuse unknown keys and cannot be changed."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Gagpo(Strict):
    """Grouped value proxy and GAE over turns, :func:`gagpo.credit.gagpo_advantage`."""

    name: Literal["gagpo"] = "gagpo"
    key: Literal["observation", "state", "history"] = "observation"
    gamma: float = Field(default=0.95, ge=0, le=1)
    lam: float = Field(default=0.8, ge=0, le=1)
    scope: Literal["task", "batch"] = "task"
    leave_one_out: bool = False
    bootstrap_truncated: bool = False
    proxy: Literal["return", "outcome"] = "return"
    norm: Literal["group", "batch", "state", "scale_only", "none"] = "group"
    trajectory_weight: float = Field(default=0.0, ge=0)


class Grpo(Strict):
    """Return against the group's mean and deviation, :func:`gagpo.credit.grpo_advantage`."""

    name: Literal["grpo"] = "grpo"
    reward: Literal["reward", "success", "sign"] = "reward"


class Gigpo(Strict):
    """Episode and state groups, :func:`gagpo.credit.gigpo_advantage`."""

    name: Literal["gigpo"] = "gigpo"
    key: Literal["observation", "state", "history"] = "observation"
    gamma: float = Field(default=0.95, ge=0, le=1)
    step_weight: float = Field(default=1.0, ge=0)
    norm: Literal["mean_std", "mean"] = "mean_std"
    statistics: Literal["episode", "turn"] = "episode"
    similarity: float | None = Field(default=None, gt=0, le=1)


def by_name(value: Any) -> Any:
    """``"grpo"`` is short for ``{"name": "grpo"}``."""
    return {"name": value} if isinstance(value, str) else value


CreditSettings = Annotated[
    Annotated[Gagpo | Grpo | Gigpo, Field(discriminator="name")],
    BeforeValidator(by_name),
]
LEVELS: dict[str, Level] = {"gagpo": "turn", "grpo": "episode", "gigpo": "turn"}
