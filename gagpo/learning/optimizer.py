"""The optimiser of a run, its parameter groups and its learning rate schedule."""

from __future__ import annotations

import importlib.util
import warnings
from typing import Any

import torch

from gagpo.objectives.imitation import decay
from gagpo.settings import OptimizerSettings, SettingsError

Group = dict[str, Any]
"""A parameter group of a torch optimiser."""

EPSILON = 1e-8
"""AdamW's epsilon."""


def require_optimizer(settings: OptimizerSettings) -> None:
    """Raise SettingsError if the optimiser's package is not installed."""
    if settings.name == "adamw8bit" and importlib.util.find_spec("bitsandbytes") is None:
        raise SettingsError(
            "optimizer.name=adamw8bit requires bitsandbytes: pip install 'gagpo[8bit]', or set optimizer.name=adamw"
        )


def make_optimizer(groups: list[Group], settings: OptimizerSettings) -> torch.optim.Optimizer:
    """Make the optimiser. ``adamw8bit`` (bitsandbytes) keeps the moments of small tensors in float32."""
    options: Group = {"weight_decay": settings.weight_decay, "betas": settings.betas, "eps": EPSILON}
    if settings.name == "adamw":
        return torch.optim.AdamW(groups, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about unused kernels
        import bitsandbytes
    kind: Any = getattr(bitsandbytes.optim, "AdamW8bit")  # noqa: B009, the package does not export it
    made: torch.optim.Optimizer = kind(groups, **options)
    return made


def moment_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Bytes of all moments on all ranks; before the first step, an upper bound."""
    held = [x for state in optimizer.state.values() for x in state.values() if isinstance(x, torch.Tensor)]
    if held:
        return sum(x.numel() * x.element_size() for x in held)
    trained: list[torch.Tensor] = [p for group in optimizer.param_groups for p in group["params"]]
    return 2 * sum(p.numel() * p.element_size() for p in trained)


def parameter_groups(model: torch.nn.Module, settings: OptimizerSettings) -> list[Group]:
    """The trained parameters; weight decay applies to matrices alone."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    rate = settings.learning_rate
    if not settings.weight_decay:
        return [{"params": trained, "lr": rate}]
    return [
        {"params": [parameter for parameter in trained if parameter.ndim >= 2], "lr": rate},
        {"params": [parameter for parameter in trained if parameter.ndim < 2], "lr": rate, "weight_decay": 0.0},
    ]


def rate_scale(settings: OptimizerSettings, iteration: int, iterations: int) -> float:
    """Factor of the learning rate in ``iteration`` (from 0) of ``iterations``: linear warm-up, then the schedule."""
    if iteration < settings.warmup:
        return min(1.0, (iteration + 1) / settings.warmup)
    return decay(settings.schedule, (iteration - settings.warmup) / max(1, iterations - settings.warmup))
