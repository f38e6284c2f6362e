"""Checks in one process: host, disk, GPUs, engine against model, memory, and a run that must learn."""

from __future__ import annotations

import os
import re
import resource
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gagpo.agents.engines.base import Engine, Request, Sampling
from gagpo.agents.engines.flat.attention import forward
from gagpo.agents.engines.flat.packed import PackedRows
from gagpo.agents.engines.parity import PolicyReader
from gagpo.agents.engines.weights import named_tensors
from gagpo.agents.precision import dtype_of
from gagpo.agents.setup import make_engine
from gagpo.algorithms import load as load_algorithm
from gagpo.credit import Credit
from gagpo.distributed.sharding import Reader, sampled_from, shard
from gagpo.eval.runs import saved_evaluation
from gagpo.learning.packing import Packing
from gagpo.learning.update import Updater
from gagpo.planning.doctor.machine import ITERATIONS, Check, Finding, Machine, pass_or_fail, random_rows
from gagpo.planning.memory import GB, peak
from gagpo.planning.plan import Guess, plan
from gagpo.runs.run_folder import RunFolder, versions
from gagpo.sft.run import sft
from gagpo.training.events import Event, IterationFinished
from gagpo.training.trainer import train

SHARED = Path("/dev/shm")
MEMINFO = Path("/proc/meminfo")
GROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
HOST_GB = {True: 16.0, False: 1.0}  # memory per process, with and without a GPU
SHARED_GB, FILES = 1.0, 4096
DISK_GB, DISK_MB_PER_SECOND, WRITTEN = 20.0, 100.0, 2**25
HELD = 0.05  # share of a GPU that the driver and this process may use
NATS = {"float32": 1e-3, "bfloat16": 0.5}  # allowed difference of log-probabilities between engine and model
MEMORY = 0.25  # allowed relative difference between the peak of an update and the plan
RISE = 0.15  # required rise of the success rate
ROWS = 16  # of 128 tokens, in the measured micro-batch


def check_host(machine: Machine) -> Finding:
    """Check free memory within the container's limit, shared memory and open files; report versions."""
    known = {name: value for name, value in versions().items() if name in ("gagpo", "torch", "transformers", "vllm")}
    free, shared = host_memory() / GB, shutil.disk_usage(SHARED).free / GB if SHARED.is_dir() else 0.0
    files, wanted = resource.getrlimit(resource.RLIMIT_NOFILE)[0], HOST_GB[machine.on_gpu] * machine.processes
    values = {**known, "free_gb": free, "shared_gb": shared, "files": files}
    summary = ", ".join(f"{name} {value}" for name, value in known.items()) + f"; {free:.1f} GB of memory free"
    problems = []
    if free < wanted:
        problems.append(f"{machine.processes} processes need {wanted:.0f} GB: raise the container's memory limit")
    if machine.processes > 1 and shared < SHARED_GB:
        problems.append("NCCL and vLLM need shared memory: docker run --shm-size=16g, or --ipc=host")
    if 0 <= files < FILES:
        problems.append(f"raise the limit of open files: ulimit -n {max(65536, FILES)}")
    return Finding("warning" if problems else "ok", summary, values, "; ".join(problems))


def host_memory() -> float:
    """Free memory in bytes, of the machine or its control group."""
    found = re.search(r"^MemAvailable:\s+(\d+) kB", MEMINFO.read_text(encoding="ascii"), re.MULTILINE)
    free = float(found[1]) * 1024 if found else float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES"))
    for path in GROUP_LIMITS:
        try:
            free = min(free, float(path.read_text(encoding="ascii")))
        except (OSError, ValueError):  # not there, or "max"
            continue
    return free


def check_disk(machine: Machine) -> Finding:
    """Check space and speed of the disk for run folders by writing and reading a temporary file."""
    place = machine.runs.absolute()
    while not place.is_dir():
        place = place.parent
    free, block, same = shutil.disk_usage(place).free / GB, os.urandom(2**20), True
    with tempfile.NamedTemporaryFile(dir=place, prefix=".gagpo-doctor-") as file:
        begun = time.perf_counter()
        for _ in range(WRITTEN // len(block)):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        speed = WRITTEN / (time.perf_counter() - begun) / 1e6
        file.seek(0)
        while part := file.read(len(block)):
            same = same and part == block
    values = {"folder": str(machine.runs), "free_gb": free, "write_mb_per_second": speed}
    summary = f"{free:.0f} GB free for {machine.runs}, writes {speed:,.0f} MB/s"
    if not same:
        return pass_or_fail(False, f"a file in {place} reads back changed", values, "replace the disk")
    problems = []
    if free < DISK_GB:
        problems.append("a checkpoint takes 12 bytes a parameter, and two are kept: name a larger disk with --runs")
    if speed < DISK_MB_PER_SECOND:
        problems.append("checkpoints will be slow: name a faster disk with --runs")
    return Finding("warning" if problems else "ok", summary, values, "; ".join(problems))


def check_device(machine: Machine) -> Finding:
    """Check that the devices compute correctly and that no other process uses their memory."""
    if not machine.on_gpu:
        return pass_or_fail(product_is_right("cpu"), "cpu", {}, "a product of small whole numbers is wrong")
    count = torch.cuda.device_count()
    if count < machine.processes:
        line = f"{count} GPUs for {machine.processes} processes"
        return pass_or_fail(False, line, {"gpus": count}, f"say --processes {count}, or see CUDA_VISIBLE_DEVICES")
    devices = [machine.device] if machine.processes == 1 else [f"cuda:{number}" for number in range(machine.processes)]
    names, wrong, held, half = [], [], [], True
    for device in devices:
        free, whole = torch.cuda.mem_get_info(device)
        properties = torch.cuda.get_device_properties(device)
        names.append(f"{properties.name}, {whole / GB:.0f} GB")
        half = half and properties.major >= 8
        try:
            problem = "" if product_is_right(device) else "computes wrong products"
        except RuntimeError as error:  # report the other GPUs too
            problem = str(error).splitlines()[0][:120]
        wrong += [f"{device} {problem}"] if problem else []
        held += [f"{(whole - free) / GB:.1f} GB of {device}"] if whole - free > HELD * whole else []
    summary = "; ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
    values = {"gpus": names}
    if wrong:
        return pass_or_fail(False, f"{summary}: {'; '.join(wrong)}", values, "leave it out: CUDA_VISIBLE_DEVICES")
    problems = [f"other processes hold {', '.join(held)}: see nvidia-smi"] if held else []
    if not half:
        problems.append("no bfloat16 here: leave training.precision and engine.dtype at float32")
    return Finding("warning" if problems else "ok", summary, values, "; ".join(problems))


def product_is_right(device: str) -> bool:
    """Whether a product of small whole numbers, exact in any format, is correct."""
    square = torch.arange(9.0, device=device).view(3, 3)
    return bool(torch.equal((square @ square).cpu(), torch.arange(9.0).view(3, 3) @ torch.arange(9.0).view(3, 3)))


def check_log_probabilities(machine: Machine) -> Finding:
    """Check that engine and trainer compute the same log-probabilities, before and after loading new weights.

    Each of several ranks has its own engine and scores with the sharded policy.
    """
    ranks, (model, tokenizer) = machine.ranks, machine.tiny()
    whole = machine.engine != "vllm"  # vLLM needs no weights in this process
    copy = sampled_from(model, ranks, machine.dtype, whole)
    options: dict[str, object] = {"own": True} if whole and not ranks.alone else {}
    read: PolicyReader | None = None
    if not ranks.alone:
        shard(model, ranks, "float32", machine.device)
        read = Reader(model, machine.device, "float32")
        options |= {} if whole else {"read": read}
    engine = make_engine(machine.engine, copy, tokenizer, dtype=machine.dtype, **options)
    gaps = {"gap": log_probability_gap(model, engine, read)}
    with torch.no_grad():
        generator = torch.Generator().manual_seed(1)
        for parameter in model.parameters():
            part = parameter if ranks.alone else parameter.to_local()  # type: ignore[attr-defined]
            part.add_(torch.randn(part.shape, generator=generator).to(part.device), alpha=0.02)
    engine.load_weights(named_tensors(model, dtype=dtype_of(machine.dtype)))
    gaps["gap_after_new_weights"] = log_probability_gap(model, engine, read)
    engine.close()
    worst, limit = max(gaps.values()), NATS[machine.dtype]
    summary = f"engine and trainer differ by {worst:.2g} nats (at most {limit:g}), new weights included"
    advice = "do not train on this: try --engine transformers --dtype float32, and send us this report"
    return pass_or_fail(worst <= limit, summary, {**gaps, "limit": limit}, advice)


def log_probability_gap(model: torch.nn.Module, engine: Engine, read: PolicyReader | None = None) -> float:
    """The largest difference in nats between log-probabilities of the engine and of the model."""
    worst = 0.0
    for ids, reported, logits in _score(model, engine, 1.0, read):
        own = logits.log_softmax(-1).gather(-1, ids[:, None])[:, 0].cpu().numpy()
        worst = max(worst, float(np.abs(own - reported).max()))
    return worst


def check_greedy(machine: Machine) -> Finding:
    """Check that the engine takes the model's most probable tokens at temperature 0."""
    model, tokenizer = machine.tiny()
    engine = make_engine(machine.engine, model, tokenizer, dtype=machine.dtype)
    behind, count = 0.0, 0
    for ids, _, logits in _score(model, engine, 0.0):
        behind = max(behind, float((logits.max(-1).values - logits.gather(-1, ids[:, None])[:, 0]).max()))
        count += len(ids)
    engine.close()
    limit = NATS[machine.dtype]
    summary = f"{count} tokens at temperature 0, at most {behind:.2g} nats behind the most probable (limit {limit:g})"
    advice = "the engine does not sample what the model says: try --engine transformers, and send us this report"
    return pass_or_fail(behind <= limit, summary, {"behind": behind, "limit": limit}, advice)


@torch.no_grad()
def _score(
    model: torch.nn.Module, engine: Engine, temperature: float, read: PolicyReader | None = None
) -> Iterator[tuple[Tensor, np.ndarray, Tensor]]:
    """For each response its sampled ids, the engine's log-probabilities and the model's logits."""
    rng = np.random.default_rng(0)
    requests = [Request(i, rng.integers(5, 250, 4 + 5 * i).astype(np.int32), i) for i in range(8)]
    device = next(model.parameters()).device
    for request, response in zip(requests, engine.generate(requests, Sampling(temperature, 16)), strict=True):
        ids = torch.as_tensor(np.concatenate([request.prompt_ids, response.ids]), dtype=torch.long, device=device)
        keep = torch.arange(
            len(request.prompt_ids) - 1, len(ids) - 1, device=device
        )  # a position predicts the next token
        layout = PackedRows([len(ids) - 1], device)
        logits = (read(ids[:-1], layout, keep) if read else forward(model, ids[:-1], layout, keep)).float()
        yield ids[len(request.prompt_ids) :], response.logprobs, logits
        engine.release(request.session)


def check_memory(machine: Machine) -> Finding:
    """Check the peak memory of an update against the plan, with a model in the shape of Qwen2.5-0.5B."""
    if not machine.on_gpu:
        return Finding("skipped", "torch does not count allocations on a CPU")
    tokens = ROWS * 128
    settings = machine.settings(f"training.microbatch_tokens={tokens}", "rollout.max_tokens=32")
    before = torch.cuda.memory_allocated(machine.device)
    model, shape = machine.large()
    optimizer, algorithm = torch.optim.AdamW(model.parameters()), load_algorithm("cispo")
    updater = Updater(model, optimizer, algorithm, packing=Packing(tokens), device=machine.device)
    count = 2 * ROWS
    rows, credit, rng = random_rows(count), Credit(np.ones(count), np.full(count, 32)), np.random.default_rng(0)
    torch.cuda.reset_peak_memory_stats(machine.device)
    for _ in range(2):
        updater.update(rows, credit, rng)
    measured = torch.cuda.max_memory_allocated(machine.device) - before
    parts = plan(settings, Guess(prompt=96), shape).parts
    planned = peak([part for part in parts if not part.name.startswith(("KV cache", "sampling", "engine"))])[0]
    off = measured / planned - 1
    values = {"measured": measured, "planned": planned, "off": off}
    summary = f"an update took {measured / 1e6:.0f} MB, the plan says {planned / 1e6:.0f} ({100 * off:+.0f} %)"
    advice = f"give `gagpo plan` {planned / max(measured, 1):.2f} of this GPU's memory, and send us this report"
    return pass_or_fail(abs(off) <= MEMORY, summary, values, advice)


def check_learning(machine: Machine) -> Finding:
    """Check that a model that sometimes says the right word learns to say it in ten iterations of GAGPO."""
    settings = machine.settings(f"model={machine.folder / 'warm'}")
    sft(settings.model_copy(update={"device": "cpu"}), quiet=True)
    run = RunFolder.create(machine.folder / "run", settings)
    rates: list[float] = []

    def report(event: Event) -> None:
        if isinstance(event, IterationFinished):
            rates.append(event.metrics["success_rate"])

    results = train(run, report, quiet=True)
    before = saved_evaluation(run.path, "before-test")
    assert before is not None
    first, last = before.success.value, results["test"].success.value
    summary = f"success {100 * first:.0f} % before, {100 * last:.0f} % after {ITERATIONS} iterations"
    values = {"before": first, "after": last, "success_by_iteration": rates}
    advice = "look at the checks above; where they are ok, send us this report"
    return pass_or_fail(last >= first + RISE, summary, values, advice)


ALONE: tuple[Check, ...] = (
    check_host,
    check_disk,
    check_device,
    check_log_probabilities,
    check_greedy,
    check_memory,
    check_learning,
)
