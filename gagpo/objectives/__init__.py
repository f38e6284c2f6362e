"""Objectives: from advantages and log-probabilities to a loss. Plain tensors in, no trainer needed."""

from gagpo.objectives.gates import Controls
from gagpo.objectives.layout import Layout, Normaliser
from gagpo.objectives.metrics import find_nonfinite, summary
from gagpo.objectives.policy import kl_divergence, policy_loss
from gagpo.objectives.settings import ObjectiveSettings
from gagpo.objectives.value import value_loss

__all__ = [
    "Controls",
    "Layout",
    "Normaliser",
    "ObjectiveSettings",
    "find_nonfinite",
    "kl_divergence",
    "policy_loss",
    "summary",
    "value_loss",
]
