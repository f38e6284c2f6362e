"""Steps of all ranks about their channels: each on a device of its own, and what they exchange is right and fast."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from gagpo.agents.engines.base import claim_device
from gagpo.planning.doctor.machine import DoctorFinding, Machine, judged, waited

NAME = "ranks"
BYTES = {True: 2**28, False: 2**20}
"""That are exchanged at a time to measure speed, with cards and without."""

TIMES = 5
SLOW = {True: 10.0, False: 0.05}  # GB/s on the bus, below which something is probably in the way
HOST_BYTES = 2**23


def check_ranks(machine: Machine) -> DoctorFinding:
    """That every rank computes on a device of its own, in its main thread and in threads that it starts."""
    ranks = machine.ranks
    places = current_devices(machine.device)
    device, world = torch.device(machine.device), dist.get_world_size()
    found = [tuple(one) for one in ranks.gathered([machine.device, card_of(machine.device), world])]
    kinds = str(dist.get_backend_config()) if machine.on_card else dist.get_backend()
    values = {"backend": kinds, "devices": [one[0] for one in found], "current": places}
    summary = f"{ranks.world} ranks over {kinds}, on {', '.join(dict.fromkeys(one[0] for one in found))}"
    if any(one[2] != ranks.world for one in found):
        return judged(NAME, False, f"{summary}: they do not agree on how many they are", values, "start them alike")
    cards = [one[1] for one in found]
    if machine.on_card and len(set(cards)) < len(cards):
        return judged(
            NAME,
            False,
            f"{summary}: two of them are on the card {max(cards, key=cards.count)}",
            values,
            "let every rank see all cards of its machine: unset CUDA_VISIBLE_DEVICES, or name them all in it",
        )
    if any(place not in (None, device.index) for place in places):
        advice = "another library sets the current device: report it with the versions above"
        return judged(NAME, False, f"{summary}: the current device of its threads is {places}", values, advice)
    return judged(NAME, True, summary, values)


def current_devices(name: str) -> list[int | None]:
    """The current card of the main thread, and of a new thread that has claimed the rank's; None for a CPU."""
    device = torch.device(name)
    if device.type != "cuda":
        return [None, None]
    found: list[int | None] = [torch.cuda.current_device()]

    def look() -> None:
        claim_device(device)  # a thread begins on the first card, wherever its process computes
        found.append(torch.cuda.current_device())

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    return found


def card_of(name: str) -> str:
    """What tells one card from another, whatever its number in this process; empty for a CPU."""
    device = torch.device(name)
    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else ""


def check_collectives(machine: Machine) -> DoctorFinding:
    """That sums, broadcasts, gathered and scattered parts are right to the last number, and how fast they are."""
    ranks, device = machine.ranks, machine.device
    wrong = [name for name, right in exchanges(machine).items() if not right]
    size = BYTES[machine.on_card]
    world = ranks.world
    data = torch.ones(size // 4, device=device)
    parts = torch.empty(-(-size // 4 // world) * world, device=device)
    own = parts[: len(parts) // world].clone()
    # What passes each link: of a sum twice the share that is not one's own, of gathering it once.
    share = (world - 1) / world
    speeds = {
        "all-reduce": 2 * share * seconds_of(machine, lambda: dist.all_reduce(data)) ** -1,
        "broadcast": seconds_of(machine, lambda: dist.broadcast(data, 0)) ** -1,
        "all-gather": share * seconds_of(machine, lambda: dist.all_gather_single(parts, own)) ** -1,
    }
    speeds = {name: size / 1e9 * each for name, each in speeds.items()}
    message, begun = bytes(HOST_BYTES), time.perf_counter()
    whole = ranks.gathered_bytes(message)
    speeds["host messages"] = HOST_BYTES * world / (time.perf_counter() - begun) / 1e9
    if any(one != message for one in whole):
        wrong.append("host messages")
    values = {"gb_per_second": speeds, "wrong": wrong, "bytes": size}
    summary = ", ".join(f"{name} {speed:.2f}" for name, speed in speeds.items()) + " GB/s"
    if wrong:
        advice = "set NCCL_P2P_DISABLE=1 and try again: if that mends it, turn off IOMMU or ACS"
        return judged("collectives", False, f"wrong values from {', '.join(wrong)}; {summary}", values, advice)
    slow = [name for name in ("all-reduce", "broadcast", "all-gather") if speeds[name] < SLOW[machine.on_card]]
    if slow:
        advice = "look at nvidia-smi topo -m, and at NCCL_DEBUG=INFO for P2P or SHM that is off"
        return DoctorFinding("collectives", "warning", summary, values, f"{', '.join(slow)} slow: {advice}")
    return judged("collectives", True, summary, values)


def exchanges(machine: Machine) -> dict[str, bool]:
    """Whether each kind of exchange gave what it should, in float32 and in bfloat16: small whole numbers are exact."""
    ranks, device, found = machine.ranks, machine.device, {}
    world, rank = ranks.world, ranks.rank
    for dtype in (torch.float32, torch.bfloat16):
        kind = str(dtype).rpartition(".")[2]

        def numbers(factor: int, dtype: torch.dtype = dtype) -> Tensor:
            return (factor * (torch.arange(world * 1000, device=device) % 5)).to(dtype)

        total = numbers(rank + 1)
        dist.all_reduce(total)
        found[f"all-reduce in {kind}"] = torch.equal(total, numbers(world * (world + 1) // 2))
        for source in range(world):
            sent = numbers(rank + 1)
            dist.broadcast(sent, source)
            found[f"broadcast from {source} in {kind}"] = torch.equal(sent, numbers(source + 1))
        gathered = torch.empty_like(total)
        dist.all_gather_single(gathered, numbers(rank + 1)[:1000])
        parts = [numbers(other + 1)[:1000] for other in range(world)]
        found[f"all-gather in {kind}"] = torch.equal(gathered, torch.cat(parts))
        scattered = torch.empty_like(total[:1000])
        dist.reduce_scatter_single(scattered, numbers(rank + 1))
        whole = numbers(world * (world + 1) // 2)
        found[f"reduce-scatter in {kind}"] = torch.equal(scattered, whole[1000 * rank : 1000 * (rank + 1)])
    return found


def seconds_of(machine: Machine, call: Callable[[], object]) -> float:
    """The least of a few times, after one that is not counted."""
    call()
    times = []
    for _ in range(TIMES):
        machine.ranks.barrier()
        with waited(machine.device):
            begun = time.perf_counter()
            call()
        times.append(time.perf_counter() - begun)
    return max(min(times), 1e-9)
