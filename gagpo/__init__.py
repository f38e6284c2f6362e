"""Reinforcement learning for language-model agents that act over many turns.

What people use most, imported when first used::

    import gagpo

    run = gagpo.train("alfworld-quickstart", "training.iterations=5")   # a config, by name or path, and overrides
    result = gagpo.evaluate("runs/alfworld-quickstart", split="valid_seen")
    run = gagpo.load_run("runs/alfworld-quickstart")

and, for other trainers, ``gagpo.Algorithm``, ``gagpo.advantages`` (credit) and ``gagpo.policy_loss`` (objectives).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gagpo.algorithms import Algorithm
    from gagpo.base.errors import GagpoError
    from gagpo.credit import advantages
    from gagpo.eval.models import evaluate
    from gagpo.eval.runs import load_run
    from gagpo.objectives.policy import policy_loss
    from gagpo.training.launch import train

    __version__: str

_HOME = {
    "Algorithm": "gagpo.algorithms",
    "GagpoError": "gagpo.base.errors",
    "advantages": "gagpo.credit",
    "evaluate": "gagpo.eval.models",
    "load_run": "gagpo.eval.runs",
    "policy_loss": "gagpo.objectives.policy",
    "train": "gagpo.training.launch",
}

__all__ = ["Algorithm", "GagpoError", "__version__", "advantages", "evaluate", "load_run", "policy_loss", "train"]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("gagpo")
    if name not in _HOME:
        raise AttributeError(f"module 'gagpo' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
