"""The result of a check, and the machine as seen by the process that runs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from gagpo.agents.engines.flat.attention import NAME
from gagpo.agents.model import load_model, load_tokenizer
from gagpo.agents.shape import Shape, sizes
from gagpo.distributed.ranks import Ranks
from gagpo.learning.batch import Row
from gagpo.settings import RunSettings, parse, with_overrides
from gagpo.settings.machine import require_device
from gagpo.sft.small_model import ModelShape, build, save_folder

Verdict = Literal["failed", "warning", "ok", "skipped"]
WORST_FIRST: tuple[Verdict, ...] = ("failed", "warning", "ok", "skipped")

ITERATIONS = 10
SHAPE = ModelShape(layers=4, width=128, heads=4, key_value_heads=2, feed_forward=384, context=512)
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
    "sft": {
        "episodes": 60,
        "noise": 0.5,
        "mistakes": 0.0,
        "steps": 25,
        "batch": 32,
        "learning_rate": 1e-2,
        "model": {"layers": 1, "width": 32, "vocabulary": 300},
    },
}


@dataclass
class Finding:
    """The result of one check.

    verdict: ``failed``; ``warning`` if something works but is slow or scarce; ``ok``; ``skipped`` if not applicable.
    summary: one line.
    values: numbers, as plain JSON.
    advice: what to do about a failure or warning.
    name, seconds: of the check; filled in by the caller.
    """

    verdict: Verdict
    summary: str
    values: Mapping[str, object] = field(default_factory=dict)
    advice: str = ""
    name: str = ""
    seconds: float = 0.0

    def lines(self) -> list[str]:
        """The finding as the report shows it."""
        shown = [f"{self.verdict:8s} {self.name:22s} {self.summary} ({self.seconds:.1f} s)"]
        return [*shown, f"{'':31s} -> {self.advice}"] if self.advice else shown


Check = Callable[["Machine"], Finding]
"""A function at the top level of a module, importable in another process."""


def pass_or_fail(ok: bool, summary: str, values: Mapping[str, object], advice: str) -> Finding:
    """A finding that is ``ok``, or ``failed`` with ``advice``."""
    return Finding("ok" if ok else "failed", summary, values, "" if ok else advice)


def worst_of(findings: Sequence[Finding]) -> Finding:
    """Merge the findings of all ranks: the worst one, with the values of each rank.

    >>> worst_of([Finding("ok", "fine"), Finding("failed", "no space")]).summary
    'rank 1 of 2: no space'
    """
    worst = min(findings, key=lambda one: WORST_FIRST.index(one.verdict))
    if len(findings) == 1:
        return worst
    rank = next(number for number, one in enumerate(findings) if one is worst)
    who = "" if all(one.verdict == worst.verdict for one in findings) else f"rank {rank} of {len(findings)}: "
    values = {**worst.values, "ranks": [dict(one.values) for one in findings]}
    return replace(worst, values=values, summary=f"{who}{worst.summary}")


@dataclass
class Machine:
    """The machine as seen by this process. Models are created with random weights; nothing is downloaded.

    device: of this process.
    dtype: number format of sampling.
    folder: for files of the checks.
    runs: folder of runs, whose disk is checked.
    processes: number of ranks to check for.
    ranks: of this process.
    """

    device: str
    engine: str
    dtype: str
    folder: Path
    runs: Path = Path("runs")
    processes: int = 1
    ranks: Ranks = field(default_factory=Ranks)

    @property
    def on_gpu(self) -> bool:
        return self.device.startswith("cuda")

    @cached_property
    def model(self) -> str:
        """The folder of a tiny model. The first rank creates it, so all ranks must call this together."""
        path = self.folder / "model"

        def make() -> None:
            if not path.exists():
                save_folder(*build(SHAPE, TEXTS, seed=0), path)

        self.ranks.of_first(make)
        return str(path)

    def tiny(self) -> tuple[torch.nn.Module, Any]:
        """The tiny model in float32 on the device, and its tokenizer."""
        return load_model(self.model, "float32", self.device), load_tokenizer(self.model)

    def large(self) -> tuple[torch.nn.Module, Shape]:
        """A model in the shape of Qwen2.5-0.5B, and its sizes."""
        from transformers import AutoModelForCausalLM, Qwen2Config

        config = Qwen2Config.from_dict(LARGE)
        with torch.random.fork_rng(devices=[self.device] if torch.cuda.is_available() else []):
            torch.manual_seed(0)
            with torch.device(self.device):
                model = AutoModelForCausalLM.from_config(config, attn_implementation=NAME, dtype=torch.float32)
        return model.eval(), sizes(config)

    def settings(self, *overrides: str) -> RunSettings:
        """Settings of a short run in one process."""
        engine = {"name": self.engine, "dtype": self.dtype}
        values = {**CORRIDOR, "model": self.model, "device": self.device.partition(":")[0], "engine": engine}
        return with_overrides(parse(values, "the doctor's run"), list(overrides))


def rank_device(device: str, ranks: Ranks) -> str:
    """The device of this rank.

    Raises:
        RuntimeError: if there are more ranks than GPUs.
        SettingsError: if the device does not exist.
    """
    if not ranks.alone and device.startswith("cuda") and torch.cuda.device_count() < ranks.local_world_size:
        count = torch.cuda.device_count()
        raise RuntimeError(f"{ranks.local_world_size} processes and {count} GPUs: say --processes {max(1, count)}")
    require_device(device)
    return ranks.device(device)


def random_rows(count: int, length: int = 128, response: int = 32) -> list[Row]:
    """Rows of random tokens; the last ``response`` are trained on."""
    rng = np.random.default_rng(0)
    place_K = np.arange(length - response, length)
    old_K = np.full(response, -5.0, np.float32)
    made = []
    for i in range(count):
        ids = rng.integers(5, 250, length).astype(np.int32)
        made.append(Row(ids, place_K, np.full(response, i), i * response + np.arange(response), old_K, 1.0, i))
    return made
