"""What an engine's process has of the servers and GPUs that several processes of a trainer share."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from gagpo.envs.errors import InvalidArgument

if TYPE_CHECKING:
    import torch


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


def require_own_gpu(device: torch.device, seat: Seat) -> None:
    """InvalidArgument where vLLM in this process would sample on another GPU than ``device``."""
    own = seat.local if seat.world > 1 else 0
    if device.type == "cuda" and (device.index or 0) != own:
        raise InvalidArgument(
            f"engine vllm samples on this process's GPU {own}, and the model is on {device}: set device=cuda, and "
            "CUDA_VISIBLE_DEVICES for another GPU"
        )
