"""What known GPUs can compute at most, and what share of it is reached."""

from __future__ import annotations

import time

import torch

PEAKS = {  # 10^12 floating-point operations a second in bfloat16, dense, from the makers' data sheets
    "B200": 2250.0,
    "H200": 989.0,
    "H100 PCIe": 756.0,
    "H100 NVL": 835.0,
    "H100": 989.0,
    "H20": 148.0,
    "A100": 312.0,
    "A40": 149.7,
    "A10G": 70.0,
    "A10": 125.0,
    "A30": 165.0,
    "L40S": 362.0,
    "L40": 181.0,
    "L4": 121.0,
    "RTX 6000 Ada": 364.0,
    "RTX A6000": 154.8,
    "RTX 4090": 165.2,
    "RTX 3090": 71.0,
    "MI300X": 1307.0,
}


def peak_of(name: str) -> float | None:
    """The peak of a GPU by the name that its driver gives it; None for one that is not in the table."""
    known = [gpu for gpu in PEAKS if gpu.lower() in name.lower().replace("-", " ")]
    return PEAKS[max(known, key=len)] if known else None


def training_teraflops(parameters: int, tokens_per_second: float) -> float:
    """Arithmetic of a training step, 6 operations for each parameter and token, in 10^12 a second."""
    return 6 * parameters * tokens_per_second / 1e12


def product_teraflops(device: str, size: int = 8192, seconds: float = 1.0) -> float:
    """10^12 operations a second of square bfloat16 matrix products on ``device``: the most that a model could reach."""
    left = torch.randn(size, size, device=device, dtype=torch.bfloat16)
    right = torch.randn(size, size, device=device, dtype=torch.bfloat16)
    _waited(left @ right)
    begun, count = time.perf_counter(), 0
    while time.perf_counter() - begun < seconds:
        # Ten at a time, so that waiting for them is no part of their time.
        for _ in range(10):
            out = left @ right
        _waited(out)
        count += 10
    return 2 * size**3 * count / (time.perf_counter() - begun) / 1e12


def _waited(tensor: torch.Tensor) -> None:
    if tensor.is_cuda:
        torch.cuda.synchronize(tensor.device)


def share_line(name: str, teraflops: float) -> tuple[str, float | None]:
    """How much of a GPU's peak ``teraflops`` are, in words and as a share; None for an unknown GPU."""
    peak = peak_of(name)
    if peak is None:
        return f"{teraflops:.0f} TFLOPS, {name} is not in the table of peaks", None
    return f"{teraflops:.0f} TFLOPS, {100 * teraflops / peak:.0f} % of the {peak:.0f} of {name}", teraflops / peak
