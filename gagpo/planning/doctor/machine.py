"""What is examined, and what is found: a machine as one process sees it, and the finding of one step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
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

Verdict = Literal["ok", "warning", "failed", "left out"]
WORST_FIRST: tuple[Verdict, ...] = ("failed", "warning", "ok", "left out")

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
class DoctorFinding:
    """What a step found: its verdict, one line about it, its numbers, what to do, and the seconds that it took.

    ``left out``: it could not be asked here, and the line says why. ``warning``: it works, and something is slow or
    scarce.
    """

    name: str
    verdict: Verdict
    summary: str
    values: Mapping[str, object] = field(default_factory=dict)
    advice: str = ""
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        return self.verdict != "failed"

    def lines(self) -> list[str]:
        """As the report shows it."""
        shown = [f"{self.verdict:8s} {self.name:22s} {self.summary} ({self.seconds:.1f} s)"]
        return [*shown, f"{'':31s} -> {self.advice}"] if self.advice else shown


def judged(
    name: str, ok: bool, summary: str, values: Mapping[str, object] | None = None, advice: str = ""
) -> DoctorFinding:
    """A finding that has failed unless ``ok``; advice: for that case."""
    return DoctorFinding(name, "ok" if ok else "failed", summary, values or {}, "" if ok else advice)


def left_out(name: str, why: str) -> DoctorFinding:
    return DoctorFinding(name, "left out", why)


def worst_of(findings: Sequence[DoctorFinding]) -> DoctorFinding:
    """The findings of all ranks as one: the worst of them, which names its rank, with the numbers of each.

    >>> worst_of([DoctorFinding("x", "ok", "fine"), DoctorFinding("x", "failed", "no room")]).summary
    'rank 1 of 2: no room'
    """
    worst = min(findings, key=lambda one: WORST_FIRST.index(one.verdict))
    if len(findings) == 1:
        return worst
    values = {**worst.values, "ranks": [dict(one.values) for one in findings]}
    rank = next(number for number, one in enumerate(findings) if one is worst)
    alike = all(one.verdict == worst.verdict for one in findings)
    who = "" if alike else f"rank {rank} of {len(findings)}: "
    return replace(worst, values=values, summary=f"{who}{worst.summary}")


@dataclass
class Machine:
    """What is examined, as this process sees it. Nothing is downloaded: models are made on the spot.

    device: its own. engine: to prove. dtype: what it samples in. folder: for what is written on the way. runs: where
    run folders will lie. processes: how many ranks the machine is examined for. ranks: this process's place among them.
    """

    device: str
    engine: str
    dtype: str
    folder: Path
    runs: Path = Path("runs")
    processes: int = 1
    ranks: Ranks = field(default_factory=Ranks)

    @property
    def on_card(self) -> bool:
        return self.device.startswith("cuda")

    @cached_property
    def model(self) -> str:
        """The folder of a tiny model with random weights, made by the first rank; all ask for it together."""
        path = self.folder / "model"

        def make() -> None:
            if not path.exists():
                save_folder(*build(SHAPE, TEXTS, seed=0), path)

        self.ranks.of_first(make)
        return str(path)

    def tiny(self) -> tuple[torch.nn.Module, Any]:
        """That model in float32 on the device, and its tokenizer."""
        return load_model(self.model, "float32", self.device), load_tokenizer(self.model)

    def sized(self) -> tuple[torch.nn.Module, Shape]:
        """A model that says something of the device, and its sizes: on a card, random weights of Qwen2.5-0.5B's shape.

        494 M parameters; elsewhere the tiny model.
        """
        if not self.on_card:
            model = self.tiny()[0]
            return model, sizes(model.config)  # type: ignore[arg-type]
        from transformers import AutoModelForCausalLM, Qwen2Config

        config = Qwen2Config.from_dict(LARGE)
        with torch.random.fork_rng(devices=[self.device] if torch.cuda.is_available() else []):
            torch.manual_seed(0)  # the same on every rank
            with torch.device(self.device):
                model = AutoModelForCausalLM.from_config(config, attn_implementation=NAME, dtype=torch.float32)
        return model.eval(), sizes(config)

    def settings(self, *overrides: str) -> RunSettings:
        """Settings of a short run, of as many processes as there are ranks here."""
        engine = {"name": self.engine, "dtype": self.dtype}
        values = {**CORRIDOR, "model": self.model, "device": self.device.partition(":")[0], "engine": engine}
        world = self.ranks.world
        several = [f"processes={world}", f"rollout.tasks={8 * world}"] if world > 1 else []
        return with_overrides(parse(values, "the doctor's run"), [*several, *overrides])


def rank_device(device: str, ranks: Ranks) -> str:
    """The device of this rank; SettingsError where the machine does not have it."""
    if not ranks.alone and device.startswith("cuda") and torch.cuda.device_count() < ranks.local_world:
        count = torch.cuda.device_count()
        raise RuntimeError(f"{ranks.local_world} processes and {count} cards: say --processes {max(1, count)}")
    require_device(device)
    return ranks.device(device)


def some_rows(count: int, length: int = 128, response: int = 32) -> list[Row]:
    """Rows of random tokens, the last ``response`` of them trained on."""
    rng = np.random.default_rng(0)
    place_K = np.arange(length - response, length)
    old_K = np.full(response, -5.0, np.float32)
    made = []
    for i in range(count):
        ids = rng.integers(5, 250, length).astype(np.int32)
        made.append(Row(ids, place_K, np.full(response, i), i * response + np.arange(response), old_K, 1.0, i))
    return made


def allocated(device: str) -> int:
    """Bytes that torch holds of a card; 0 for a CPU, which keeps no count."""
    return torch.cuda.memory_allocated(device) if device.startswith("cuda") else 0


@contextmanager
def waited(device: str) -> Iterator[None]:
    """What a card was given to do within the block is done at its end, as it was at its beginning."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
    yield
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
