"""The servers and the GPU that belong to a rank."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from gagpo.base.errors import InvalidArgument

if TYPE_CHECKING:
    import torch


_SPANNING = ("tensor_parallel_size", "tensor_parallel", "gpus_each", "gpus")
"""Options for several GPUs; the first two are vLLM's name and a likely mistake."""


@dataclass(frozen=True)
class Rank:
    """A process among all processes of a run and among those on its machine, as torchrun counts them."""

    rank: int = 0
    world_size: int = 1
    local: int = 0
    local_world_size: int = 1

    @classmethod
    def of(cls, variables: Mapping[str, str]) -> Rank:
        """Read torchrun's environment variables; a process without them is alone."""
        names = (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "1"))
        return cls(*(int(variables.get(name, usual)) for name, usual in names))


def share_of(urls: Sequence[str], place: Rank) -> list[str]:
    """The servers of one rank; ranks share none, so that they update independently.

    Raises: InvalidArgument unless ``urls`` are distinct http addresses, at least one for each rank.
    """
    for url in urls:
        if not isinstance(url, str) or urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
            raise InvalidArgument(f"engine.options.urls holds {url!r:.60}, which is not an http address of a server")
    if len(set(urls)) != len(urls):
        raise InvalidArgument("engine.options.urls names a server twice")
    if len(urls) < place.world_size:
        raise InvalidArgument(
            f"engine.options.urls names {len(urls)} servers for {place.world_size} trainer ranks: give one for each"
        )
    return list(urls[place.rank :: place.world_size])


def visible_gpu(index: int) -> int:
    """The number on this machine of the process's GPU ``index``."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    numbers = [part for part in named.split(",") if part.strip().isdigit()]
    return int(numbers[index]) if index < len(numbers) else index


def require_one_gpu(name: str, options: Mapping[str, object]) -> None:
    """Raise InvalidArgument if vLLM on the ranks' own GPUs is asked for more than one of them.

    Split over the ranks' processes, vLLM would need the same requests from all of them, but each rank plays its own
    task groups.
    """
    asked = [key for key in _SPANNING if options.get(key) not in (None, 1, [], ())]
    if not asked or name not in ("vllm", "vllm-server"):
        return
    remedy = "engine=vllm-server with engine.options={replicas: 1, gpus: [4, 5], gpus_each: 2}"
    if name == "vllm" or options.get("placement") == "colocated":
        which = "engine vllm" if name == "vllm" else "engine vllm-server with placement: colocated"
        raise InvalidArgument(
            f"{which} runs one engine on each rank's own GPU, but engine.options.{asked[0]} asks for several GPUs. For "
            f"a model that is too large for one GPU, use GPUs that no rank trains on: {remedy} (for each rank; with "
            "rollout.ahead=1 one server for all). engine.dtype=bfloat16 halves the memory on the own GPU"
        )
    if asked[0] in _SPANNING[:2]:
        raise InvalidArgument(f"engine vllm-server calls engine.options.{asked[0]} gpus_each: {remedy}")


def require_own_gpu(device: torch.device, place: Rank) -> None:
    """Raise InvalidArgument if vLLM in this process would sample on another GPU than ``device``."""
    own = place.local if place.world_size > 1 else 0
    if device.type == "cuda" and (device.index or 0) != own:
        raise InvalidArgument(
            f"engine vllm samples on this process's GPU {own}, but the model is on {device}: set device=cuda, and "
            "choose another GPU with CUDA_VISIBLE_DEVICES"
        )
