"""The table of algorithms: each combines a credit, a ratio level, a gate, an aggregation and controllers."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from pydantic import Field, ValidationError, model_validator

from gagpo.base import renamed
from gagpo.base.errors import InvalidArgument
from gagpo.base.nearest import hint
from gagpo.base.options import Options, by_name, faults, joined
from gagpo.controllers import ControllerSettings
from gagpo.credit import CREDITS, AnyCredit, CreditSettings
from gagpo.credit.gagpo import Gagpo
from gagpo.objectives.options import (
    Cispo,
    Clip,
    Constant,
    Dppo,
    Geometric,
    Likelihood,
    LogClip,
    ObjectiveSettings,
    Power,
)

Cells = dict[str, Any]
"""An algorithm as plain data, as in YAML."""

CLIP = {"name": "clip", "low": 0.2, "high": 0.2}
SEQUENCE_CLIP = {"name": "clip", "low": 3e-4, "high": 4e-4}
KL = {"coefficient": 0.01}

NAMED = ("credit", "gate", "aggregation")
"""Cells that may be written as a name alone."""


def _row(credit: str | Cells, ratio: str, gate: Cells, aggregation: str | Cells, **cells: float | str | Cells) -> Cells:
    return {"credit": credit, "ratio": ratio, "gate": gate, "aggregation": aggregation, **cells}


PRESETS: dict[str, Cells] = {
    "gagpo": _row("gagpo", "action", CLIP, "action_mean", kl=KL),
    "grpo": _row("grpo", "token", CLIP, "sequence_mean", kl=KL),
    "dr_grpo": _row("dr_grpo", "token", CLIP, "constant"),
    "dapo": _row(
        "grpo",
        "token",
        {**CLIP, "high": 0.28, "dual": 10.0},
        "token_mean",
        controllers={"dynamic_sampling": {"rounds": 10}, "overlong": {}},
    ),
    "gmpo": _row(
        "grpo", "token", {"name": "log_clip", "low": 0.4, "high": 0.4}, {"name": "geometric", "per": "sequence"}
    ),
    "gspo": _row("grpo", "sequence", SEQUENCE_CLIP, "sequence_mean"),
    "gspo_token": _row("grpo", "sequence", SEQUENCE_CLIP, "sequence_mean", ratio_gradient="token"),
    "sapo": _row("grpo", "token", {"name": "sapo", "positive": 1.0, "negative": 1.05}, "sequence_mean"),
    "cispo": _row("grpo", "token", {"name": "cispo", "high": 4.0}, "token_mean"),
    "dppo": _row("dr_grpo", "token", {"name": "dppo"}, "constant"),
    "apmpo": _row(
        {"name": "grpo", "reward": "success", "ddof": 0},
        "token",
        CLIP,
        {"name": "power", "per": "sequence"},
        kl={"coefficient": 0.001},
        controllers={"apmpo": {}},
    ),
    "agpo_adaptive": _row(
        "agpo_adaptive", "token", CLIP, "sequence_mean", kl={"coefficient": 0.03}, controllers={"agpo": {}}
    ),
    "agpo_asymmetric": _row("agpo_asymmetric", "token", CLIP, "sequence_mean"),
    "rloo": _row("rloo", "token", CLIP, "token_mean", kl=KL),
    "rejection_sampling": _row("rejection_sampling", "token", {"name": "likelihood"}, "token_mean"),
    "maxrl": _row("maxrl", "token", CLIP, "token_mean", kl=KL),
    "reinforce_plus_plus": _row("reinforce_plus_plus", "token", CLIP, "token_mean", kl=KL),
    "reinforce_plus_plus_baseline": _row("reinforce_plus_plus_baseline", "token", CLIP, "token_mean", kl=KL),
    "gigpo": _row("gigpo", "token", {**CLIP, "dual": 3.0}, "token_mean", kl=KL, entropy=0.001),
    "sampo": _row("gigpo", "sequence", SEQUENCE_CLIP, "token_mean", controllers={"dynamic_sampling": {}}),
    "g2po": _row("g2po", "token", CLIP, "token_mean", kl=KL),
    "empg": _row("empg", "token", CLIP, "token_mean", kl=KL),
    "optimal_token_baseline": _row("optimal_token_baseline", "token", CLIP, "token_mean"),
    "hgpo": _row("hgpo", "token", CLIP, "token_mean", kl=KL),
    "graphgpo": _row("graphgpo", "token", CLIP, "token_mean", kl=KL),
    "milegpo": _row("milegpo", "token", CLIP, "token_mean", kl=KL),
    "graph_value": _row(
        {"name": "gagpo", "state_key": "auto", "proxy": "graph", "lam": 0.0}, "action", CLIP, "action_mean", kl=KL
    ),
    "graph_macro": _row(
        {"name": "gagpo", "state_key": "auto", "proxy": "graph", "lam": 0.0, "macro_actions": True},
        "action",
        CLIP,
        "action_mean",
        kl=KL,
    ),
    "graph_sum": _row("weighted_sum", "action", CLIP, "action_mean", kl=KL),
    "ppo": _row("ppo", "token", CLIP, "token_mean", kl=KL, critic={}),
    "ppo_turn": _row("ppo_turn", "action", CLIP, "token_mean", kl=KL, critic={}),
    "starpo_s": _row(
        "ppo", "token", {**CLIP, "high": 0.28}, "token_mean", controllers={"variance_filter": {}}, critic={}
    ),
}
"""The algorithms; other cells have their defaults."""


class CriticSettings(Options):
    """The learned value of PPO.

    learning_rate: of the head.
    clip: most change of a value since the batch was sampled; None for no clip.
    coefficient: of the value loss.
    """

    learning_rate: float = Field(default=1e-5, gt=0)
    clip: float | None = Field(default=0.2, gt=0)
    coefficient: float = Field(default=0.5, gt=0)


class Algorithm(ObjectiveSettings):
    """An algorithm: a preset's name, a preset with changed cells (``{"preset": "gagpo", "gate": "sapo"}``), or cells.

    Invalid combinations are rejected with a reason.

    >>> Algorithm.model_validate({"preset": "gagpo", "credit": {"lam": 0.5}}).credit.lam
    0.5
    """

    preset: str = ""
    credit: AnyCredit = Field(default_factory=Gagpo)
    controllers: ControllerSettings = ControllerSettings()
    critic: CriticSettings | None = None

    def resolved(self, max_tokens: int) -> Algorithm:
        """Set ``aggregation.length`` of a constant, where it is not set, to the response limit."""
        if isinstance(self.aggregation, Constant) and self.aggregation.length is None:
            return self.model_copy(update={"aggregation": Constant(length=max_tokens)})
        return self

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
    """The reasons why the cells cannot be combined."""
    credit = algorithm.credit
    gate = algorithm.gate
    aggregation = algorithm.aggregation
    reasons = []
    if isinstance(aggregation, Geometric | Power):
        if isinstance(gate, Cispo | Dppo | Likelihood):
            reasons.append(
                f"aggregation {aggregation.name} does not support gate {gate.name}, whose values are negative: use "
                "token_mean, sequence_mean, action_mean or constant"
            )
        if aggregation.per == "sequence" and credit.level != "episode":
            reasons.append(
                f"a {aggregation.name} mean over a sequence requires one advantage per sequence, and credit "
                f"{credit.name} has one per {credit.level}: set aggregation.per=action"
            )
    if algorithm.ratio == "token" and algorithm.ratio_pool != "mean":
        reasons.append(
            "ratio_pool=sum pools the ratios of an action's or sequence's tokens: set ratio=action or sequence"
        )
    if algorithm.ratio_gradient == "token" and (
        algorithm.ratio == "token" or isinstance(gate, Cispo | Dppo | Likelihood)
    ):
        reasons.append("ratio_gradient=token requires ratio=action or ratio=sequence, and a gate with a ratio gradient")
    return reasons + _controller_impossibilities(algorithm) + _critic_impossibilities(credit, algorithm.critic)


def _controller_impossibilities(algorithm: Algorithm) -> list[str]:
    apmpo, agpo = algorithm.controllers.apmpo, algorithm.controllers.agpo
    reasons = []
    if apmpo and apmpo.exponent != "fixed" and not isinstance(algorithm.aggregation, Power):
        reasons.append(
            "controllers.apmpo adapts the exponent of a power mean: set aggregation=power, or "
            "controllers.apmpo.exponent=fixed"
        )
    if algorithm.controllers.dynamic_sampling and algorithm.controllers.variance_filter:
        reasons.append("controllers.dynamic_sampling and controllers.variance_filter exclude each other: keep one")
    radius_of = {
        "apmpo": apmpo is not None and apmpo.radius != "fixed",
        "agpo": agpo is not None and agpo.radius is not None,
    }
    fixed = {"apmpo": "controllers.apmpo.radius=fixed", "agpo": "controllers.agpo.radius=null"}
    for name in [name for name, adapts in radius_of.items() if adapts]:
        if not isinstance(algorithm.gate, Clip | LogClip | Cispo):
            reasons.append(
                f"controllers.{name} adapts the clip radius, which gate {algorithm.gate.name} lacks: set gate=clip, or "
                f"{fixed[name]}"
            )
    if all(radius_of.values()):
        reasons.append(
            f"controllers.agpo and controllers.apmpo both set the clip radius: keep one, or set {fixed['apmpo']} or "
            f"{fixed['agpo']}"
        )
    return reasons


def _critic_impossibilities(credit: CreditSettings, critic: CriticSettings | None) -> list[str]:
    if credit.critic and critic is None:
        return [f"credit {credit.name} requires a critic: set critic={{}} for its defaults"]
    if critic is not None and not credit.critic:
        return [f"credit {credit.name} does not use a critic: remove critic, or use ppo or ppo_turn"]
    return []


def row(name: str) -> Cells:
    """The cells of a preset; InvalidArgument suggests the nearest names."""
    if name in PRESETS:
        return PRESETS[name]
    if reason := renamed.replacement(renamed.PRESETS, name, "algorithm"):
        raise InvalidArgument(reason)
    raise InvalidArgument(f"there is no algorithm {name!r}", advice=hint(name, PRESETS))


def load(name: str, changes: Mapping[str, object] | None = None) -> Algorithm:
    """The preset ``name`` with changed cells; InvalidArgument says in one line what is wrong.

    >>> load("gigpo", {"gate": "sapo"}).gate.positive
    1.0
    """
    try:
        return Algorithm.model_validate({**(changes or {}), "preset": name})
    except ValidationError as error:
        raise joined(faults(error, Algorithm.model_fields, prefix="algorithm.")) from None


def merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> Cells:
    """Merge ``changes`` into ``base`` by cell; a cell whose name changes starts from its defaults."""
    merged = dict(base)
    for key, change in changes.items():
        old = merged.get(key)
        new = change
        if key in NAMED:
            old = by_name(old)
            new = by_name(new)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            same_kind = new.get("name", old.get("name")) == old.get("name")
            change = merge(old, new) if same_kind else change
        merged[key] = change
    return merged


def _with_fitting_critic(cells: Cells, changes: Mapping[str, object]) -> Cells:
    """Add or remove the preset's critic to fit its credit, unless the user sets it."""
    credit = by_name(cells.get("credit"))
    name = credit.get("name") if isinstance(credit, Mapping) else None
    if "critic" not in changes and name is not None:
        cells.pop("critic", None)
        with contextlib.suppress(ValueError):  # an unknown credit is rejected later
            if CREDITS.find(str(name)).critic:
                cells["critic"] = {}
    return cells
