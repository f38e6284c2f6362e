"""From the sums of an update's micro-batches to numbers about the sampler and the critic."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gagpo.objectives import Layout


def counted(metrics: dict[str, Tensor], layout: Layout) -> dict[str, Tensor]:
    """The metrics with the number of tokens that they are sums over."""
    return {**metrics, "tokens": torch.tensor(float(layout.normaliser.tokens))}


def mismatch(parts: Sequence[dict[str, Tensor]]) -> dict[str, float]:
    """How far sampler and trainer were apart before the first step, and the share of sequences left out for it."""

    def total(name: str) -> float:
        return sum(float(part[name]) for part in parts)

    tokens = max(1.0, total("tokens"))
    return {
        "mismatch_kl": total("mismatch_kl") / tokens,
        "mismatch_weight": total("mismatch_weight") / tokens,
        "mismatch_max": max((float(part["mismatch_max"]) for part in parts), default=0.0),
        "masked": total("masked") / total("rows") if parts and "masked" in parts[0] else 0.0,
    }


def critic_summary(parts: Sequence[dict[str, Tensor]]) -> dict[str, float]:
    """Explained variance, clip fraction and error of the critic, where there is one."""
    if not parts or "values" not in parts[0]:
        return {}
    names = ("values", "value_clipped", "value_error", "target", "target_squared")
    total = {name: sum(float(part[name]) for part in parts) for name in names}
    count = total["values"]
    spread = total["target_squared"] / count - (total["target"] / count) ** 2
    error = total["value_error"] / count
    return {
        "value_error": error,
        "value_clip": total["value_clipped"] / count,
        "value_explained": 1 - error / spread if spread > 1e-12 else 0.0,
    }
