"""The optimiser of a run: which one, which parameters decay, and how learning rates rise, stay and fall."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Iterable
from typing import Any

import torch

from gagpo.objectives.imitation import fall
from gagpo.settings import OptimizerSettings, SettingsError

Group = dict[str, Any]
"""Parameters and the options of their own, as torch's optimisers take them."""

EPSILON = 1e-8
"""AdamW's, added to the root of the second moment."""


def require_optimizer(settings: OptimizerSettings) -> None:
    """SettingsError, before anything is loaded, where the optimiser's package is not installed."""
    if settings.name == "adamw8bit" and importlib.util.find_spec("bitsandbytes") is None:
        raise SettingsError(
            "optimizer.name=adamw8bit needs bitsandbytes, which is not installed: pip install 'gagpo[8bit]', or set "
            "optimizer.name=adamw"
        )


def make_optimizer(groups: list[Group], settings: OptimizerSettings) -> torch.optim.Optimizer:
    """The optimiser over the groups of :func:`parameter_groups`, and of a critic.

    ``adamw8bit`` is bitsandbytes' own: moments of one byte, in blocks of 256 that share a scale (Dettmers et al.,
    "8-bit Optimizers via Block-wise Quantization", 2022). Tensors below 4,096 numbers keep float32 moments.
    """
    options: Group = {"weight_decay": settings.weight_decay, "betas": settings.betas, "eps": EPSILON}
    if settings.name == "adamw":
        return torch.optim.AdamW(groups, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about kernels of its own that are not used here
        import bitsandbytes
    kind: Any = getattr(bitsandbytes.optim, "AdamW8bit")  # noqa: B009, which the package does not export
    made: torch.optim.Optimizer = kind(groups, **options)
    return made


def moment_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Bytes of all moments of all ranks, as they are or, before the first step, as they will be at most."""
    held = [x for state in optimizer.state.values() for x in state.values() if isinstance(x, torch.Tensor)]
    if held:
        return sum(x.numel() * x.element_size() for x in held)
    trained: list[torch.Tensor] = [p for group in optimizer.param_groups for p in group["params"]]
    return 2 * sum(p.numel() * p.element_size() for p in trained)


def parameter_groups(model: torch.nn.Module, settings: OptimizerSettings) -> list[Group]:
    """The trained parameters; with weight decay, gains and biases (everything but matrices) in a group without it."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    rate = settings.learning_rate
    if not settings.weight_decay:
        return [{"params": trained, "lr": rate}]
    return [
        {"params": list(_of_shape(trained, matrices=True)), "lr": rate},
        {"params": list(_of_shape(trained, matrices=False)), "lr": rate, "weight_decay": 0.0},
    ]


def _of_shape(parameters: Iterable[torch.nn.Parameter], matrices: bool) -> Iterable[torch.nn.Parameter]:
    return (parameter for parameter in parameters if (parameter.ndim >= 2) == matrices)


# How rates rise, stay and fall ---------------------------------------------------------------------------------------


def rate_scale(settings: OptimizerSettings, iteration: int, iterations: int) -> float:
    """Share of the highest rate in ``iteration`` (counted from 0) of ``iterations``.

    It rises over the warm-up; a linear or cosine schedule then falls from 1 towards 0 after the last one.
    """
    if iteration < settings.warmup:
        return _risen(iteration, settings.warmup)
    return fall(settings.schedule, (iteration - settings.warmup) / max(1, iterations - settings.warmup))


def _risen(step: int, steps: int) -> float:
    """Share of the highest rate, reached with the last of ``steps``."""
    return min(1.0, (step + 1) / steps) if steps else 1.0
