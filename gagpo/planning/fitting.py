"""Whether a run fits a GPU, and the fewest changes of settings that make it fit."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from gagpo.agents.shape import Shape
from gagpo.base.errors import InvalidArgument
from gagpo.collecting.distributed_rollout import require_fitting
from gagpo.planning.memory import GB, VLLM_SHARE
from gagpo.planning.plan import Guess, plan, shape_of
from gagpo.settings import RunSettings, SettingsError, with_overrides

CONTEXT = 1.0 * GB  # GPU memory of CUDA and its libraries
FRAGMENTS = 0.05  # share of GPU memory lost to fragmentation


@dataclass(frozen=True)
class MemoryVerdict:
    """Whether a run fits a GPU.

    gigabytes: memory of the GPU.
    available: bytes available to tensors.
    needed: bytes at the peak.
    fits: the run fits without changes.
    overrides: settings that make it fit; empty if none are needed or enough.
    advice: the answer in one line.
    """

    gigabytes: float
    available: float
    needed: float
    fits: bool
    overrides: list[str]
    advice: str


def judge(settings: RunSettings, guess: Guess, gigabytes: float, shape: Shape | None = None) -> MemoryVerdict:
    """Whether the run fits ``gigabytes``, and if not, changes of settings that make it fit.

    Changes that keep the result come first, number formats and the KL term last. All are accepted by a run.
    """
    if not gigabytes > 0:
        raise InvalidArgument(f"a GPU's memory must be a positive number of GB, got {gigabytes}")
    sizes = shape or shape_of(settings)
    available = gigabytes * GB * (1 - FRAGMENTS) - (CONTEXT if settings.device != "cpu" else 0.0)
    needed, phase = plan(settings, guess, sizes, gigabytes).peak()
    if needed <= available:
        advice = f"fits: {needed / GB:.1f} of {available / GB:.1f} GB; the most is needed in the {phase}"
        return MemoryVerdict(gigabytes, available, needed, True, [], advice)

    def peak(overrides: dict[str, str]) -> float:
        changed = _accepted(settings, overrides)
        return math.inf if changed is None else plan(changed, guess, sizes, gigabytes).peak()[0]

    chosen: dict[str, str] = {}
    least = needed
    for key, value in _candidates(settings):
        # Keep a change that helps; a later value of a key replaces the earlier one.
        after = peak({**chosen, key: value})
        if after < least:
            chosen, least = {**{other: chosen[other] for other in chosen if other != key}, key: value}, after
        if least > available:
            continue
        # The last ones change the result, so drop them first if the others are enough.
        for other in reversed(list(chosen)):
            rest = {name: chosen[name] for name in chosen if name != other}
            chosen = rest if peak(rest) <= available else chosen
        overrides = [f"{name}={chosen[name]}" for name in chosen]
        advice = f"does not fit: {needed / GB:.1f} of {available / GB:.1f} GB; with {' '.join(overrides)} it does"
        return MemoryVerdict(gigabytes, available, needed, False, overrides, advice)
    helpful = " ".join(f"{name}={value}" for name, value in chosen.items()) or "none does"
    advice = (
        f"does not fit: {needed / GB:.1f} of {available / GB:.1f} GB, and {least / GB:.1f} with every setting that "
        f"helps ({helpful}): use more GPUs (processes), an adapter (lora) or a smaller model"
    )
    return MemoryVerdict(gigabytes, available, needed, False, [], advice)


def _accepted(settings: RunSettings, overrides: Mapping[str, str]) -> RunSettings | None:
    """The settings with ``overrides``; None if a run would reject them."""
    try:
        changed = with_overrides(settings, [f"{key}={value}" for key, value in overrides.items()])
        if changed.processes > 1:
            require_fitting(changed, changed.processes)
    except SettingsError:
        return None
    return changed


def _candidates(settings: RunSettings) -> Iterator[tuple[str, str]]:
    """Keys and values that may save memory, in the order to try."""
    training, engine, rollout = settings.training, settings.engine, settings.rollout
    if not engine.sleep:
        yield "engine.sleep", "true"
    if not training.gradient_checkpointing:
        yield "training.gradient_checkpointing", "true"
    tokens = training.microbatch_tokens
    while tokens > 1024:
        tokens //= 2
        yield "training.microbatch_tokens", str(tokens)
    if engine.name == "vllm" and settings.device != "cpu":
        for share in (0.3, 0.2, 0.1):
            if share < (engine.memory or VLLM_SHARE):
                yield "engine.memory", str(share)
    sessions = min(rollout.concurrency, rollout.tasks * rollout.samples)
    while engine.name == "transformers" and sessions > 8:
        sessions //= 2
        yield "rollout.concurrency", str(sessions)
    if engine.dtype == "float32" and settings.algorithm.kl.coefficient > 0:
        yield "engine.dtype", "bfloat16"
    if training.precision == "float32":
        yield "training.precision", "bfloat16"
    if settings.lora is not None and settings.lora.base == "float32":
        yield "lora.base", "bfloat16"
    if settings.algorithm.kl.coefficient > 0:
        yield "algorithm.kl.coefficient", "0.0"


def memory_here(device: str) -> float | None:
    """Memory of ``device`` in GB, of the machine for a CPU; None if there is no such device."""
    if device.startswith("cuda") and torch.cuda.is_available():
        return torch.cuda.get_device_properties(torch.device(device)).total_memory / GB
    if device == "cpu":
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GB
    return None
