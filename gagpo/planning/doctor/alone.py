"""Steps that one process takes by itself, or each rank does: weights, engine, memory, speed, and a run that learns."""

from __future__ import annotations

import time
from contextlib import nullcontext

import numpy as np
import torch

from gagpo.agents.engines.base import Engine, Request, Sampling
from gagpo.agents.engines.flat.attention import forward
from gagpo.agents.engines.flat.packed import PackedRows
from gagpo.agents.engines.parity import PolicyReader
from gagpo.agents.engines.weights import named_tensors
from gagpo.agents.model import load_model, load_tokenizer
from gagpo.agents.precision import dtype_of
from gagpo.agents.setup import make_engine
from gagpo.algorithms import load as load_algorithm
from gagpo.credit import Credit
from gagpo.distributed.sharding import Reader, sampled_from, shard
from gagpo.eval.runs import saved_evaluation
from gagpo.learning.packing import Packing
from gagpo.learning.update import Updater
from gagpo.planning import gpus
from gagpo.planning.allocated import Allocated
from gagpo.planning.doctor.machine import (
    ITERATIONS,
    SHAPE,
    TEXTS,
    DoctorFinding,
    Machine,
    allocated,
    judged,
    some_rows,
)
from gagpo.planning.lengths import Guess
from gagpo.planning.memory import peak
from gagpo.planning.plan import plan
from gagpo.runs.run_folder import RunFolder
from gagpo.training.events import Event, IterationFinished
from gagpo.training.trainer import train
from gagpo.warm_start.run import warm_start
from gagpo.warm_start.small_model import build, save_folder

PARITY = {"float32": 1e-3, "bfloat16": 0.5}  # nats that a sampled log-probability may be off
MEMORY = 0.25  # share by which the peak of an update may differ from the plan
RISE = 0.15  # how much the success rate must rise
ROWS = 16  # of 128 tokens, in a micro-batch whose memory is measured


def check_weights(machine: Machine) -> DoctorFinding:
    """That a model which was saved is loaded to the last bit."""
    model, tokenizer = build(SHAPE, TEXTS, seed=0)
    folder = machine.folder / "saved"
    save_folder(model, tokenizer, folder)
    loaded = dict(named_tensors(load_model(str(folder), "float32", machine.device)))
    other = [name for name, tensor in named_tensors(model) if not torch.equal(tensor, loaded[name].cpu())]
    summary = f"{len(loaded)} tensors, {f'{other[0]} differs' if other else 'all the same'}"
    values = {"tensors": len(loaded), "different": other}
    return judged("weights", not other, summary, values, "files or memory lose bits: test the disk and the memory")


def check_parity(machine: Machine) -> DoctorFinding:
    """That the engine's log-probabilities are those of a scoring pass, before and after it takes new weights.

    Of several ranks each has an engine of its own, and all score with the policy that they hold in parts.
    """
    ranks, (model, tokenizer) = machine.ranks, machine.tiny()
    whole = machine.engine != "vllm"  # vLLM needs no model with numbers in this process
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
    worst, limit = max(gaps.values()), PARITY[machine.dtype]
    summary = f"log-probabilities {worst:.2g} nats from a scoring pass (at most {limit:g}), new weights included"
    advice = "do not train on this: try --engine transformers --dtype float32, and send us this report"
    return judged("engine parity", worst <= limit, summary, {**gaps, "limit": limit}, advice)


@torch.no_grad()
def log_probability_gap(model: torch.nn.Module, engine: Engine, read: PolicyReader | None = None) -> float:
    """The largest difference (nats) between what the engine reports of its tokens and a forward pass of the model."""
    rng = np.random.default_rng(0)
    requests = [Request(i, rng.integers(5, 250, 4 + 5 * i).astype(np.int32), i) for i in range(8)]
    device = next(model.parameters()).device
    worst = 0.0
    for request, response in zip(requests, engine.generate(requests, Sampling(1.0, 16)), strict=True):
        # The same tokens once more in one pass; a place predicts the token after it.
        ids = torch.as_tensor(np.concatenate([request.prompt_ids, response.ids]), dtype=torch.long, device=device)
        keep = torch.arange(len(request.prompt_ids) - 1, len(ids) - 1, device=device)
        layout = PackedRows([len(ids) - 1], device)
        logits = (read(ids[:-1], layout, keep) if read else forward(model, ids[:-1], layout, keep)).float()
        own = logits.log_softmax(-1).gather(-1, ids[len(request.prompt_ids) :, None])[:, 0].cpu().numpy()
        worst = max(worst, float(np.abs(own - response.logprobs).max()))
        engine.release(request.session)
    return worst


def check_memory(machine: Machine) -> DoctorFinding:
    """That an update takes as much memory as the plan says, of this process's device."""
    ranks, tokens = machine.ranks, ROWS * 128
    settings = machine.settings(f"training.microbatch_tokens={tokens}", "rollout.max_tokens=32")
    before = allocated(machine.device)
    model, shape = machine.sized()
    if not ranks.alone:
        shard(model, ranks, "float32", machine.device)
    updater = Updater(
        model,
        torch.optim.AdamW(model.parameters()),
        load_algorithm("cispo"),
        packing=Packing(tokens),
        device=machine.device,
        ranks=ranks,
    )
    counted = None if machine.on_card else Allocated()
    count = 2 * ROWS * ranks.world
    rows, credit, rng = some_rows(count), Credit(np.ones(count), np.full(count, 32)), np.random.default_rng(0)
    held = sum(getattr(parameter, "_local_tensor", parameter).nbytes for parameter in model.parameters())
    if counted is None:
        torch.cuda.reset_peak_memory_stats(machine.device)
    with counted or nullcontext():
        for _ in range(2):
            updater.update(rows, credit, rng)
    measured = counted.peak + held if counted else torch.cuda.max_memory_allocated(machine.device) - before
    elsewhere = ("KV cache", "sampling", "engine", "reference", "a weight on its way")
    parts = plan(settings, Guess(prompt=96), shape).parts
    planned = peak([part for part in parts if not part.name.startswith(elsewhere)])[0]
    off = measured / planned - 1
    values = {"measured": measured, "planned": planned, "off": off}
    summary = f"an update took {measured / 1e6:.1f} MB, planned were {planned / 1e6:.1f} ({100 * off:+.0f} %)"
    advice = f"give `gagpo plan` {planned / max(measured, 1):.2f} of this card's memory, and send us this report"
    return judged("memory", abs(off) <= MEMORY, summary, values, advice)


def check_speed(machine: Machine) -> DoctorFinding:
    """Tokens per second of sampling and of training, and what share of a GPU's peak that is; no speed is wrong.

    A CPU has a tiny model to do, a GPU a model of random weights in the shape of Qwen2.5-0.5B.
    """
    model, _ = machine.sized()
    sampling, training = speeds(machine, model, 16384 if machine.on_card else 2048)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    values: dict[str, object] = {
        "parameters": parameters,
        "sampled_per_second": sampling,
        "trained_per_second": training,
    }
    summary = f"{sampling:,.0f} tokens/s sampled, {training:,.0f} trained on ({parameters / 1e6:.1f} M parameters)"
    if not machine.on_card:
        return DoctorFinding("speed", "ok", f"{summary}; no GPU here, so no share of a GPU's peak", values)
    name = torch.cuda.get_device_name(machine.device)
    reached = gpus.training_teraflops(parameters, training)
    line, share = gpus.share_line(name, reached)
    plain = gpus.product_teraflops(machine.device)
    values |= {"gpu": name, "teraflops": reached, "share_of_peak": share, "product_teraflops": plain}
    return DoctorFinding(
        "speed", "ok", f"{summary}: {line}; matrix products alone {gpus.share_line(name, plain)[0]}", values
    )


def speeds(machine: Machine, model: torch.nn.Module, tokens: int) -> tuple[float, float]:
    """Tokens per second sampled, and trained on in micro-batches of ``tokens``; bfloat16 passes on a GPU."""
    engine = make_engine(machine.engine, model, load_tokenizer(machine.model), dtype=machine.dtype)
    prompt = np.arange(5, 37, dtype=np.int32)
    requests = [Request(i, prompt, i) for i in range(32)]
    engine.generate(requests[:2], Sampling(1.0, 4))
    begun = time.perf_counter()
    sampled = sum(len(response.ids) for response in engine.generate(requests, Sampling(1.0, 64)))
    sampling = sampled / (time.perf_counter() - begun)
    engine.close()
    half = machine.on_card
    updater = Updater(
        model,
        torch.optim.AdamW(model.parameters()),
        load_algorithm("cispo"),
        packing=Packing(tokens),
        autocast=lambda: torch.autocast(torch.device(machine.device).type, torch.bfloat16, enabled=half),
        device=machine.device,
    )
    count = max(32, tokens // 128)
    rows, credit, rng = some_rows(count), Credit(np.ones(count), np.full(count, 32)), np.random.default_rng(0)
    updater.update(rows, credit, rng)
    return sampling, updater.update(rows, credit, rng)["train_tokens_per_second"]


def check_learning(machine: Machine) -> DoctorFinding:
    """That a model which now and then says the right word comes to say it, in ten iterations of GAGPO."""
    settings = machine.settings(f"model={machine.folder / 'warm'}")
    warm_start(settings.model_copy(update={"device": "cpu"}), quiet=True)
    run = RunFolder.create(machine.folder / "run", settings)
    rates: list[float] = []

    def heard(event: Event) -> None:
        if isinstance(event, IterationFinished):
            rates.append(event.metrics["success_rate"])

    results = train(run, heard, quiet=True)
    before = saved_evaluation(run.path, "before-test")
    assert before is not None
    first, last = before.success.value, results["test"].success.value
    summary = f"success {100 * first:.0f} % before, {100 * last:.0f} % after {ITERATIONS} iterations"
    values = {"before": first, "after": last, "success_by_iteration": rates}
    advice = "look at the steps above; where they are ok, send us this report"
    return judged("learning", last >= first + RISE, summary, values, advice)
