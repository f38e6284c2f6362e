"""Check that a machine gives correct results: ``gagpo doctor``.

With several processes every rank runs all checks, and the worst finding of the ranks is reported. A check that raises
has failed. A check that hangs ends the process after printing its stack.
"""

from __future__ import annotations

import faulthandler
import itertools
import os
import resource
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gagpo.agents.engines.base import Engine, Request
from gagpo.agents.engines.offers import distributions
from gagpo.agents.engines.parity import ParityCheck, PolicyReader
from gagpo.agents.engines.registry import engine_options
from gagpo.agents.setup import make_engine
from gagpo.algorithms import load as load_algorithm
from gagpo.base.cores import available_cores
from gagpo.base.errors import GagpoError, InvalidArgument, first_line
from gagpo.base.findings import Finding, Verdict
from gagpo.base.memory import available_memory
from gagpo.credit import Credit
from gagpo.data import Row
from gagpo.distributed.ranks import Ranks
from gagpo.envs.offers import health_checks
from gagpo.learning.packing import Packing
from gagpo.learning.update import Updater, UpdateSettings
from gagpo.model.chosen_format import ChosenFormats, formats_for, slowdown
from gagpo.model.dtypes import dtype_of
from gagpo.model.loading import load_model, load_tokenizer
from gagpo.model.networks import Networks
from gagpo.model.sharding import ShardedReader, shard, unsharded_copy
from gagpo.model.weights import named_tensors
from gagpo.planning.memory import GB
from gagpo.runs.run_folder import versions
from gagpo.sft.small_model import ModelShape, build, save_folder

WORST_FIRST: tuple[Verdict, ...] = ("failed", "warning", "ok")

CHECK_SECONDS = 300.0
SHARED = Path("/dev/shm")
HOST_GB = {True: 16.0, False: 1.0}  # memory per process, with and without a GPU
SHARED_GB, FILES = 1.0, 4096
DISK_GB = 20.0
HELD = 0.05  # share of a GPU that the driver and this process may use
NATS = {"float32": 1e-3, "bfloat16": 0.5}  # allowed difference of log-probabilities between engine and model

SHAPE = ModelShape(layers=4, width=128, heads=4, key_value_heads=2, feed_forward=384, context=512)
EXPECTED = {"nats_before": 5.716747, "gradient_norm": 0.998776, "nats_after": 5.619930}
"""Results of the training step: mean negative log-probability of a token before and after, and gradient norm."""
OLD = -5.5  # log-probability of every token when it was sampled
TOLERANCE = 1e-4  # allowed relative difference from them


@dataclass
class Machine:
    """The machine as seen by this process.

    device: of this process.
    engine: its name.
    dtype: number format of sampling.
    runs: folder of runs, whose disk is checked.
    ranks: of this process.
    """

    device: str
    engine: str
    dtype: str
    runs: Path = Path("runs")
    ranks: Ranks = field(default_factory=Ranks)

    @property
    def on_gpu(self) -> bool:
        return self.device.startswith("cuda")

    @cached_property
    def _model(self) -> str:
        """The folder of a tiny model. The first rank creates it, so all ranks must call this together."""
        return self.ranks.of_first(self._make)

    def _make(self) -> str:
        """Write a model that is the same on every machine: no random numbers, nothing is downloaded."""
        self._files = tempfile.TemporaryDirectory(prefix="gagpo-doctor-")  # removed with this object
        model, tokenizer = build(SHAPE, ["You stand at 12. Go to door 3.", "left", "right"], seed=0)
        with torch.no_grad():
            for number, parameter in enumerate(model.parameters(), 1):
                if parameter.dim() > 1:  # norms stay 1
                    value = torch.arange(1.0, parameter.numel() + 1, dtype=torch.float64)
                    parameter.copy_(0.05 * (number * value.square()).sin().view(parameter.shape))
        folder = Path(self._files.name) / "model"
        save_folder(model, tokenizer, folder)
        return str(folder)

    def tiny(self) -> tuple[torch.nn.Module, Any]:
        """The tiny model in float32 on the device, and its tokenizer."""
        return load_model(self._model, "float32", self.device), load_tokenizer(self._model)


PACKAGES = ("gagpo", "torch", "transformers", *distributions())
"""Packages whose versions are reported."""

Check = Callable[[Machine], Finding]


def worst_of(findings: Sequence[Finding]) -> Finding:
    """The worst finding of all ranks.

    >>> worst_of([Finding("ok", "fine"), Finding("failed", "no space")]).summary
    'rank 1 of 2: no space'
    """
    rank = min(range(len(findings)), key=lambda number: WORST_FIRST.index(findings[number].verdict))
    worst = findings[rank]
    if all(finding.verdict == worst.verdict for finding in findings):
        return worst
    return replace(worst, summary=f"rank {rank} of {len(findings)}: {worst.summary}")


def judged(summary: str, values: Mapping[str, Any], advice: Sequence[str], verdict: Verdict) -> Finding:
    """A finding that is ``ok``, or ``verdict`` if there is advice."""
    return Finding(verdict if advice else "ok", summary, values, "; ".join(advice))


# The machine ----------------------------------------------------------------------------------------------------------


def check_host(machine: Machine) -> Finding:
    """Check memory, shared memory, open files, cores and instructions; report versions."""
    packages = {name: value for name, value in versions().items() if name in PACKAGES}
    processes = machine.ranks.local_world_size
    cores = available_cores()
    all_cores = os.cpu_count() or 1
    free = available_memory() / GB
    shared = shutil.disk_usage(SHARED).free / GB if SHARED.is_dir() else 0.0
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    instructions = torch.backends.cpu.get_cpu_capability()
    values = {**packages, "free_gb": free, "shared_gb": shared, "files": files, "cores": cores}
    values |= {"instructions": instructions, "threads": torch.get_num_threads()}
    summary = ", ".join(f"{name} {value}" for name, value in packages.items())
    summary += f"; {free:.1f} GB of memory free, {cores} cores with {instructions}"
    problems = []
    needed = HOST_GB[machine.on_gpu] * processes
    if free < needed:
        problems.append(f"{processes} processes need {needed:.0f} GB: raise the container's memory limit")
    if processes > 1 and shared < SHARED_GB:
        problems.append("NCCL and vLLM need shared memory: docker run --shm-size=16g, or --ipc=host")
    if 0 <= files < FILES:
        problems.append(f"raise the limit of open files: ulimit -n {max(65536, FILES)}")
    if cores < all_cores:
        problems.append(
            f"only {cores} of {all_cores} cores are available: train with threads={max(1, cores // processes)}"
        )
    return judged(summary, values, problems, "warning")


def check_disk(machine: Machine) -> Finding:
    """Check the space on the disk for run folders."""
    folder = machine.runs.absolute()
    while not folder.is_dir():
        folder = folder.parent
    free = shutil.disk_usage(folder).free / GB
    advice = ["a checkpoint takes 12 bytes a parameter, and two are kept: name a larger disk with --runs"]
    values = {"folder": str(machine.runs), "free_gb": free}
    return judged(f"{free:.0f} GB free for {machine.runs}", values, advice if free < DISK_GB else [], "warning")


def check_device(machine: Machine) -> Finding:
    """Check that the GPU of every rank is its own and is free; say which number format the device computes fast."""
    formats = formats_for(machine.device)
    if not machine.on_gpu:
        return check_cpu(machine, formats)
    (free, total), about = torch.cuda.mem_get_info(machine.device), torch.cuda.get_device_properties(machine.device)
    summary = f"{about.name}, {total / GB:.0f} GB; dtype auto: {formats}"
    values = {"gpu": str(about.uuid), "formats": vars(formats)}
    if machine.ranks.gathered(str(about.uuid)).count(str(about.uuid)) > 1:
        advice = "let every rank see all GPUs of its machine: unset CUDA_VISIBLE_DEVICES, or name them all in it"
        return Finding("failed", f"{summary}: another rank has it too", values, advice)
    problems = []
    if total - free > HELD * total:
        problems.append(f"other processes hold {(total - free) / GB:.1f} GB of {machine.device}: see nvidia-smi")
    if formats.sampling != "bfloat16" and machine.dtype == "bfloat16":
        problems.append(f"{formats.reason}: leave training.dtype and engine.dtype at auto")
    return judged(summary, values, problems, "warning")


def check_cpu(machine: Machine, formats: ChosenFormats) -> Finding:
    """Say which number format the CPU computes fast, and warn of a slow one that was asked for."""
    summary = f"{machine.device}; dtype auto: {formats}"
    values = {"formats": vars(formats), "bfloat16_slowdown": slowdown(machine.device)}
    problems = []
    if formats.training == "float32":
        summary += f"; a bfloat16 product takes {slowdown(machine.device):.1f} times as long as a float32 product"
        if machine.dtype == "bfloat16":
            problems.append("bfloat16 is slow here: leave training.dtype and engine.dtype at auto")
    return judged(summary, values, problems, "warning")


def device_of(device: str, ranks: Ranks) -> str:
    """The device of this rank; InvalidArgument if it has none of its own."""
    if ranks.alone or not device.startswith("cuda"):
        return device
    if device != "cuda":
        raise InvalidArgument(
            f"{ranks.world_size} processes take a GPU each",
            key="--device",
            advice=f"name the device cuda, not {device}",
        )
    count = torch.cuda.device_count()
    if count < ranks.local_world_size:
        raise InvalidArgument(
            f"{ranks.local_world_size} processes and {count} GPUs",
            key="--processes",
            advice=f"say --processes {max(1, count)}",
        )
    return ranks.device(device)


# Training and sampling ------------------------------------------------------------------------------------------------


def check_training_step(machine: Machine) -> Finding:
    """Check that an optimiser step of the tiny model, over all ranks, gives the expected numbers."""
    model, _ = machine.tiny()
    if not machine.ranks.alone:
        shard(model, machine.ranks.mesh(machine.device), "float32")
    length = 128  # tokens of a row
    count = 16  # rows
    response = 32  # tokens of a response, at the end of its row
    position_K = np.arange(length - response, length)
    old_K = np.full(response, OLD, np.float32)
    rows = []
    for i in range(count):
        ids = (5 + (np.arange(length) * (2 * i + 3) + i) % 240).astype(np.int32)
        rows.append(Row(ids, position_K, np.full(response, i), i * response + np.arange(response), old_K, 1.0, i))
    credit = Credit(np.linspace(0.0, 1.0, count), np.full(count, response))
    # A large epsilon keeps AdamW from amplifying rounding.
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-3)
    settings = UpdateSettings(packing=Packing(512))
    updater = Updater(Networks(model), optimizer, load_algorithm("cispo"), settings, machine.ranks)
    before = float(updater.score(rows, credit.tokens)[0].mean()) - OLD
    norm = updater.update(rows, credit, np.random.default_rng(0))["grad_norm"]
    after = float(updater.score(rows, credit.tokens)[0].mean()) - OLD
    measured = {"nats_before": before, "gradient_norm": norm, "nats_after": after}
    off = max(abs(measured[name] / expected - 1) for name, expected in EXPECTED.items())
    summary = f"loss and gradient are within {off:.1e} of the expected ones (at most {TOLERANCE:g})"
    advice = "do not train on this: try device=cpu, or NCCL_P2P_DISABLE=1 with several GPUs, and send us this report"
    return judged(summary, {**measured, "expected": EXPECTED}, [] if off <= TOLERANCE else [advice], "failed")


def check_engine(machine: Machine) -> Finding:
    """Check that engine and trainer compute the same log-probabilities, before and after loading new weights.

    Each of several ranks has its own engine and scores with the sharded policy.
    """
    ranks = machine.ranks
    model, tokenizer = machine.tiny()
    options = engine_options(machine.engine)
    sampled_model = model
    reader: PolicyReader | None = None
    if not ranks.alone:
        sampled_model = unsharded_copy(model, machine.dtype, options.needs_weights)
        shard(model, ranks.mesh(machine.device), "float32")
        reader = ShardedReader(model, machine.device, "float32")
    engine = make_engine(
        options,
        sampled_model,
        tokenizer,
        dtype=machine.dtype,
        own_weights=not ranks.alone,
        reader=None if options.needs_weights else reader,
    )
    parity = ParityCheck(model, machine.dtype, engine.max_length, reader)
    gaps = {"gap": gap_of(engine, parity)}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    engine.load_weights(named_tensors(model, dtype=dtype_of(machine.dtype)))
    gaps["gap_after_new_weights"] = gap_of(engine, parity)
    engine.close()
    worst = max(gaps.values())
    limit = NATS[machine.dtype]
    summary = f"engine and trainer differ by {worst:.2g} nats (at most {limit:g}), new weights included"
    advice = "do not train on this: try --engine transformers --dtype float32, and send us this report"
    return judged(summary, {**gaps, "limit": limit}, [] if worst <= limit else [advice], "failed")


def gap_of(engine: Engine, parity: ParityCheck) -> float:
    """The largest difference in nats between log-probabilities of the engine and of the model."""
    rng = np.random.default_rng(0)
    requests = [Request(i, rng.integers(5, 250, 4 + 5 * i).astype(np.int32), i) for i in range(8)]
    (gap,) = parity.gaps(requests, [engine.generate(requests, parity.sampling)])
    for request in requests:
        engine.release(request.session)
    return gap.error


def _of_environments(name: str, health: Callable[[], Finding]) -> Check:
    """A check that an environment's folder registers, which needs nothing of the machine's description."""

    def check(machine: Machine) -> Finding:
        return health()

    check.__name__ = f"check_{name}"
    return check


CHECKS: tuple[Check, ...] = (
    check_host,
    check_disk,
    *itertools.starmap(_of_environments, health_checks().items()),
    check_device,
    check_training_step,
    check_engine,
)


def examine(
    machine: Machine, report: Callable[[Finding], None] = lambda _: None, checks: Sequence[Check] = CHECKS
) -> list[Finding]:
    """Run every check; the same findings on all ranks.

    report: called with each finding, on the first rank.

    Raises:
        GagpoError: a check raised on one of several ranks, so the others would wait for it in vain.
    """
    findings = []
    for check in checks:
        name = check.__name__.removeprefix("check_").replace("_", " ")
        begun = time.monotonic()
        faulthandler.dump_traceback_later(CHECK_SECONDS, exit=True)
        try:
            finding = worst_of([Finding(**record) for record in machine.ranks.gathered(asdict(check(machine)))])
        except Exception as error:
            reason = f"{type(error).__name__}: {first_line(error)}"
            if not machine.ranks.alone:
                raise GagpoError(f"{name} failed on rank {machine.ranks.rank}: {reason}") from error
            finding = Finding("failed", reason)
        finally:
            faulthandler.cancel_dump_traceback_later()
        findings.append(replace(finding, name=name, seconds=time.monotonic() - begun))
        if machine.ranks.first:
            report(findings[-1])
    return findings
