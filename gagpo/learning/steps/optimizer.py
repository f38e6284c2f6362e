"""The optimiser of a run: which one, which parameters decay, and how learning rates rise, stay and fall."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterable
from typing import Any

import torch

from gagpo.learning.steps.eight_bit import AdamW8bit
from gagpo.objectives.imitation import fall
from gagpo.settings import OptimizerSettings, SettingsError

Group = dict[str, Any]
"""Parameters and the options of their own, as torch's optimisers take them."""

EIGHT_BIT = ("adamw8bit", "paged_adamw8bit")


def require_optimizer(settings: OptimizerSettings, device: str) -> None:
    """SettingsError, before anything is loaded, where the optimiser's package or device is not there."""
    if settings.name not in EIGHT_BIT:
        return
    if importlib.util.find_spec("bitsandbytes") is None:
        raise SettingsError(
            f"optimizer.name={settings.name} needs bitsandbytes, which is not installed: pip install 'gagpo[8bit]', or "
            "leave it at adamw"
        )
    if settings.name == "paged_adamw8bit" and not device.startswith("cuda"):
        raise SettingsError(
            f"optimizer.name=paged_adamw8bit moves what a GPU has no room for to the host, and device is {device}: use "
            "adamw8bit, or device=cuda"
        )


def make_optimizer(
    models: Iterable[torch.nn.Module], groups: list[Group], settings: OptimizerSettings
) -> torch.optim.Optimizer:
    """The optimiser over the groups of :func:`parameter_groups`, and of a critic.

    With 8 bits a moment is one byte, in blocks of 256 that share a scale (Dettmers et al., "8-bit Optimizers via
    Block-wise Quantization", 2022). As there, moments of embeddings stay in float32, and so do those of tensors below
    4,096 numbers.
    """
    chosen: Group = {"weight_decay": settings.weight_decay, "betas": settings.betas, "eps": settings.epsilon}
    if settings.name == "muon":
        matrices = [group for group in groups if group.get("whole")]
        return MuonAdamW(matrices, [group for group in groups if not group.get("whole")], **chosen)
    if settings.name not in EIGHT_BIT:
        return torch.optim.AdamW(groups, **chosen)
    modules = [module for model in models for module in model.modules()]
    embeddings = {id(module.weight) for module in modules if isinstance(module, torch.nn.Embedding)}
    return AdamW8bit(groups, embeddings, settings.name == "paged_adamw8bit", **chosen)


class MuonAdamW(torch.optim.Optimizer):
    """Muon for some matrices (Jordan et al. 2024) and AdamW for all else, as one optimiser with one state.

    Muon's steps are scaled to the size of AdamW's (Liu et al. 2025, arXiv 2502.16982), so both take the same rate.
    """

    def __init__(
        self,
        matrices: list[Group],
        others: list[Group],
        weight_decay: float,
        betas: tuple[float, float],
        eps: float = 1e-8,
    ):
        if not any(group["params"] for group in matrices):
            raise SettingsError("optimizer.name=muon finds no matrix between layers in this model: set adamw")
        self.muon, self.adamw = muon(matrices, weight_decay), None
        if any(group["params"] for group in others):
            self.adamw = torch.optim.AdamW(others, weight_decay=weight_decay, betas=betas, eps=eps)
        parts = [self.muon] if self.adamw is None else [self.muon, self.adamw]
        super().__init__([group for part in parts for group in part.param_groups], {})
        self._share()

    def _share(self) -> None:
        """Both parts work on this optimiser's groups and state."""
        of_muon = ["ns_steps" in group for group in self.param_groups]
        self.muon.param_groups = [group for group, own in zip(self.param_groups, of_muon, strict=True) if own]
        self.muon.state = self.state
        if self.adamw is not None:
            self.adamw.param_groups = [group for group, own in zip(self.param_groups, of_muon, strict=True) if not own]
            self.adamw.state = self.state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._share()

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One step of both."""
        self.muon.step()
        if self.adamw is not None:
            self.adamw.step()


def muon(matrices: list[Any], weight_decay: float = 0.0) -> torch.optim.Muon:
    """Muon over parameters or groups of them, at AdamW's learning rates."""
    return torch.optim.Muon(matrices, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw")


def hidden_matrices(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    """The trained matrices between layers: neither embeddings nor the output layer."""
    embedded = {id(p) for m in model.modules() if isinstance(m, torch.nn.Embedding) for p in m.parameters()}
    embedded |= {id(p) for p in model.get_output_embeddings().parameters()}  # type: ignore[operator]
    return [p for p in model.parameters() if p.requires_grad and p.ndim == 2 and id(p) not in embedded]


def moment_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Bytes of all moments of all ranks, as they are or, before the first step, as they will be at most."""
    held = [x for state in optimizer.state.values() for x in state.values() if isinstance(x, torch.Tensor)]
    if held:
        parts = optimizer.parts if isinstance(optimizer, AdamW8bit) else 1  # a DTensor's numbers are those of all
        return parts * sum(x.numel() * x.element_size() for x in held)
    trained: list[torch.Tensor] = [p for group in optimizer.param_groups for p in group["params"]]
    return 2 * sum(p.numel() * p.element_size() for p in trained)


def parameter_groups(model: torch.nn.Module, settings: OptimizerSettings) -> list[Group]:
    """The trained parameters; with weight decay, gains and biases (whatever is no matrix) in a group without it.

    Before them stand, for Muon, the matrices that it makes steps of, in a group that says so (``whole``).
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    rate = settings.learning_rate
    first: list[Group] = []
    if settings.name == "muon":
        matrices = hidden_matrices(model)
        first = [{"params": matrices, "lr": rate, "whole": True}]
        own = {id(parameter) for parameter in matrices}
        trained = [parameter for parameter in trained if id(parameter) not in own]
    if not settings.weight_decay:
        return [*first, {"params": trained, "lr": rate}]
    return [
        *first,
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


def share_scale(settings: OptimizerSettings, zero_groups: float) -> float:
    """What the rate is multiplied by where the share ``zero_groups`` of the task groups teaches nothing.

    Adam divides a gradient by its usual size, so that the noise of one group in ten moves the weights as far as that of
    ten. A gradient's noise falls with the root of the share that it comes from: multiplied by that, a step is as long
    as if the divisor had stayed that of a batch which teaches as a whole.
    """
    return math.sqrt(1.0 - zero_groups) if settings.by_groups else 1.0


def _risen(step: int, steps: int) -> float:
    """Share of the highest rate, reached with the last of ``steps``."""
    return min(1.0, (step + 1) / steps) if steps else 1.0
