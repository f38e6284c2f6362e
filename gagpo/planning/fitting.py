"""Whether a run fits the memory of a GPU or of this machine."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import get_args

import torch

from gagpo.agents.engines.offers import serving_engine
from gagpo.base.errors import InvalidArgument
from gagpo.model.shape import Shape
from gagpo.model.sharding import Unsharded
from gagpo.planning.memory import GB
from gagpo.planning.plan import Guess, plan, shape_of
from gagpo.settings import RunSettings

CONTEXT = 1.0 * GB  # GPU memory of CUDA and its libraries
FRAGMENTS = 0.05  # fraction of GPU memory lost to fragmentation
UPDATE = "lower training.microbatch_tokens, or set training.gradient_checkpointing=true or training.dtype=bfloat16"
SMALLER = {
    "loading": f"use more GPUs (processes), set engine.dtype=bfloat16, or sample at servers ({serving_engine()})",
    "sampling": "lower rollout.concurrency, or set engine.dtype=bfloat16",
    "loss": UPDATE,
    "backward": UPDATE,
    "step": "use an adapter (lora), more GPUs (processes) or a smaller model",
}
"""How to reduce the peak, by the phase in which it occurs."""


@dataclass(frozen=True)
class MemoryVerdict:
    """Whether a run fits a GPU.

    gigabytes: memory of the GPU.
    available: bytes available to tensors.
    needed: bytes at the peak.
    advice: the verdict and what to change, in one line.
    """

    gigabytes: float
    available: float
    needed: float
    advice: str

    @property
    def fits(self) -> bool:
        return self.needed <= self.available


def judge(
    settings: RunSettings, guess: Guess, gigabytes: float, shape: Shape | None = None, machines: int = 1
) -> MemoryVerdict:
    """Whether the run fits ``gigabytes``, and if not, which settings reduce its memory."""
    if not gigabytes > 0:
        raise InvalidArgument(f"a GPU's memory must be a positive number of GB, got {gigabytes}")
    available = gigabytes * GB * (1 - FRAGMENTS)
    if settings.device != "cpu":
        available -= CONTEXT
    needed, phase = plan(settings, guess, shape or shape_of(settings), gigabytes, machines).peak()
    numbers = f"{needed / GB:.1f} of {available / GB:.1f} GB; peak memory: {phase}"
    advice = f"fits: {numbers}" if needed <= available else f"does not fit: {numbers}; {SMALLER[phase]}"
    return MemoryVerdict(gigabytes, available, needed, advice)


def memory_here(device: str) -> float | None:
    """Memory of ``device`` in GB, of the machine for a CPU; None if there is no such device."""
    if device.startswith("cuda") and torch.cuda.is_available():
        return torch.cuda.get_device_properties(torch.device(device)).total_memory / GB
    if device == "cpu":
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GB
    return None


def fastest_unsharded(
    settings: RunSettings, guess: Guess, gigabytes: float, shape: Shape, machines: int = 1
) -> tuple[Unsharded, MemoryVerdict] | None:
    """The value of ``training.unsharded`` that moves the fewest bytes and fits ``gigabytes``; None if none fits."""
    for unsharded in reversed(get_args(Unsharded)):  # from the fewest bytes to the least memory
        training = settings.training.model_copy(update={"unsharded": unsharded})
        verdict = judge(settings.model_copy(update={"training": training}), guess, gigabytes, shape, machines)
        if verdict.fits:
            return unsharded, verdict
    return None
