"""Peak memory of loading a model with several ranks on this machine, compared with `gagpo plan`.

    python -m benchmarks.loading [--ranks 2] [--engine transformers] [--whole]

A model of SmolLM2-135M's shape with random weights is written as safetensors in bfloat16. Each rank is a process: it
loads policy, reference and the engine's copy as a run does, and samples the memory that is its own alone (RssAnon of
/proc, without mapped files and libraries) every few milliseconds. --whole loads whole models in every rank and shards
them afterwards, as where slices cannot be read. A difference above 15 % fails without --whole.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import torch
import yaml
from transformers import LlamaConfig, LlamaForCausalLM

from gagpo.base.child import free_port
from gagpo.base.interpreter import module_command
from gagpo.base.rank import Rank
from gagpo.base.tables import Table
from gagpo.controllers import Controllers
from gagpo.distributed.ranks import Ranks, joined
from gagpo.learning import policy as policies
from gagpo.learning.learner import Learner
from gagpo.model.sharding import unsharded_copy
from gagpo.planning.memory import PHASES
from gagpo.planning.plan import plan
from gagpo.settings import RunSettings, load
from gagpo.settings.formats import with_formats
from gagpo.sft.small_model import train_tokenizer
from gagpo.training.sampler import fill_engine_model, needs_weights

POLL_SECONDS = 0.002
TOLERANCE = 0.15
RANK_SECONDS = 600.0
GB = 1e9


def save_model(folder: Path, small: bool = False) -> None:
    """Write a model of SmolLM2-135M's shape with random weights, and the same with a single narrow layer."""
    config = LlamaConfig(
        vocab_size=300 if small else 49152,
        hidden_size=576,
        intermediate_size=64 if small else 1536,
        num_hidden_layers=1 if small else 30,
        num_attention_heads=9,
        num_key_value_heads=3,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).bfloat16().save_pretrained(folder)
    train_tokenizer(["You stand at 12."], 300).save_pretrained(folder)


def settings_of(folder: Path, ranks: int, engine: str, reads_whole: bool) -> RunSettings:
    """A run with a reference on this CPU."""
    sections = {
        "name": "loading",
        "model": str(folder),
        "processes": ranks,
        "device": "cpu",
        "environment": {"id": "gagpo.envs.testing:gagpo-test/Corridor-v0"},
        "rollout": {"tasks": ranks, "group_size": 2, "max_tokens": 8},
        "evaluation": {"tasks": ranks},
        "algorithm": {"preset": "gagpo", "kl": {"coefficient": 0.05}},
        "engine": {"name": engine},
    }
    path = folder / f"run-{ranks}-{engine}-{reads_whole}-{os.getpid()}.yaml"
    path.write_text(yaml.safe_dump(sections))
    return with_formats(load(path), "float32", "float32")


@contextmanager
def own_memory(peak: list[float]) -> Iterator[None]:
    """A context whose end appends by how many bytes this process alone grew at most."""
    done = threading.Event()
    before = highest = _own_bytes()

    def poll() -> None:
        nonlocal highest
        while not done.wait(POLL_SECONDS):
            highest = max(highest, _own_bytes())

    thread = threading.Thread(target=poll, daemon=True)
    thread.start()
    try:
        yield
    finally:
        highest = max(highest, _own_bytes())
        done.set()
        thread.join()
        peak.append(highest - before)


def _own_bytes() -> float:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return 1024.0 * next(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon"))


def measured(folder: Path, engine: str, reads_whole: bool, ranks: Ranks) -> float:
    """Peak bytes of this rank while it loads.

    A small model is loaded first: modules that are imported on the way are no part of the model.
    """
    for model in ("small", "model"):
        peak = _peak_of(folder / model, engine, reads_whole, ranks)
    return peak


def _peak_of(folder: Path, engine: str, reads_whole: bool, ranks: Ranks) -> float:
    settings = settings_of(folder, ranks.world_size, engine, reads_whole)
    torch.set_num_threads(1)
    controllers = Controllers(
        settings.algorithm.controllers, settings.training.target_kl, settings.optimizer.scale_by_groups
    )
    peak: list[float] = []
    with own_memory(peak), patch.object(policies, "empty_model", _no_slices if reads_whole else policies.empty_model):
        policy = policies.load_policy(settings, None, None, ranks)
        model = unsharded_copy(policy.model, settings.engine.dtype, needs_weights(settings, ranks))
        learner = Learner(settings, policy, controllers, ranks)
        fill_engine_model(settings, model, learner.model, ranks)
    return peak[0]


def _no_slices(name: str, dtype: str = "float32", **options: object) -> None:
    """Stand in for ``empty_model`` where slices cannot be read."""


def planned(folder: Path, engine: str, ranks: int) -> float:
    """Bytes of the phase "loading" in the plan of a rank."""
    parts = plan(settings_of(folder, ranks, engine, False)).parts
    return sum(part.bytes for part in parts if PHASES[0] in part.phases and part.name != "program")


def measure(folder: Path, engine: str, ranks: int, reads_whole: bool) -> list[float]:
    """Peak bytes of each rank."""
    port = free_port()
    options = ["--rank", str(folder), "--engine", engine, *(["--whole"] if reads_whole else [])]
    processes = []
    for rank in range(ranks):
        environment = {**os.environ, **Rank(rank, ranks, rank, ranks).variables("127.0.0.1", port)}
        command = module_command("benchmarks.loading", *options)
        processes.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
    try:
        outputs = [process.communicate(timeout=RANK_SECONDS)[0] for process in processes]
    finally:  # a rank that hangs, or waits for one that failed
        for process in processes:
            process.kill()
    if any(process.returncode for process in processes):
        raise SystemExit("a rank failed")
    return [json.loads(output.splitlines()[-1]) for output in outputs]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--engine", default="transformers", help="transformers, or vllm for servers elsewhere")
    parser.add_argument("--whole", action="store_true", help="load whole models in every rank")
    parser.add_argument("--rank", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        with joined(120) as ranks:
            print(json.dumps(measured(options.rank, options.engine, options.whole, ranks)))
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        save_model(folder / "small", small=True)
        save_model(folder / "model")
        peaks = measure(folder, options.engine, options.ranks, options.whole)
        expected = planned(folder / "model", options.engine, options.ranks)
    rows = [
        [str(rank), f"{peak / GB:.3f}", f"{expected / GB:.3f}", f"{peak / expected - 1:+.1%}"]
        for rank, peak in enumerate(peaks)
    ]
    print("\n".join(Table(["rank", "peak, GB", "plan, GB", "difference"], rows).lines()))
    return int(not options.whole and any(abs(peak / expected - 1) > TOLERANCE for peak in peaks))


if __name__ == "__main__":
    sys.exit(main())
