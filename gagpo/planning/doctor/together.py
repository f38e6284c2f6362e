"""Checks that all ranks run together: devices, exact collectives, and sharded updates equal to those of one process."""

from __future__ import annotations

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from gagpo.agents.engines.weights import named_tensors
from gagpo.algorithms import load as load_algorithm
from gagpo.credit import Credit
from gagpo.distributed.ranks import Ranks
from gagpo.distributed.sharding import shard
from gagpo.learning.packing import Packing
from gagpo.learning.update import Updater
from gagpo.planning.doctor.alone import check_log_probabilities
from gagpo.planning.doctor.machine import Check, Finding, Machine, pass_or_fail, random_rows

APART = {"float32": 1e-3, "bfloat16": 0.1}  # allowed distance of sharded weights, relative to the length of the update
STEPS = 2
Weights = dict[str, Tensor]


def check_ranks(machine: Machine) -> Finding:
    """Check that every rank has its own device."""
    ranks = machine.ranks
    found = [tuple(one) for one in ranks.gathered([machine.device, gpu_of(machine.device), dist.get_world_size()])]
    devices, gpus = [one[0] for one in found], [one[1] for one in found]
    summary = f"{ranks.world_size} ranks over {dist.get_backend_config()}, on {', '.join(dict.fromkeys(devices))}"
    values = {"devices": devices}
    if any(one[2] != ranks.world_size for one in found):
        return pass_or_fail(
            False, f"{summary}: they disagree on their number", values, "start all ranks with the same settings"
        )
    shared = machine.on_gpu and len(set(gpus)) < len(gpus)
    summary += f": two of them are on the GPU {max(gpus, key=gpus.count)}" if shared else ""
    advice = "let every rank see all GPUs of its machine: unset CUDA_VISIBLE_DEVICES, or name them all in it"
    return pass_or_fail(not shared, summary, values, advice)


def gpu_of(device: str) -> str:
    """The UUID of a GPU; empty for a CPU."""
    return str(torch.cuda.get_device_properties(device).uuid) if device.startswith("cuda") else ""


def check_exchanges(machine: Machine) -> Finding:
    """Check that sums, broadcasts, gathers and scatters are exact."""
    wrong = [name for name, right in exchanges(machine).items() if not right]
    if any(one != b"x" * 2**20 for one in machine.ranks.gathered_bytes(b"x" * 2**20)):
        wrong.append("host messages")
    summary = f"wrong values from {', '.join(wrong)}" if wrong else "sums, broadcasts, gathers and scatters are exact"
    advice = "set NCCL_P2P_DISABLE=1 and try again: if that helps, turn off IOMMU or ACS"
    return pass_or_fail(not wrong, summary, {"wrong": wrong}, advice)


def exchanges(machine: Machine) -> dict[str, bool]:
    """Whether each collective gave the correct numbers; small integers are exact in both formats."""
    device, found = machine.device, {}
    size, rank = machine.ranks.world_size, machine.ranks.rank
    for dtype in (torch.float32, torch.bfloat16):
        kind = str(dtype).rpartition(".")[2]

        def numbers(factor: int, dtype: torch.dtype = dtype) -> Tensor:
            return (factor * (torch.arange(size * 1000, device=device) % 5)).to(dtype)

        total = numbers(rank + 1)
        dist.all_reduce(total)
        found[f"all-reduce in {kind}"] = torch.equal(total, numbers(size * (size + 1) // 2))
        for source in range(size):
            sent = numbers(rank + 1)
            dist.broadcast(sent, source)
            found[f"broadcast from {source} in {kind}"] = torch.equal(sent, numbers(source + 1))
        gathered = torch.empty_like(total)
        dist.all_gather_single(gathered, numbers(rank + 1)[:1000])
        parts = [numbers(other + 1)[:1000] for other in range(size)]
        found[f"all-gather in {kind}"] = torch.equal(gathered, torch.cat(parts))
        scattered = torch.empty_like(total[:1000])
        dist.reduce_scatter_single(scattered, numbers(rank + 1))
        whole = numbers(size * (size + 1) // 2)
        found[f"reduce-scatter in {kind}"] = torch.equal(scattered, whole[1000 * rank : 1000 * (rank + 1)])
    return found


def check_sharded_update(machine: Machine) -> Finding:
    """Check that two sharded steps give the weights of one process, in the number format of sampling."""
    ranks, precision = machine.ranks, machine.dtype
    start = weights_of(machine.tiny()[0])
    together = updated_weights(machine, ranks, precision)
    apart, limit = distance(updated_weights(machine, Ranks(), precision), together, start), APART[precision]
    differs = len(set(ranks.gathered(sum(float(tensor.double().abs().sum()) for tensor in together.values())))) > 1
    summary = f"weights of {ranks.world_size} ranks end {apart:.1e} of the way from those of one (at most {limit:g})"
    summary += "; the ranks gather different weights" if differs else ""
    advice = "look at the check of exchanges first; if it is ok, send us this report"
    values = {"apart": apart, "limit": limit}
    return pass_or_fail(apart <= limit and not differs, summary, values, advice)


def updated_weights(machine: Machine, ranks: Ranks, precision: str) -> Weights:
    """The weights after two update steps."""
    model = machine.tiny()[0]
    if not ranks.alone:
        shard(model, ranks, precision, machine.device)
    count = 8 * machine.ranks.world_size
    credit, rng = Credit(np.linspace(-1.0, 1.0, count), np.full(count, 32)), np.random.default_rng(0)
    kind = torch.device(machine.device).type
    updater = Updater(
        model,
        torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-2),  # a large eps keeps AdamW from amplifying rounding
        load_algorithm("cispo"),
        packing=Packing(512),
        autocast=lambda: torch.autocast(kind, torch.bfloat16, enabled=precision == "bfloat16"),
        device=machine.device,
        ranks=ranks,
    )
    for _ in range(STEPS):
        updater.update(random_rows(count), credit, rng)
    return weights_of(model)


def weights_of(model: torch.nn.Module) -> Weights:
    """Copies of all weights on the CPU."""
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in named_tensors(model)}


def distance(one: Weights, other: Weights, start: Weights) -> float:
    """The distance between two updates of ``start``, relative to the length of the first."""
    apart = sum(float((one[name] - other[name]).double().square().sum()) for name in start)
    length = sum(float((one[name] - start[name]).double().square().sum()) for name in start)
    return float(np.sqrt(apart / max(length, 1e-30)))


TOGETHER: tuple[Check, ...] = (check_ranks, check_exchanges, check_sharded_update, check_log_probabilities)
