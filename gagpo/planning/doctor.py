"""Whether this machine computes right: versions, devices, engine, weights, memory, speed, and a short run that learns.

Everything is done on the device with a tiny model that is made on the spot; nothing is downloaded.
"""

from __future__ import annotations

import platform
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from gagpo.agents.engines.base import Engine, Request, Sampling
from gagpo.agents.engines.flat.attention import NAME, forward
from gagpo.agents.engines.flat.packed import PackedRows
from gagpo.agents.engines.weights import named_tensors
from gagpo.agents.model import load_model, load_tokenizer
from gagpo.agents.setup import make_engine
from gagpo.algorithms import load as load_algorithm
from gagpo.credit import Credit
from gagpo.learning.batch import Row
from gagpo.learning.packing import Packing
from gagpo.learning.update import Updater
from gagpo.planning import gpus
from gagpo.planning.allocated import Allocated
from gagpo.planning.fitting import memory_here
from gagpo.planning.lengths import Guess
from gagpo.planning.memory import peak
from gagpo.planning.plan import plan
from gagpo.settings import RunSettings, parse, with_overrides
from gagpo.settings.machine import require_device
from gagpo.settings.warm_start import SmallModelSettings
from gagpo.training.events import Event, IterationFinished
from gagpo.training.run_folder import RunFolder, versions
from gagpo.training.trainer import train
from gagpo.warm_start.run import warm_start
from gagpo.warm_start.small_model import build, save_folder

PARITY = {"float32": 1e-3, "bfloat16": 0.5}  # nats that a sampled log-probability may be off
MEMORY = 0.25  # share by which the peak of an update may differ from the plan
RISE = 0.15  # how much the success rate must rise
ITERATIONS = 10
SHAPE = SmallModelSettings(layers=4, width=128, heads=4, key_value_heads=2, feed_forward=384, context=512)
LARGE: dict[str, object] = {  # Qwen2.5-0.5B
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "vocab_size": 151936,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": True,
}
TEXTS = ["You stand at 12. Go to door 3.", "left", "right"]

CORRIDOR: dict[str, object] = {
    "name": "doctor",
    "threads": 1,
    "environment": {"id": "gagpo.envs.testing:gagpo-test/Corridor-v0", "kwargs": {"max_turns": 16}},
    "context": {"history": 0},
    "rollout": {"tasks": 8, "samples": 8, "max_tokens": 3, "workers": 0},
    "algorithm": {"preset": "gagpo", "kl": {"coefficient": 0.0}},
    "optimizer": {"learning_rate": 5e-3},
    "training": {"iterations": ITERATIONS, "minibatches": 2, "save_every": ITERATIONS, "keep_episodes": 0},
    "evaluation": {"splits": ["test"], "temperature": 1.0, "tries": 8},
    "warm_start": {
        "episodes": 60,
        "noise": 0.5,
        "steps": 25,
        "batch": 32,
        "learning_rate": 1e-2,
        "model": {"layers": 1, "width": 32, "heads": 2, "feed_forward": 32, "vocabulary": 300, "context": 128},
    },
}


@dataclass
class DoctorFinding:
    """One check: whether it is as it should be, one line about it, its numbers, and the seconds that it took."""

    name: str
    ok: bool
    summary: str
    values: Mapping[str, object] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass
class Machine:
    """What is examined: a device, an engine, what it samples in, and a folder for a tiny random model."""

    device: str
    engine: str
    dtype: str
    folder: Path

    @property
    def model(self) -> str:
        return str(self.folder / "model")

    def settings(self, *overrides: str) -> RunSettings:
        """Settings of the short run."""
        engine = {"name": self.engine, "dtype": self.dtype}
        values = {**CORRIDOR, "model": self.model, "device": self.device, "engine": engine}
        return with_overrides(parse(values, "the doctor's run"), overrides)


def examine(
    device: str = "cpu",
    engine: str = "transformers",
    dtype: str = "float32",
    learn: bool = True,
    report: Callable[[DoctorFinding], None] | None = None,
) -> list[DoctorFinding]:
    """Every check in turn; ``report`` hears of each as it is done. A check that raises has failed, and the rest go on.

    learn: also the short run, which takes most of the time.
    """
    torch.set_num_threads(1)
    found = []
    with tempfile.TemporaryDirectory(prefix="gagpo-doctor-") as folder:
        machine = Machine(device, engine, dtype, Path(folder))
        for name, check in CHECKS.items():
            if name == "learning" and not learn:
                continue
            begun = time.perf_counter()
            try:
                finding = check(machine)
            except Exception as error:  # whatever is wrong with this machine is the answer
                finding = DoctorFinding(name, False, f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
            finding.seconds = time.perf_counter() - begun
            found.append(finding)
            if report:
                report(finding)
    return found


def check_versions(machine: Machine) -> DoctorFinding:
    """Of Python and of the packages that results depend on."""
    own = {"python": platform.python_version(), **versions()}
    known = {name: str(value) for name, value in own.items() if isinstance(value, str)}
    shown = [name for name in ("python", "gagpo", "torch", "transformers") if name in known]
    summary = ", ".join(f"{name} {known[name]}" for name in shown)
    return DoctorFinding("versions", True, summary, known)


def check_device(machine: Machine) -> DoctorFinding:
    """That torch can compute on the device, and how much memory it has."""
    require_device(machine.device)
    square = torch.arange(9.0, device=machine.device).view(3, 3)
    right = bool(torch.equal((square @ square).cpu(), torch.arange(9.0).view(3, 3) @ torch.arange(9.0).view(3, 3)))
    memory = memory_here(machine.device)
    name = torch.cuda.get_device_name(machine.device) if machine.device.startswith("cuda") else platform.machine()
    values = {"device": machine.device, "name": name, "gigabytes": memory, "gpus": torch.cuda.device_count()}
    return DoctorFinding("device", right, f"{machine.device} ({name}), {memory or 0:.1f} GB", values)


def check_weights(machine: Machine) -> DoctorFinding:
    """That a model which was saved is loaded to the last bit."""
    model, tokenizer = build(SHAPE, TEXTS, seed=0)
    save_folder(model, tokenizer, Path(machine.model))
    loaded = dict(named_tensors(load_model(machine.model, "float32", machine.device)))
    other = [name for name, tensor in named_tensors(model) if not torch.equal(tensor, loaded[name].cpu())]
    summary = f"{len(loaded)} tensors, {f'{other[0]} differs' if other else 'all the same'}"
    return DoctorFinding("weights", not other, summary, {"tensors": len(loaded), "different": other})


def check_parity(machine: Machine) -> DoctorFinding:
    """That the engine's log-probabilities are those of a scoring pass, before and after it takes new weights."""
    model = load_model(machine.model, "float32", machine.device)
    tokenizer = load_tokenizer(machine.model)
    engine = make_engine(machine.engine, model, tokenizer, dtype=machine.dtype)
    gaps = {"gap": _gap(model, engine)}
    with torch.no_grad():
        generator = torch.Generator().manual_seed(1)
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator).to(parameter.device), alpha=0.02)
    engine.load_weights(named_tensors(model))
    gaps["gap_after_new_weights"] = _gap(model, engine)
    engine.close()
    worst, limit = max(gaps.values()), PARITY[machine.dtype]
    summary = f"log-probabilities {worst:.2g} nats from a scoring pass (at most {limit:g}), new weights included"
    return DoctorFinding("engine parity", worst <= limit, summary, {**gaps, "limit": limit})


@torch.no_grad()
def _gap(model: torch.nn.Module, engine: Engine) -> float:
    """The largest difference (nats) between what the engine reports of its tokens and a forward pass of the model."""
    rng = np.random.default_rng(0)
    requests = [Request(i, rng.integers(5, 250, 4 + 5 * i).astype(np.int32), i) for i in range(8)]
    worst = 0.0
    for request, response in zip(requests, engine.generate(requests, Sampling(1.0, 16)), strict=True):
        # The same tokens once more in one pass; a place predicts the token after it.
        device = next(model.parameters()).device
        ids = torch.as_tensor(np.concatenate([request.prompt_ids, response.ids]), dtype=torch.long, device=device)
        keep = torch.arange(len(request.prompt_ids) - 1, len(ids) - 1, device=device)
        logits = forward(model, ids[:-1], PackedRows([len(ids) - 1], device), keep).float()
        own = logits.log_softmax(-1).gather(-1, ids[len(request.prompt_ids) :, None])[:, 0].cpu().numpy()
        worst = max(worst, float(np.abs(own - response.logprobs).max()))
        engine.release(request.session)
    return worst


def check_memory(machine: Machine) -> DoctorFinding:
    """That an update takes as much memory as the plan says."""
    settings = machine.settings("training.microbatch_tokens=2048", "rollout.max_tokens=32")
    before = _allocated(machine.device)
    model = load_model(machine.model, "float32", machine.device)
    optimizer = torch.optim.AdamW(model.parameters())
    updater = Updater(model, optimizer, load_algorithm("cispo"), packing=Packing(2048), device=machine.device)
    counted = Allocated() if machine.device == "cpu" else None
    rows, credit, rng = _rows(32), Credit(np.ones(32), np.full(32, 32)), np.random.default_rng(0)
    if counted is None:
        torch.cuda.reset_peak_memory_stats(machine.device)
    with counted or nullcontext():
        for _ in range(2):
            updater.update(rows, credit, rng)
    held = 4 * sum(parameter.numel() for parameter in model.parameters())
    measured = counted.peak + held if counted else torch.cuda.max_memory_allocated(machine.device) - before
    elsewhere = ("KV cache", "sampling", "engine", "reference")
    parts = [part for part in plan(settings, Guess(prompt=96)).parts if not part.name.startswith(elsewhere)]
    planned = peak(parts)[0]
    off = measured / planned - 1
    values = {"measured": measured, "planned": planned, "off": off}
    summary = f"an update took {measured / 1e6:.1f} MB, planned were {planned / 1e6:.1f} ({100 * off:+.0f} %)"
    return DoctorFinding("memory", abs(off) <= MEMORY, summary, values)


def _allocated(device: str) -> int:
    return 0 if device == "cpu" else torch.cuda.memory_allocated(device)


def _rows(count: int, length: int = 128, response: int = 32) -> list[Row]:
    """Rows of random tokens, the last ``response`` of them trained on."""
    rng = np.random.default_rng(0)
    place_K = np.arange(length - response, length)
    old_K = np.full(response, -5.0, np.float32)
    made = []
    for i in range(count):
        ids = rng.integers(5, 250, length).astype(np.int32)
        made.append(Row(ids, place_K, np.full(response, i), i * response + np.arange(response), old_K, 1.0, i))
    return made


def check_speed(machine: Machine) -> DoctorFinding:
    """Tokens per second of sampling and of training, and what share of a GPU's peak that is; no speed is wrong.

    A CPU has a tiny model to do, a GPU a model of random weights in the shape of Qwen2.5-0.5B.
    """
    gpu = machine.device.startswith("cuda")
    model = _large(machine.device) if gpu else load_model(machine.model, "float32", machine.device)
    sampling, training = speeds(machine, model, 16384 if gpu else 2048)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    values: dict[str, object] = {
        "parameters": parameters,
        "sampled_per_second": sampling,
        "trained_per_second": training,
    }
    summary = f"{sampling:,.0f} tokens/s sampled, {training:,.0f} trained on ({parameters / 1e6:.1f} M parameters)"
    if not gpu:
        return DoctorFinding("speed", True, f"{summary}; no GPU here, so no share of a GPU's peak", values)
    name = torch.cuda.get_device_name(machine.device)
    reached = gpus.training_teraflops(parameters, training)
    line, share = gpus.share_line(name, reached)
    plain = gpus.product_teraflops(machine.device)
    values |= {"gpu": name, "teraflops": reached, "share_of_peak": share, "product_teraflops": plain}
    return DoctorFinding(
        "speed", True, f"{summary}: {line}; matrix products alone {gpus.share_line(name, plain)[0]}", values
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
    half = machine.device.startswith("cuda")
    updater = Updater(
        model,
        torch.optim.AdamW(model.parameters()),
        load_algorithm("cispo"),
        packing=Packing(tokens),
        autocast=lambda: torch.autocast(torch.device(machine.device).type, torch.bfloat16, enabled=half),
        device=machine.device,
    )
    count = max(32, tokens // 128)
    rows, credit, rng = _rows(count), Credit(np.ones(count), np.full(count, 32)), np.random.default_rng(0)
    updater.update(rows, credit, rng)
    return sampling, updater.update(rows, credit, rng)["train_tokens_per_second"]


def _large(device: str) -> torch.nn.Module:
    """Random weights in the shape of Qwen2.5-0.5B, 494 M parameters."""
    from transformers import AutoModelForCausalLM, Qwen2Config

    config = Qwen2Config.from_dict(LARGE)
    with torch.device(device):
        model: torch.nn.Module = AutoModelForCausalLM.from_config(config, attn_implementation=NAME, dtype=torch.float32)
    return model.eval()


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
    before = run.evaluation("before-test")
    assert before is not None
    first, last = before.success.value, results["test"].success.value
    summary = f"success {100 * first:.0f} % before, {100 * last:.0f} % after {ITERATIONS} iterations"
    values = {"before": first, "after": last, "success_by_iteration": rates}
    return DoctorFinding("learning", last >= first + RISE, summary, values)


CHECKS: dict[str, Callable[[Machine], DoctorFinding]] = {
    "versions": check_versions,
    "device": check_device,
    "weights": check_weights,
    "engine parity": check_parity,
    "memory": check_memory,
    "speed": check_speed,
    "learning": check_learning,
}
