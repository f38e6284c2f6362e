"""Rates of GPUs and links, from which the time of an update is computed. Stated by vendors, not measured here.

Programs reach a part of them: ``ARITHMETIC`` in training, ``MEMORY`` in decoding.
"""

from __future__ import annotations

from dataclasses import dataclass

from gagpo.base.errors import InvalidArgument
from gagpo.base.nearest import hint

ARITHMETIC = 0.4  # of the peak, in training a dense model with FSDP
MEMORY = 0.6  # of the bandwidth, in decoding
FILES = 2e9  # bytes per second that one process writes to a file in memory


@dataclass(frozen=True)
class Rates:
    """Rates of one kind of GPU and its links, per second.

    gigabytes: memory of a GPU.
    flops: floating-point operations in bfloat16 of a dense matrix product, at the peak.
    memory: bytes between a GPU and its memory.
    link: bytes in each direction between a GPU and the others of its machine.
    network: bytes in each direction between a machine and the others.
    """

    name: str
    gigabytes: float
    flops: float
    memory: float
    link: float
    network: float

    @property
    def training_flops(self) -> float:
        return ARITHMETIC * self.flops

    @property
    def decoding_bytes(self) -> float:
        return MEMORY * self.memory


GPUS = {
    "a100": Rates("a100", 80.0, 312e12, 2.04e12, 300e9, 200e9),  # SXM, 80 GB; eight network cards of 200 Gb/s
    "h100": Rates("h100", 80.0, 989e12, 3.35e12, 450e9, 400e9),  # SXM, 80 GB; eight network cards of 400 Gb/s
    "l40s": Rates("l40s", 48.0, 362e12, 0.86e12, 32e9, 25e9),  # PCIe 4.0; one network card of 200 Gb/s
}


def rates_of(gpu: str) -> Rates:
    """The rates of a GPU by its name. Raises: InvalidArgument, naming the known ones."""
    if gpu not in GPUS:
        raise InvalidArgument(f"unknown GPU {gpu!r:.40}", advice=hint(gpu, GPUS))
    return GPUS[gpu]
