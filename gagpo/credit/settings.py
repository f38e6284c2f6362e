"""Which credit, and its options. Every option belongs to one credit; an unknown one is refused."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

Level = Literal["episode", "turn", "token"]
StateKey = Literal["observation", "state", "history"]
Reward = Literal["sum", "success", "sign"]


class CreditCell(BaseModel):
    """Settings of one credit. ``level``: what shares one advantage; ``critic``: it needs a learned value."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    level: ClassVar[Level] = "episode"
    critic: ClassVar[bool] = False


class Gagpo(CreditCell):
    """Grouped value proxy and GAE over turns, :func:`gagpo.credit.gagpo_advantage`."""

    level: ClassVar[Level] = "turn"
    name: Literal["gagpo"] = "gagpo"
    key: StateKey = "observation"
    gamma: float = Field(default=0.95, ge=0, le=1)
    lam: float = Field(default=0.8, ge=0, le=1)
    scope: Literal["task", "batch"] = "task"
    leave_one_out: bool = False
    bootstrap_truncated: bool = False
    proxy: Literal["return", "outcome"] = "return"
    norm: Literal["group", "batch", "state", "scale_only", "none"] = "group"
    trajectory_weight: float = Field(default=0.0, ge=0)


class Grpo(CreditCell):
    """Return against the group's mean and deviation, :func:`gagpo.credit.grpo_advantage`.

    reward, here and below: an episode's number is the ``sum`` of its rewards less penalties, its ``success`` as 0/1, or
    the ``sign`` -1/+1 of its success.
    """

    name: Literal["grpo"] = "grpo"
    reward: Reward = "sum"


class DrGrpo(CreditCell):
    """Return less the group's mean, :func:`gagpo.credit.dr_grpo_advantage`."""

    name: Literal["dr_grpo"] = "dr_grpo"
    reward: Reward = "sum"


class Rloo(CreditCell):
    """Return less the mean of the others, :func:`gagpo.credit.rloo_advantage`."""

    name: Literal["rloo"] = "rloo"
    reward: Reward = "sum"


class ReinforcePlusPlus(CreditCell):
    """Token returns whitened over the batch, :func:`gagpo.credit.reinforce_plus_plus_advantage`."""

    level: ClassVar[Level] = "token"
    name: Literal["reinforce_plus_plus"] = "reinforce_plus_plus"
    gamma: float = Field(default=1.0, ge=0, le=1)


class ReinforceBaseline(CreditCell):
    """Return less the group's mean, whitened over the batch, :func:`gagpo.credit.reinforce_baseline_advantage`."""

    name: Literal["reinforce_baseline"] = "reinforce_baseline"
    reward: Reward = "sum"


class AgpoAdaptive(CreditCell):
    """Return over a chosen dispersion of the group, :func:`gagpo.credit.agpo_adaptive_advantage`."""

    name: Literal["agpo_adaptive"] = "agpo_adaptive"
    reward: Reward = "sum"
    dispersion: Literal["std", "mad", "iqr"] = "std"


class AgpoAsymmetric(CreditCell):
    """Variance-constrained credit of -1/+1 with a gated negative, :func:`gagpo.credit.agpo_asymmetric_advantage`."""

    name: Literal["agpo_asymmetric"] = "agpo_asymmetric"
    reward: Reward = "sign"
    delta: float = Field(default=1.0, gt=0)
    bonus: float = Field(default=-1.0, le=0)


class Gigpo(CreditCell):
    """Episode and state groups, :func:`gagpo.credit.gigpo_advantage`."""

    level: ClassVar[Level] = "turn"
    name: Literal["gigpo"] = "gigpo"
    key: StateKey = "observation"
    gamma: float = Field(default=0.95, ge=0, le=1)
    step_weight: float = Field(default=1.0, ge=0)
    norm: Literal["mean_std", "mean"] = "mean_std"
    statistics: Literal["episode", "turn"] = "episode"
    similarity: float | None = Field(default=None, gt=0, le=1)


class Hgpo(CreditCell):
    """A hierarchy of groups of ever longer common history, :func:`gagpo.credit.hgpo_advantage`."""

    level: ClassVar[Level] = "turn"
    name: Literal["hgpo"] = "hgpo"
    key: StateKey = "observation"
    gamma: float = Field(default=0.95, ge=0, le=1)
    depth: int = Field(default=2, ge=0)
    alpha: float = Field(default=1.0, ge=0)
    weight_offset: Literal[1, 2] = 1


class PpoToken(CreditCell):
    """GAE over response tokens with a critic, :func:`gagpo.credit.ppo_token_advantage`."""

    level: ClassVar[Level] = "token"
    critic: ClassVar[bool] = True
    name: Literal["ppo_token"] = "ppo_token"
    gamma: float = Field(default=1.0, ge=0, le=1)
    lam: float = Field(default=1.0, ge=0, le=1)
    whiten: bool = True


class PpoTurn(CreditCell):
    """GAE over turns with a critic, :func:`gagpo.credit.ppo_turn_advantage`."""

    level: ClassVar[Level] = "turn"
    critic: ClassVar[bool] = True
    name: Literal["ppo_turn"] = "ppo_turn"
    gamma: float = Field(default=0.99, ge=0, le=1)
    lam: float = Field(default=0.9, ge=0, le=1)
    whiten: bool = True


AnyCredit = (
    Gagpo
    | Grpo
    | DrGrpo
    | Rloo
    | ReinforcePlusPlus
    | ReinforceBaseline
    | AgpoAdaptive
    | AgpoAsymmetric
    | Gigpo
    | Hgpo
    | PpoToken
    | PpoTurn
)


def by_name(value: Any) -> Any:
    """``"grpo"`` is short for ``{"name": "grpo"}``."""
    return {"name": value} if isinstance(value, str) else value


CreditSettings = Annotated[Annotated[AnyCredit, Field(discriminator="name")], BeforeValidator(by_name)]
