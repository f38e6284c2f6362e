"""What an engine's process has of the servers and GPUs that several processes of a trainer share."""

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
"""Options that ask for an engine over several cards; the first two are vLLM's name of it, and one that is near."""


@dataclass(frozen=True)
class Seat:
    """The place of an engine's process among those that have one: of all, and of those on its machine."""

    rank: int = 0
    world: int = 1
    local: int = 0
    local_world: int = 1

    @classmethod
    def of(cls, variables: Mapping[str, str]) -> Seat:
        """As torchrun names it."""
        names = (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "1"))
        return cls(*(int(variables.get(name, usual)) for name, usual in names))


def share_of(urls: Sequence[str], seat: Seat) -> list[str]:
    """The servers of this trainer rank: every rank has its own, so that none waits for another's update."""
    for url in urls:
        if not isinstance(url, str) or urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
            raise InvalidArgument(f"engine.options.urls holds {url!r:.60}, which is no http address of a server")
    if len(set(urls)) != len(urls):
        raise InvalidArgument("engine.options.urls names a server twice")
    if len(urls) < seat.world:
        raise InvalidArgument(
            f"engine.options.urls names {len(urls)} servers for {seat.world} trainer ranks: one each at least, or set "
            "rollout.ahead=1, with which they are all the first rank's"
        )
    return list(urls[seat.rank :: seat.world])


def visible_gpu(index: int) -> int:
    """The number of this process's GPU ``index`` among all of the machine."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    numbers = [part for part in named.split(",") if part.strip().isdigit()]
    return int(numbers[index]) if index < len(numbers) else index


def require_one_card(name: str, options: Mapping[str, object]) -> None:
    """InvalidArgument where vLLM on the ranks' own cards is asked for more than one of them.

    vLLM can split a model over processes that others have started, if all of them hand it the same requests in the same
    order. Ranks do not: each plays task groups of its own, whose environments answer when they answer.
    """
    asked = [key for key in _SPANNING if options.get(key) not in (None, 1, [], ())]
    if not asked or name not in ("vllm", "vllm-server"):
        return
    way = "engine=vllm-server with engine.options={replicas: 1, gpus: [4, 5], gpus_each: 2}"
    if name == "vllm" or options.get("placement") == "colocated":
        which = "engine vllm" if name == "vllm" else "engine vllm-server with placement: colocated"
        raise InvalidArgument(
            f"{which} has one engine on each rank's own card, and engine.options.{asked[0]} asks for several cards. A "
            f"model that one card cannot hold is sampled on cards that no rank trains on: {way} (so many at each rank; "
            "with rollout.ahead=1 one server for all). engine.dtype=bfloat16 halves what it takes of the own card"
        )
    if asked[0] in _SPANNING[:2]:
        raise InvalidArgument(f"engine vllm-server calls engine.options.{asked[0]} gpus_each: {way}")


def require_own_gpu(device: torch.device, seat: Seat) -> None:
    """InvalidArgument where vLLM in this process would sample on another GPU than ``device``."""
    own = seat.local if seat.world > 1 else 0
    if device.type == "cuda" and (device.index or 0) != own:
        raise InvalidArgument(
            f"engine vllm samples on this process's GPU {own}, and the model is on {device}: set device=cuda, and "
            "CUDA_VISIBLE_DEVICES for another GPU"
        )
