"""Objectives: from advantages and log-probabilities to a loss. Takes plain tensors and needs no trainer.

Names are imported on first use, so that settings can be read without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gagpo.objectives.correction import correction_weights as correction_weights
    from gagpo.objectives.gate_gradients import gate_weights as gate_weights
    from gagpo.objectives.gates import Controls as Controls
    from gagpo.objectives.layout import Layout as Layout
    from gagpo.objectives.layout import Normaliser as Normaliser
    from gagpo.objectives.metrics import summary as summary
    from gagpo.objectives.nonfinite import find_nonfinite as find_nonfinite
    from gagpo.objectives.options import Correction as Correction
    from gagpo.objectives.options import ObjectiveSettings as ObjectiveSettings
    from gagpo.objectives.policy import kl_divergence as kl_divergence
    from gagpo.objectives.policy import policy_loss as policy_loss
    from gagpo.objectives.value import value_loss as value_loss

_HOME = {
    "Controls": "gates",
    "Correction": "options",
    "Layout": "layout",
    "Normaliser": "layout",
    "ObjectiveSettings": "options",
    "correction_weights": "correction",
    "find_nonfinite": "nonfinite",
    "gate_weights": "gate_gradients",
    "kl_divergence": "policy",
    "policy_loss": "policy",
    "summary": "metrics",
    "value_loss": "value",
}

__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
