"""Steps about the cards: what each is, that it computes right, that nobody else holds it, and how they copy."""

from __future__ import annotations

import platform
import time

import torch
from torch import Tensor

from gagpo.planning.doctor.machine import DoctorFinding, Machine, judged, left_out
from gagpo.planning.fitting import memory_here
from gagpo.planning.memory import GB
from gagpo.settings.machine import require_device

TAKEN = 0.05  # share of a card that the driver and this process may hold
COPIED = 2**24  # numbers that are copied from card to card
NO_CARDS = "no cards: the device is a CPU"


def check_device(machine: Machine) -> DoctorFinding:
    """That torch can compute on the device, and how much memory it has."""
    require_device(machine.device)
    right = product_is_right(machine.device)
    memory = memory_here(machine.device)
    name = torch.cuda.get_device_name(machine.device) if machine.on_card else platform.machine()
    values = {"device": machine.device, "name": name, "gigabytes": memory, "gpus": torch.cuda.device_count()}
    summary = f"{machine.device} ({name}), {memory or 0:.1f} GB"
    return judged("device", right, summary, values, "a product of small whole numbers is wrong: replace the device")


def product_is_right(device: str) -> bool:
    """Whether a product of small whole numbers, exact in any format, is what it should be."""
    square = torch.arange(9.0, device=device).view(3, 3)
    return bool(torch.equal((square @ square).cpu(), torch.arange(9.0).view(3, 3) @ torch.arange(9.0).view(3, 3)))


def check_cards(machine: Machine) -> DoctorFinding:
    """Each card that the ranks will have: name, memory, who else holds it, and a product on it."""
    if not machine.on_card:
        return left_out("cards", NO_CARDS)
    count = torch.cuda.device_count()
    values: dict[str, object] = {"cards": [], "count": count}
    if count < machine.processes:
        line = f"{count} cards for {machine.processes} processes"
        return judged("cards", False, line, values, f"say --processes {max(1, count)}, or see CUDA_VISIBLE_DEVICES")
    found, names, sizes, wrong, held = [], [], {}, [], []
    for number in range(machine.processes):
        name = torch.cuda.get_device_name(number)
        free, whole = torch.cuda.mem_get_info(number)
        names.append(name)
        sizes[name] = whole
        found.append({"name": name, "gigabytes": whole / GB, "free": free / GB, "half": supports_bfloat16(number)})
        try:
            problem = "" if product_is_right(f"cuda:{number}") else "computes wrong products"
        except RuntimeError as error:  # one broken card must not hide the others
            problem = str(error).splitlines()[0][:120]
        if problem:
            wrong.append(f"card {number} {problem}")
        if whole - free > TAKEN * whole:
            held.append(f"{(whole - free) / GB:.1f} GB of card {number}")
    values["cards"] = found
    summary = "; ".join(f"{names.count(name)} x {name}, {sizes[name] / GB:.0f} GB" for name in dict.fromkeys(names))
    if wrong:
        return judged("cards", False, f"{summary}: {'; '.join(wrong)}", values, "leave it out of CUDA_VISIBLE_DEVICES")
    problems = []
    if held:
        problems.append(f"others hold {', '.join(held)}: nvidia-smi names them")
    if len(set(names)) > 1:
        problems.append("the slowest kind of card sets the pace of all ranks")
    if not all(card["half"] for card in found):
        problems.append("no bfloat16 here: leave training.precision and engine.dtype at float32")
    return DoctorFinding("cards", "warning" if problems else "ok", summary, values, "; ".join(problems))


def supports_bfloat16(number: int) -> bool:
    return torch.cuda.get_device_properties(number).major >= 8


def check_peers(machine: Machine) -> DoctorFinding:
    """That every pair of cards copies what it should, at what speed, and which pairs do so without the host."""
    if not machine.on_card:
        return left_out("peer access", NO_CARDS)
    count = min(machine.processes, torch.cuda.device_count())
    pairs = [(one, other) for one in range(count) for other in range(count) if one != other]
    if not pairs:
        return left_out("peer access", "one card has no peer")
    through_host = [pair for pair in pairs if not torch.cuda.can_device_access_peer(*pair)]
    wrong, speeds = [], {}
    for one, other in pairs:
        right, speed = copied(one, other)
        speeds[f"{one} to {other}"] = speed
        if not right:
            wrong.append(f"{one} to {other}")
    slowest = min(speeds, key=lambda pair: speeds[pair])
    values = {"gb_per_second": speeds, "through_host": [f"{one} to {other}" for one, other in through_host]}
    summary = f"{len(pairs)} pairs, slowest {slowest} at {speeds[slowest]:.1f} GB/s"
    if wrong:
        return judged(
            "peer access",
            False,
            f"{summary}; copies arrive changed: {', '.join(wrong)}",
            values,
            "turn off IOMMU or ACS of the PCI bridges; until then NCCL_P2P_DISABLE=1",
        )
    if through_host:
        advice = "exchange between these goes through main memory: see nvidia-smi topo -m"
        return DoctorFinding("peer access", "warning", f"{summary}; {len(through_host)} without", values, advice)
    return DoctorFinding("peer access", "ok", summary, values)


def copied(one: int, other: int) -> tuple[bool, float]:
    """Whether a copy from a card to another arrives as it was, and GB a second."""
    pattern = torch.arange(COPIED, dtype=torch.int32)
    source = to_card(pattern, one)
    to_card(source, other)  # the first copy opens the way
    finish(one, other)
    begun = time.perf_counter()
    arrived = to_card(source, other)
    finish(one, other)
    seconds = time.perf_counter() - begun
    return bool(torch.equal(arrived.cpu(), pattern)), pattern.nbytes / max(seconds, 1e-9) / 1e9


def to_card(tensor: Tensor, number: int) -> Tensor:
    return tensor.to(f"cuda:{number}")


def finish(*numbers: int) -> None:
    for number in numbers:
        torch.cuda.synchronize(number)
