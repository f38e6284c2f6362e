"""What a machine does with this suite, in one table to send: CPU, number formats, products, iterations, sampling.

    python -m benchmarks.machine                                  # five to ten minutes on two cores
    python -m benchmarks.machine --model data/models/smollm2-135m # also tokens per second of SmolLM2
    python -m benchmarks.machine --formats                        # also the same iterations in every pair of formats
    sh .ci/avx2 .venv/bin/python -m benchmarks.machine            # as on a CPU with AVX2 and nothing newer

Everything runs on one thread and is counted in CPU seconds, so that another busy process changes little. With
``--formats`` the pairs take turns, because a machine gets slower and faster over minutes. ``docs/status.md`` collects
the tables.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from gagpo.base.tables import Table
from gagpo.model.chosen_format import formats_for, native_bfloat16
from gagpo.planning.profile import profile
from gagpo.settings import load

QUICKSTARTS = ("alfworld-quickstart", "webshop-quickstart", "math-quickstart")
PAIRS = (("float32", "float32"), ("bfloat16", "float32"), ("bfloat16", "bfloat16"))
"""Formats of training and sampling."""
WIDTHS = {"house model": 192, "SmolLM2-135M": 576}
PRODUCT = (2048, 576, 1536)  # rows, inputs and outputs of a product of SmolLM2's feed-forward block


@dataclass(frozen=True)
class Product:
    """Billions of operations per second of one core: of a layer, and of its gradients."""

    forward: float
    inputs: float
    weights: float


def cpu_name() -> str:
    """The CPU's name, and the instructions that decide about number formats."""
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8") if Path("/proc/cpuinfo").exists() else ""
    name = match[1] if (match := re.search(r"model name\s*: (.*)", text)) else platform.processor() or "unknown"
    flags = set(match[1].split()) if (match := re.search(r"^flags\s*: (.*)", text, re.MULTILINE)) else set()
    shown = [flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if flag in flags]
    return f"{name}, {os.cpu_count()} cores ({', '.join(shown) or platform.machine()})"


def products(dtype: torch.dtype, repetitions: int = 5) -> Product:
    """Rates of one core, the fastest of some repetitions."""
    rows, inputs, outputs = PRODUCT
    x, weight = torch.randn(rows, inputs).to(dtype), torch.randn(outputs, inputs).to(dtype)
    gradient = torch.randn(rows, outputs).to(dtype)

    def rate(work: object) -> float:
        assert callable(work)
        work()
        seconds = []
        for _ in range(repetitions):
            started = time.process_time()
            work()
            seconds.append(time.process_time() - started)
        return 2 * rows * inputs * outputs / min(seconds) / 1e9

    return Product(
        rate(lambda: torch.nn.functional.linear(x, weight)),
        rate(lambda: gradient @ weight),
        rate(lambda: gradient.t() @ x),
    )


def iteration_seconds(config: str, iterations: int, *overrides: str) -> float:
    """CPU seconds of an iteration on one thread, after a first one."""
    return sum(profile(load(config, ["threads=1", *overrides]), iterations).cpu.values())


def format_seconds(config: str, rounds: int, iterations: int, *overrides: str) -> dict[str, list[float]]:
    """CPU seconds of an iteration in each pair of formats; the pairs take turns, in both orders."""
    seconds: dict[str, list[float]] = {"/".join(pair): [] for pair in PAIRS}
    for number in range(rounds):
        for training, sampling in PAIRS if number % 2 == 0 else reversed(PAIRS):
            formats = (f"training.dtype={training}", f"engine.dtype={sampling}")
            seconds[f"{training}/{sampling}"].append(iteration_seconds(config, iterations, *formats, *overrides))
    return seconds


def tokens_per_second(model: str) -> float:
    """Tokens per CPU second that the sampler gives with ``model`` in the format that the machine chooses."""
    from benchmarks.sampling import ours, play
    from gagpo.model.loading import width_of

    episodes, turns, tokens = 16, 2, 16
    sampler = ours(model, formats_for("cpu", width_of(model)).sampling)
    play(sampler, 8, 1, tokens, seed=0)
    return episodes * turns * tokens / play(sampler, episodes, turns, tokens, seed=1)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure this machine.")
    parser.add_argument("--iterations", type=int, default=2, help="measured iterations of each config")
    parser.add_argument("--rounds", type=int, default=2, help="rounds of --formats")
    parser.add_argument("--configs", nargs="+", default=QUICKSTARTS)
    parser.add_argument("--model", help="a larger model: its tokens per second, and with --formats its iterations")
    parser.add_argument("--formats", action="store_true", help="compare all pairs of formats")
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    options = parser.parse_args()
    torch.set_num_threads(1)

    record: dict[str, object] = {"cpu": cpu_name(), "torch": torch.__version__, "reason": native_bfloat16("cpu")[1]}
    rows = [["CPU", cpu_name()], ["torch", torch.__version__]]
    rows += [[f"dtype auto, {name}", str(formats_for("cpu", width))] for name, width in WIDTHS.items()]
    for name in ("float32", "bfloat16"):
        measured = products(getattr(torch, name))
        record[name] = asdict(measured)
        rates = f"{measured.forward:.0f}, {measured.inputs:.0f}, {measured.weights:.0f}"
        rows.append([f"GFLOP/s in {name}: layer, gradients of inputs and weights", rates])
    for config in options.configs:
        record[config] = iteration_seconds(config, options.iterations)
        rows.append([f"CPU s of an iteration, {config}", f"{record[config]:.1f}"])
    if options.model:
        record["tokens_per_second"] = tokens_per_second(options.model)
        rows.append([f"tokens per CPU s, {options.model}", f"{record['tokens_per_second']:.0f}"])
    if options.formats:
        for config in options.configs:
            by_pair = record[f"{config}, formats"] = format_seconds(config, options.rounds, options.iterations)
            for pair, seconds in by_pair.items():
                text = f"{statistics.median(seconds):.1f} [{min(seconds):.1f}, {max(seconds):.1f}]"
                rows.append([f"CPU s of an iteration, {config}, {pair}", text])
    print("\n".join(Table(["", "this machine"], rows).markdown()))
    if options.json:
        options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
