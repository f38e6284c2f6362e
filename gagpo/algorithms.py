"""The table of algorithms: each is one row, a choice of credit, ratio level, gate, aggregation and controllers."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from pydantic import Field, model_validator

from gagpo.credit.settings import CreditSettings, Gagpo
from gagpo.objectives.settings import ObjectiveSettings

PRESETS: dict[str, dict[str, Any]] = {
    "gagpo": {
        "credit": {"name": "gagpo"},
        "ratio": "action",
        "gate": {"name": "clip", "low": 0.2, "high": 0.2},
        "aggregation": "action_mean",
        "kl": {"coefficient": 0.01},
    },
    "grpo": {
        "credit": {"name": "grpo"},
        "ratio": "token",
        "gate": {"name": "clip", "low": 0.2, "high": 0.2},
        "aggregation": "sequence_mean",
        "kl": {"coefficient": 0.01},
    },
    "gigpo": {
        "credit": {"name": "gigpo"},
        "ratio": "token",
        "gate": {"name": "clip", "low": 0.2, "high": 0.2, "dual": 3.0},
        "aggregation": "token_mean",
        "kl": {"coefficient": 0.01},
        "entropy": 0.001,
    },
}


class Algorithm(ObjectiveSettings):
    """One algorithm: the cells of its row, any of which may be set apart from the preset's.

    Written as a name (``"sapo"``), as a preset with cells changed (``{"preset": "gagpo", "gate": "sapo"}``), or as
    cells alone.

    >>> Algorithm.model_validate({"preset": "gagpo", "credit": {"lam": 0.5}}).credit.lam
    0.5
    """

    preset: str = ""
    credit: CreditSettings = Field(default_factory=Gagpo)

    @model_validator(mode="before")
    @classmethod
    def _from_preset(cls, value: Any) -> Any:
        if isinstance(value, str):
            value = {"preset": value}
        if not isinstance(value, Mapping) or not value.get("preset"):
            return value
        return merge(row(str(value["preset"])), value)


def row(name: str) -> dict[str, Any]:
    """The preset's cells; ValueError names the nearest presets when there is none of that name."""
    if name in PRESETS:
        return PRESETS[name]
    near = difflib.get_close_matches(name, PRESETS, n=3, cutoff=0.4)
    raise ValueError(f"there is no algorithm {name!r}; {'nearest' if near else 'known'}: {', '.join(near or PRESETS)}")


def load(name: str, overrides: Mapping[str, Any] | None = None) -> Algorithm:
    """The preset ``name`` with cells changed.

    >>> load("gigpo", {"gate": "sapo"}).gate.positive
    1.0
    """
    return Algorithm.model_validate({"preset": name, **(overrides or {})})


def merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` with ``changes`` laid over it, cell by cell; a cell that changes its name starts from its defaults."""
    merged = dict(base)
    for key, change in changes.items():
        old = _cell(merged.get(key))
        new = _cell(change)
        same_kind = (
            isinstance(old, Mapping)
            and isinstance(new, Mapping)
            and new.get("name", old.get("name")) == old.get("name")
        )
        merged[key] = merge(old, new) if same_kind else change
    return merged


def _cell(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value
