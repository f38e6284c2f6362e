"""Whether a run fits the memory of a GPU or of this machine."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import get_args

import torch

from gagpo.agents.engines.offers import serving_engine
from gagpo.base.errors import InvalidArgument
from gagpo.distributed.ranks import Ranks
from gagpo.model.loading import ModelError
from gagpo.model.shape import Shape
from gagpo.model.sharding import Unsharded
from gagpo.planning.memory import GB
from gagpo.planning.plan import Guess, guess_of, plan, shape_of
from gagpo.runs.run_folder import RunFolder
from gagpo.settings import RunSettings
from gagpo.settings.formats import with_unsharded

CONTEXT = 1.0 * GB  # GPU memory of CUDA and its libraries
FRAGMENTS = 0.05  # fraction of GPU memory lost to fragmentation
MARGIN = 0.1  # fraction of the available memory that an automatic choice leaves free: plans err by some percent
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
    for unsharded in reversed(get_args(Unsharded)[1:]):  # from the fewest bytes to the least memory, without auto
        verdict = judge(with_unsharded(settings, unsharded), guess, gigabytes, shape, machines)
        if verdict.needed <= (1 - MARGIN) * verdict.available:
            return unsharded, verdict
    return None


def with_chosen_unsharded(
    settings: RunSettings, guess: Guess, gigabytes: float, shape: Shape, machines: int = 1
) -> RunSettings:
    """The settings with the fastest ``training.unsharded`` that fits in place of ``auto``, or that of least memory."""
    if settings.processes == 1 or settings.training.unsharded != "auto":
        return settings
    fastest = fastest_unsharded(settings, guess, gigabytes, shape, machines)
    return with_unsharded(settings, fastest[0] if fastest else "least")


def choose_unsharded(folder: RunFolder, ranks: Ranks) -> str:
    """Replace ``training.unsharded=auto`` in the settings of a run that begins; returns a line that says so, or ''.

    All ranks call it together and take the first one's choice: ranks that reduce at different times wait for ever. They
    ask even if their settings leave nothing open, because one of them may have read the run before the first one wrote.
    """
    settings = folder.settings
    if ranks.alone:
        return ""
    folder.choose_unsharded(ranks.of_first(lambda: _choice(settings, ranks)))
    if settings.training.unsharded != "auto":
        return ""
    return f"training.unsharded={folder.settings.training.unsharded}: the fastest that fits by the plan"


def _choice(settings: RunSettings, ranks: Ranks) -> str:
    settings = settings.model_copy(update={"processes": ranks.world_size})
    memory = memory_here(settings.device)
    if settings.training.unsharded != "auto" or memory is None:
        return settings.training.unsharded
    if settings.device == "cpu":
        memory /= ranks.local_world_size
    machines = max(1, ranks.world_size // ranks.local_world_size)
    try:
        shape = shape_of(settings)
    except ModelError:  # it is not downloaded yet
        return "layers"
    return with_chosen_unsharded(settings, guess_of(settings), memory, shape, machines).training.unsharded
