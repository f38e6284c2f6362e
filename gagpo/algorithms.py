"""The table of algorithms: each is one row, a choice of credit, ratio level, gate, aggregation and controllers."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from gagpo.controllers import ControllerSettings
from gagpo.credit import AnyCredit, CreditSettings, find
from gagpo.credit.gagpo import Gagpo
from gagpo.envs.errors import InvalidArgument
from gagpo.envs.nearest import hint
from gagpo.objectives.options import Cispo, Clip, Constant, Geometric, LogClip, ObjectiveSettings, Power
from gagpo.options import Options, by_name

CLIP = {"name": "clip", "low": 0.2, "high": 0.2}
KL = {"coefficient": 0.01, "estimator": "k3"}

NAMED = ("credit", "gate", "aggregation")
"""Cells that have a name, which stands for the whole cell where it is written alone."""

PRESETS: dict[str, dict[str, Any]] = {
    "gagpo": {"credit": "gagpo", "ratio": "action", "gate": CLIP, "aggregation": "action_mean", "kl": KL},
    "grpo": {"credit": "grpo", "ratio": "token", "gate": CLIP, "aggregation": "sequence_mean", "kl": KL},
    "dr_grpo": {
        "credit": "dr_grpo",
        "ratio": "token",
        "gate": CLIP,
        "aggregation": "constant",
    },
    "dapo": {
        "credit": "grpo",
        "ratio": "token",
        "gate": {"name": "clip", "low": 0.2, "high": 0.28, "dual": 10.0},
        "aggregation": "token_mean",
        "controllers": {"dynamic_sampling": {"rounds": 10}, "overlong": {}},
    },
    "gmpo": {
        "credit": "grpo",
        "ratio": "token",
        "gate": {"name": "log_clip", "low": 0.4, "high": 0.4},
        "aggregation": {"name": "geometric", "per": "sequence"},
    },
    "gspo": {
        "credit": "grpo",
        "ratio": "sequence",
        "gate": {"name": "clip", "low": 3e-4, "high": 4e-4},
        "aggregation": "sequence_mean",
    },
    "gspo_token": {
        "credit": "grpo",
        "ratio": "sequence",
        "ratio_gradient": "token",
        "gate": {"name": "clip", "low": 3e-4, "high": 4e-4},
        "aggregation": "sequence_mean",
    },
    "sapo": {
        "credit": "grpo",
        "ratio": "token",
        "gate": {"name": "sapo", "positive": 1.0, "negative": 1.05},
        "aggregation": "sequence_mean",
    },
    "cispo": {"credit": "grpo", "ratio": "token", "gate": {"name": "cispo", "high": 4.0}, "aggregation": "token_mean"},
    "apmpo": {
        "credit": {"name": "grpo", "reward": "success", "ddof": 0},
        "ratio": "token",
        "gate": CLIP,
        "aggregation": {"name": "power", "per": "sequence"},
        "kl": {"coefficient": 0.001},
        "controllers": {"apmpo": {}},
    },
    "agpo_adaptive": {
        "credit": {"name": "agpo_adaptive", "dispersion": "std"},
        "ratio": "token",
        "gate": CLIP,
        "aggregation": "sequence_mean",
        "kl": {"coefficient": 0.03},
        "controllers": {"agpo": {}},
    },
    "agpo_asymmetric": {"credit": "agpo_asymmetric", "ratio": "token", "gate": CLIP, "aggregation": "sequence_mean"},
    "rloo": {"credit": "rloo", "ratio": "token", "gate": CLIP, "aggregation": "token_mean", "kl": KL},
    "reinforce_plus_plus": {
        "credit": "reinforce_plus_plus",
        "ratio": "token",
        "gate": CLIP,
        "aggregation": "token_mean",
        "kl": KL,
    },
    "reinforce_baseline": {
        "credit": "reinforce_baseline",
        "ratio": "token",
        "gate": CLIP,
        "aggregation": "token_mean",
        "kl": KL,
    },
    "gigpo": {
        "credit": "gigpo",
        "ratio": "token",
        "gate": {**CLIP, "dual": 3.0},
        "aggregation": "token_mean",
        "kl": KL,
        "entropy": 0.001,
    },
    "hgpo": {"credit": "hgpo", "ratio": "token", "gate": CLIP, "aggregation": "token_mean", "kl": KL},
    "graphgpo": {"credit": "graphgpo", "ratio": "token", "gate": CLIP, "aggregation": "token_mean", "kl": KL},
    "milegpo": {"credit": "milegpo", "ratio": "token", "gate": CLIP, "aggregation": "token_mean", "kl": KL},
    "ppo_token": {
        "credit": "ppo_token",
        "ratio": "token",
        "gate": CLIP,
        "aggregation": "token_mean",
        "kl": KL,
        "critic": {},
    },
    "ppo_turn": {
        "credit": "ppo_turn",
        "ratio": "action",
        "gate": CLIP,
        "aggregation": "token_mean",
        "kl": KL,
        "critic": {},
    },
}
"""One row per algorithm; cells that are not named have their defaults."""


class CriticSettings(Options):
    """The learned value of PPO.

    head: a linear head on the policy's own backbone (``shared``) or on one of its own (``separate``).
    learning_rate: of the head, and of its backbone where that is separate. clip: how far a value may move from the one
    it had when the batch was sampled, None for no clip. coefficient: of the value loss beside the policy loss.
    """

    head: Literal["shared", "separate"] = "shared"
    learning_rate: float = Field(default=1e-5, gt=0)
    clip: float | None = Field(default=0.2, gt=0)
    coefficient: float = Field(default=0.5, gt=0)


class Algorithm(ObjectiveSettings):
    """One algorithm: the cells of its row, any of which may be set apart from the preset's.

    Written as a name (``"sapo"``), as a preset with cells changed (``{"preset": "gagpo", "gate": "sapo"}``), or as
    cells alone. A combination that cannot work is refused with the reason.

    >>> Algorithm.model_validate({"preset": "gagpo", "credit": {"lam": 0.5}}).credit.lam
    0.5
    """

    preset: str = ""
    credit: AnyCredit = Field(default_factory=Gagpo)
    controllers: ControllerSettings = ControllerSettings()
    critic: CriticSettings | None = None

    def resolved(self, max_tokens: int) -> Algorithm:
        """The algorithm with the lengths that follow the response limit put in, where they are not set.

        Those are ``aggregation.length`` of a constant and ``limit`` and ``buffer`` of ``controllers.overlong``. The
        trainer calls this once with ``rollout.max_tokens``.
        """
        changed: dict[str, Any] = {}
        if isinstance(self.aggregation, Constant) and self.aggregation.length is None:
            changed["aggregation"] = Constant(length=max_tokens)
        if self.controllers.overlong:
            overlong = self.controllers.overlong.resolved(max_tokens)
            changed["controllers"] = self.controllers.model_copy(update={"overlong": overlong})
        return self.model_copy(update=changed)

    @model_validator(mode="before")
    @classmethod
    def _from_preset(cls, value: Any) -> Any:
        if isinstance(value, str):
            value = {"preset": value}
        if not isinstance(value, Mapping) or not value.get("preset"):
            return value
        return _with_fitting_critic(merge(row(str(value["preset"])), value), value)

    @model_validator(mode="after")
    def _possible(self) -> Algorithm:
        for reason in impossibilities(self):
            raise InvalidArgument(reason)
        return self


def impossibilities(algorithm: Algorithm) -> list[str]:
    """Why the cells do not go together; empty where they do."""
    credit, gate, aggregation = algorithm.credit, algorithm.gate, algorithm.aggregation
    reasons = []
    if isinstance(aggregation, Geometric | Power):
        if isinstance(gate, Cispo):
            reasons.append(
                f"gate cispo has the value weight * log-probability, which is negative: no {aggregation.name} mean of "
                "it exists; use token_mean, sequence_mean, action_mean or constant"
            )
        if aggregation.per == "sequence" and credit.level != "episode":
            reasons.append(
                f"a {aggregation.name} mean over a sequence needs one advantage for all of it, and credit "
                f"{credit.name} gives each {credit.level} its own: set aggregation.per=action"
            )
    if algorithm.ratio == "token" and algorithm.ratio_pool != "mean":
        reasons.append("ratio_pool says how tokens make one ratio: set ratio=action or ratio=sequence")
    if algorithm.ratio_gradient == "token" and (algorithm.ratio == "token" or isinstance(gate, Cispo)):
        reasons.append(
            "ratio_gradient=token needs ratio=action or ratio=sequence, and a gate whose ratio has a gradient"
        )
    return reasons + _controller_impossibilities(algorithm) + _critic_impossibilities(credit, algorithm.critic)


def _controller_impossibilities(algorithm: Algorithm) -> list[str]:
    apmpo, agpo = algorithm.controllers.apmpo, algorithm.controllers.agpo
    reasons = []
    if apmpo and apmpo.exponent != "fixed" and not isinstance(algorithm.aggregation, Power):
        reasons.append(
            "controllers.apmpo adapts the exponent of a power mean: set aggregation=power, or "
            "controllers.apmpo.exponent=fixed"
        )
    if apmpo and apmpo.symmetric and apmpo.radius == "fixed":
        reasons.append("controllers.apmpo.symmetric follows an adaptive radius, and controllers.apmpo.radius is fixed")
    adapts_radius = agpo or (apmpo and apmpo.radius != "fixed")
    if adapts_radius and not isinstance(algorithm.gate, Clip | LogClip | Cispo):
        reasons.append(f"a controller adapts the clip radius, and gate {algorithm.gate.name} has none: use gate=clip")
    if agpo and apmpo and apmpo.radius != "fixed":
        reasons.append("controllers.agpo and controllers.apmpo both set the clip radius: keep one of them")
    return reasons


def _critic_impossibilities(credit: CreditSettings, critic: CriticSettings | None) -> list[str]:
    if credit.critic and critic is None:
        return [f"credit {credit.name} needs a learned value: set critic={{}} for its defaults"]
    if critic is not None and not credit.critic:
        return [f"credit {credit.name} has no use for a critic: leave critic out, or use ppo_token or ppo_turn"]
    return []


def row(name: str) -> dict[str, Any]:
    """The preset's cells; ValueError names the nearest presets when there is none of that name."""
    if name in PRESETS:
        return PRESETS[name]
    raise InvalidArgument(f"there is no algorithm {name!r}; {hint(name, PRESETS)}")


def load(name: str, changes: Mapping[str, Any] | None = None) -> Algorithm:
    """The preset ``name`` with cells changed; ValueError says in one line what is wrong.

    >>> load("gigpo", {"gate": "sapo"}).gate.positive
    1.0
    """
    try:
        return Algorithm.model_validate({**(changes or {}), "preset": name})
    except ValidationError as error:
        raise InvalidArgument(explain(error)) from None


def explain(error: ValidationError) -> str:
    """What is wrong with an algorithm, in one line."""
    lines = []
    for problem in error.errors(include_url=False):
        place = ".".join(str(part) for part in problem["loc"])
        message = problem["msg"].removeprefix("Value error, ")
        lines.append(f"algorithm.{place}: {message}" if place else message)
    return "; ".join(lines)


def merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` with ``changes`` laid over it, cell by cell; a cell that changes its name starts from its defaults."""
    merged = dict(base)
    for key, change in changes.items():
        old, new = merged.get(key), change
        if key in NAMED:
            old, new = by_name(old), by_name(new)
        if (
            isinstance(old, Mapping)
            and isinstance(new, Mapping)
            and new.get("name", old.get("name")) == old.get("name")
        ):
            change = merge(old, new)
        merged[key] = change
    return merged


def _with_fitting_critic(cells: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A preset's critic comes and goes with its credit, unless the user speaks of it."""
    credit = by_name(cells.get("credit"))
    name = credit.get("name") if isinstance(credit, Mapping) else None
    if "critic" not in changes and name is not None:
        cells.pop("critic", None)
        with contextlib.suppress(ValueError):  # an unknown credit is refused where it is read
            if find(str(name)).critic:
                cells["critic"] = {}
    return cells
