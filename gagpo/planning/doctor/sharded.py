"""Steps of all ranks with weights in parts: updates against those of one rank, gathering, offload, checkpoints."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gagpo.agents.engines.remote.device_transfer import buckets
from gagpo.agents.engines.weights import named_tensors, whole
from gagpo.agents.precision import dtype_of
from gagpo.algorithms import load as load_algorithm
from gagpo.credit import Credit
from gagpo.distributed.ranks import Ranks
from gagpo.distributed.sharding import shard
from gagpo.distributed.states import names_of
from gagpo.learning.packing import Packing
from gagpo.learning.update import Updater
from gagpo.planning.doctor.machine import DoctorFinding, Machine, allocated, judged, some_rows
from gagpo.runs.checkpoint import Saver, Snapshot, latest

APART = {"float32": 1e-3, "bfloat16": 0.1}
"""Share of what two steps move the weights by that sharded ones may end elsewhere than those of one process."""

STEPS = 2
BUCKET = {True: 2**28, False: 2**18}
Moved = dict[str, Tensor]


def check_float32(machine: Machine) -> DoctorFinding:
    """Forward, backward and step of sharded weights against those of one process, in float32."""
    return _against_one(machine, "sharded update", "float32")


def check_bfloat16(machine: Machine) -> DoctorFinding:
    """The same, gathered and computed in bfloat16."""
    return _against_one(machine, "bfloat16 update", "bfloat16")


def check_offload(machine: Machine) -> DoctorFinding:
    """The same with parts, gradients and moments in the host's memory, and what that leaves of a card."""
    return _against_one(machine, "offload", "float32", offload=True)


def _against_one(machine: Machine, name: str, precision: str, offload: bool = False) -> DoctorFinding:
    ranks = machine.ranks
    start = _weights(machine.tiny()[0])
    alone, _ = trained(machine, Ranks(), precision)
    together, held = trained(machine, ranks, precision, offload)
    apart, limit = distance(alone, together, start), APART[precision]
    differs = len(set(ranks.gathered(_digest(together)))) > 1
    values = {"apart": apart, "limit": limit, "held": held}
    summary = f"weights of {ranks.world} ranks end {apart:.1e} of their way from those of one (at most {limit:g})"
    advice = "the step collectives is the first to look at; where it is ok, send us this report"
    if differs:
        return judged(name, False, f"{summary}; the ranks gather different weights", values, advice)
    if offload and machine.on_card:
        summary += f"; {held / 1e6:.1f} MB stay on the card"
    return judged(name, apart <= limit, summary, values, advice)


def trained(
    machine: Machine,
    ranks: Ranks,
    precision: str,
    offload: bool = False,
) -> tuple[Moved, int]:
    """The weights after two steps on the same rows, and the bytes that model and optimiser keep on the card."""
    before = allocated(machine.device)
    model = machine.tiny()[0]
    if not ranks.alone:
        shard(model, ranks, precision, machine.device, offload=offload)
    optimizer = _gentle(model)
    _updated(machine, ranks, model, optimizer, precision)
    held = allocated(machine.device) - before
    return _weights(model), held


def _gentle(model: torch.nn.Module) -> torch.optim.Optimizer:
    """AdamW whose steps follow the gradient's size: otherwise it makes whole ones of rounding."""
    return torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-2)


def _updated(
    machine: Machine, ranks: Ranks, model: torch.nn.Module, optimizer: torch.optim.Optimizer, precision: str
) -> None:
    count = 8 * machine.ranks.world
    credit, rng = Credit(np.linspace(-1.0, 1.0, count), np.full(count, 32)), np.random.default_rng(0)
    kind = torch.device(machine.device).type
    updater = Updater(
        model,
        optimizer,
        load_algorithm("cispo"),
        packing=Packing(512),
        autocast=lambda: torch.autocast(kind, torch.bfloat16, enabled=precision == "bfloat16"),
        device=machine.device,
        ranks=ranks,
    )
    for _ in range(STEPS):
        updater.update(some_rows(count), credit, rng)


def _weights(model: torch.nn.Module) -> Moved:
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in named_tensors(model)}


def distance(one: Moved, other: Moved, start: Moved) -> float:
    """How far two ways from ``start`` end apart, as a share of the first one's length."""
    apart = sum(float((one[name] - other[name]).double().square().sum()) for name in start)
    length = sum(float((one[name] - start[name]).double().square().sum()) for name in start)
    return float(np.sqrt(apart / max(length, 1e-30)))


def _digest(weights: Moved) -> float:
    return sum(float(tensor.double().abs().sum()) for tensor in weights.values())


def check_gathering(machine: Machine) -> DoctorFinding:
    """That weights gathered for an engine, bucket by bucket, are those that were sharded, on every rank."""
    ranks, dtype = machine.ranks, dtype_of(machine.dtype)
    model, _ = machine.sized()
    expected = {name: tensor.detach().to("cpu", dtype, copy=True) for name, tensor in named_tensors(model)}
    shard(model, ranks, "float32", machine.device)
    largest = max(tensor.nbytes for tensor in expected.values())
    buffer = torch.empty(max(BUCKET[machine.on_card], largest), dtype=torch.uint8, device=machine.device)
    begun, filled, wrong = time.perf_counter(), 0, []
    for bucket in buckets(buffer, named_tensors(model, dtype=dtype), dtype):
        filled, place = filled + 1, 0
        for name, shape, size in bucket:
            arrived = buffer[place : place + size].cpu().view(dtype).view(shape)
            wrong += [] if torch.equal(arrived, expected[name]) else [name]
            place += size
    seconds = time.perf_counter() - begun
    total = sum(tensor.nbytes for tensor in expected.values())
    values = {"buckets": filled, "bytes": total, "seconds": seconds, "different": wrong}
    summary = f"{total / 1e6:.1f} MB in {filled} buckets, {total / seconds / 1e9:.2f} GB/s with the comparison"
    if wrong:
        summary = f"{wrong[0]} differs from what was sharded; {summary}"
    return judged("weights gathered", not wrong, summary, values, "the step collectives is the first to look at")


def check_checkpoint(machine: Machine) -> DoctorFinding:
    """That one process reads what all ranks have written: weights and the optimiser's states, to the last bit."""
    ranks, (model, tokenizer) = machine.ranks, machine.tiny()
    shard(model, ranks, "float32", machine.device)
    optimizer = _gentle(model)
    _updated(machine, ranks, model, optimizer, "float32")
    folder = Path(ranks.of_first(lambda: str(machine.folder / "checkpoints")))
    saver = Saver(folder, tokenizer, ranks)
    begun = time.perf_counter()
    saver.save(1, Snapshot.of(model, optimizer, {"iteration": 1}, ranks=ranks), keep=1)
    saver.wait()
    seconds = time.perf_counter() - begun
    ranks.barrier()
    states = {
        (name, key): whole(optimizer.state[parameter][key].detach()).cpu()
        for name, parameter in names_of(model, None).items()
        for key in ("exp_avg", "exp_avg_sq")
    }
    weights = _weights(model)
    wrong = ranks.of_first(lambda: _read_alone(machine, folder, weights, states))
    ranks.of_first(lambda: shutil.rmtree(folder, ignore_errors=True))
    values = {"seconds": seconds, "different": wrong}
    summary = f"{len(weights)} tensors and their states, written by {ranks.world} ranks in {seconds:.1f} s, read by one"
    if wrong:
        summary = f"{wrong[0]} is read otherwise than it was written; {summary}"
    return judged("checkpoint", not wrong, summary, values, "look at the disk; set training.save_every to keep more")


def _read_alone(machine: Machine, folder: Path, weights: Moved, states: dict[tuple[str, str], Tensor]) -> list[str]:
    """Names of what differs where one process reads the checkpoint; it is compared on the CPU."""
    from gagpo.agents.model import load_model

    saved = latest(folder)
    assert saved is not None
    saved.verify()
    model = load_model(saved.model)
    optimizer = _gentle(model)
    names = names_of(model, None)
    saved.load_optimizer(optimizer, names, Ranks())
    read = dict(named_tensors(model))
    wrong = [name for name in weights if not torch.equal(weights[name], read[name])]
    return wrong + [
        f"{key} of {name}"
        for (name, key), expected in states.items()
        if not torch.equal(optimizer.state[names[name]][key], expected)
    ]
