"""Which number format a machine multiplies fast, and what ``dtype: auto`` therefore means."""

from __future__ import annotations

import functools
import os
import platform
import time
from dataclasses import dataclass

import torch

TRAINING_WIDTH = 128
SAMPLING_WIDTH = 512
"""Hidden sizes from which bfloat16 pays on a CPU that multiplies it natively.

``python -m benchmarks.machine --formats`` measures what each pair of formats costs.

Training: narrower models spend their time between products, while bfloat16 costs an iteration one more scoring pass,
because the sampler's log-probabilities are no longer the trainer's (``algorithm.correction: recompute``). Sampling: a
decoding step of a model of a few million parameters waits for Python and not for products, and in float32 a small model
gets the same success rate on every CPU.
"""

X86_FLAGS = {"AVX512-BF16": "_is_avx512_bf16_supported", "AMX": "_is_amx_tile_supported"}
"""Instructions that multiply bfloat16, and torch's function that looks for them; later versions may lack one."""

WITH_BFLOAT16 = ("AVX512_CORE_BF16", "AVX10_1_512", "AVX10_2", "AMX", "ALL", "DEFAULT")
"""Beginnings of values of ``ONEDNN_MAX_CPU_ISA`` under which oneDNN may use native bfloat16 instructions."""


@dataclass(frozen=True)
class ChosenFormats:
    """What ``dtype: auto`` stands for on a device.

    training, sampling: ``float32`` or ``bfloat16``.
    reason: a clause that says why.
    """

    training: str
    sampling: str
    reason: str

    def __str__(self) -> str:
        same = self.training == self.sampling
        names = self.training if same else f"{self.training} for training, {self.sampling} for sampling"
        return f"{names} ({self.reason})"


def formats_for(device: str, width: int | None = None) -> ChosenFormats:
    """The formats of training and sampling on ``device``.

    device: a device of torch, such as ``cpu`` or ``cuda:1``.
    width: the model's hidden size; None if it is unknown and counts as wide.
    """
    native, reason = native_bfloat16(device)
    if not native:
        return ChosenFormats("float32", "float32", reason)
    if torch.device(device).type != "cpu" or width is None or width >= SAMPLING_WIDTH:
        return ChosenFormats("bfloat16", "bfloat16", reason)
    if width < TRAINING_WIDTH:
        return ChosenFormats("float32", "float32", f"a hidden size of {width} gains nothing from bfloat16 on a CPU")
    return ChosenFormats("bfloat16", "float32", reason)


@functools.cache
def native_bfloat16(device: str) -> tuple[bool, str]:
    """Whether ``device`` has instructions that multiply bfloat16, and the reason for the answer.

    Support is not enough: torch multiplies bfloat16 on every CPU, but without these instructions in a plain loop, 10 to
    50 times slower than float32. GPUs before Ampere emulate it in the same way.
    """
    device_type = torch.device(device).type
    if device_type == "cuda":
        return _of_gpu(device)
    if device_type == "mps" or platform.system() == "Darwin":
        return False, "PyTorch has no fast bfloat16 on macOS"
    if device_type == "cpu" and (answer := _of_cpu()) is not None:
        return answer
    factor = slowdown(device)
    comparison = f"a bfloat16 product takes {factor:.1f} times as long as a float32 product here"
    return factor < 1, comparison


def _of_gpu(device: str) -> tuple[bool, str]:
    if not torch.cuda.is_available():  # a plan for another machine
        return True, "assuming a GPU from Ampere on"
    name = torch.cuda.get_device_name(device)
    # Without the argument torch answers yes for T4 and V100 too, because it can emulate the format there.
    with torch.cuda.device(device):
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return True, f"{name} multiplies bfloat16 natively"
    return False, f"{name} only emulates bfloat16"


def _of_cpu() -> tuple[bool, str] | None:
    """The answer of the CPU's flags; None where torch has none, and only a measurement tells."""
    if platform.machine() in ("aarch64", "arm64"):
        supported = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)
        if supported is None:
            return None
        return (True, "this CPU has BF16 instructions") if supported() else (False, "this CPU has no BF16 instructions")
    # oneDNN's own test is of no use on x86: it is also true for CPUs on which oneDNN emulates the format.
    flags = {name: getattr(torch.cpu, flag, None) for name, flag in X86_FLAGS.items()}
    if all(flag is None for flag in flags.values()):
        return None
    present = [name for name, flag in flags.items() if flag is not None and flag()]
    if not present:
        return False, "this CPU has neither AVX512-BF16 nor AMX"
    if limit := _limit_of_libraries():
        return False, f"{limit} turns off {' and '.join(present)}"
    return True, f"this CPU has {' and '.join(present)}"


def _limit_of_libraries() -> str:
    """The environment variable that keeps torch or oneDNN from the CPU's bfloat16 instructions; '' if none does.

    torch's flags describe the CPU and ignore these variables, with which a CPU is made to behave like an older one.
    """
    isa = os.environ.get("ONEDNN_MAX_CPU_ISA", os.environ.get("DNNL_MAX_CPU_ISA", "ALL"))
    if not isa.upper().startswith(WITH_BFLOAT16):
        return f"ONEDNN_MAX_CPU_ISA={isa}"
    capability = os.environ.get("ATEN_CPU_CAPABILITY", "")
    return f"ATEN_CPU_CAPABILITY={capability}" if capability.lower() in ("default", "avx2") else ""


@functools.cache
def slowdown(device: str, size: int = 128, repetitions: int = 3) -> float:
    """The time of a bfloat16 product divided by that of a float32 product; above 1, bfloat16 is slower.

    size: rows and columns of both matrices.
    repetitions: the fastest of so many counts, because another process may interrupt one.
    """
    left, right = torch.randn(2, size, size, device=device)
    return _seconds(left.bfloat16(), right.bfloat16(), repetitions) / _seconds(left, right, repetitions)


def _seconds(left: torch.Tensor, right: torch.Tensor, repetitions: int) -> float:
    left @ right  # the first product compiles or loads a kernel
    fastest = float("inf")
    for _ in range(repetitions):
        started = time.perf_counter()
        (left @ right).sum().item()  # .item() waits for a device that computes asynchronously
        fastest = min(fastest, time.perf_counter() - started)
    return fastest
