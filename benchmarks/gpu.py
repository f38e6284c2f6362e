"""What the suite does on a GPU, in at most six minutes: every stage is one command with a deadline.

    python -m benchmarks.gpu                          # on a machine with a GPU; adds a section to lab/gpu.md
    python -m benchmarks.gpu --dry --out /tmp/gpu.md  # the same stages with a tiny model on a CPU, in a minute or two

Stages, in this order: the doctor; SFT and GAGPO of SmolLM2-135M in bfloat16; one step of FSDP2 with one rank
under NCCL, compared with the same step of unsharded weights; LoRA; a run that is killed and resumed. Peak memory is
compared with `gagpo plan`, and the decoding rate is read from the metrics. A stage that fails or has no time left is
written down as such, and the others go on; the exit status is 1 if one failed.

The model must be there already: `gagpo models get smollm2-135m` (or --model FOLDER); the stages download nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch

from gagpo.base import durable
from gagpo.base.child import free_port
from gagpo.base.errors import first_line
from gagpo.base.interpreter import module_command
from gagpo.base.rank import Rank
from gagpo.base.tables import Table

ROOT = Path(__file__).parents[1]
SECONDS = 360.0  # of all stages
PLAN_SECONDS = 600.0  # for `gagpo plan`, which takes a few where nothing else runs
GB = 1e9
PEAK = "peak of torch: "  # begins the line of a measured stage
TOLERANCE = {"bfloat16": 2e-2, "float32": 1e-4}  # of FSDP2's gradient norm, relative to that of unsharded weights
NOT_COVERED = (
    "several GPUs, several machines, vLLM on a GPU, sleeping servers, NCCL between ranks: this script uses one GPU"
)

TINY = """
name: tiny
model: {folder}/tiny-model
threads: 1
environment: {{id: "gagpo.envs.testing:gagpo-test/Corridor-v0", kwargs: {{max_turns: 8}}}}
context: {{history: 0}}
rollout: {{tasks: 2, group_size: 4, max_tokens: 3, workers: 0}}
algorithm: {{preset: gagpo, kl: {{coefficient: 0.0}}}}
optimizer: {{learning_rate: 5.0e-3}}
training: {{iterations: 1, minibatches: 2, save_every: 1, dtype: bfloat16}}
engine: {{dtype: bfloat16}}
evaluation: {{splits: [], before: false}}
sft:
  episodes: 20
  noise: 0.5
  mistake_rate: 0.0
  steps: 4
  batch: 16
  model: {{num_layers: 1, hidden_size: 32, vocab_size: 300}}
"""
SMOLLM2 = ("evaluation.splits=[]", "training.save_every=1", "rollout.tasks=4", "environment.kwargs.max_turns=8")


@dataclass(frozen=True)
class Setup:
    """What the stages run.

    folder: of their files, removed at the end.
    device: cuda, or cpu in a dry run.
    config: a settings file or a shipped config.
    overrides: of every stage.
    base: the model that SFT starts from; None where it makes one.
    """

    folder: Path
    device: str
    config: str
    overrides: tuple[str, ...]
    base: Path | None

    @property
    def model(self) -> Path:
        return self.folder / "model"

    @property
    def runs(self) -> Path:
        return self.folder / "runs"

    @classmethod
    def of(cls, folder: Path, dry: bool, base: Path) -> Setup:
        """The setup of a GPU, or of a dry run."""
        common = (f"model={folder / 'model'}", "trackers=[]")
        if dry:
            config = folder / "tiny.yaml"
            config.write_text(TINY.format(folder=folder), encoding="utf-8")
            return cls(folder, "cpu", str(config), ("device=cpu", *common), None)
        overrides = ("device=cuda", "threads=4", *SMOLLM2, *common)
        return cls(folder, "cuda", "alfworld-smollm2", overrides, base)

    def words(self, command: str, *more: str) -> list[str]:
        """The arguments of a command of gagpo with this setup."""
        return [command, self.config, *self.overrides, *more]


@dataclass
class StageResult:
    """verdict: ok, failed or skipped. text: what it showed, on one line."""

    name: str
    verdict: str
    seconds: float
    text: str = ""


@dataclass
class Report:
    """The results so far, and the time that is left."""

    deadline: float
    results: list[StageResult] = field(default_factory=list)

    @property
    def left(self) -> float:
        return self.deadline - time.monotonic()

    def run(self, name: str, stage: Callable[[float], str]) -> None:
        """Run a stage with the time that is left; a failure is a result."""
        if self.left < 5.0:
            self._add(StageResult(name, "skipped", 0.0, "no time left"))
            return
        begun = time.monotonic()
        try:
            verdict, text = "ok", stage(self.left)
        except (StageFailed, OSError, ValueError, KeyError, StopIteration) as error:
            verdict, text = "failed", first_line(error, 300)
        self._add(StageResult(name, verdict, time.monotonic() - begun, text))

    def _add(self, result: StageResult) -> None:
        self.results.append(result)
        print(f"{result.verdict:8s} {result.name:18s} {result.seconds:6.1f} s  {result.text}", flush=True)


class StageFailed(Exception):
    """A stage's command failed, or showed something else than it should."""


# Commands -------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def started(words: Sequence[str], variables: dict[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    """A command in a process group of its own, which is killed at the end of the block if it still runs."""
    process = subprocess.Popen(
        words,
        cwd=ROOT,
        env={**os.environ, **(variables or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def output_of(words: Sequence[str], seconds: float, variables: dict[str, str] | None = None) -> str:
    """The output of a command. Raises StageFailed if it fails, with its last line, or after ``seconds``."""
    with started(words, variables) as process:
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            raise StageFailed(f"took more than {seconds:.0f} s") from None
    if process.returncode:
        lines = [line for line in output.splitlines() if line.strip()] or ["no output"]
        raise StageFailed(f"exit status {process.returncode}: {lines[-1][:250]}")
    return output


def measured(words: Sequence[str], seconds: float) -> tuple[str, float]:
    """The output of a command of gagpo, and the peak of its memory in bytes: torch's on a GPU, else resident."""
    output = output_of(module_command("benchmarks.gpu", "--measured", *words), seconds)
    line = next(line for line in reversed(output.splitlines()) if line.startswith(PEAK))
    return output, float(line.removeprefix(PEAK))


def planned_peak(setup: Setup, *overrides: str) -> float:
    """The peak in bytes that `gagpo plan` prints."""
    words = module_command("gagpo", *setup.words("plan", *overrides), "--gpu-memory", "10000", "--json")
    return float(json.loads(output_of(words, PLAN_SECONDS).splitlines()[-1])["peak"])


def metrics_of(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


# Stages ---------------------------------------------------------------------------------------------------------------


def doctor(setup: Setup, seconds: float) -> str:
    words = ["doctor", "--device", setup.device, "--dtype", "bfloat16", "--runs", str(setup.runs)]
    lines = output_of(module_command("gagpo", *words), seconds).splitlines()
    return "; ".join(line for line in lines if line.startswith(("warning", "All checks"))) or lines[-1]


def sft(setup: Setup, seconds: float) -> str:
    more = [] if setup.base is None else [f"sft.base_model={setup.base}", "sft.episodes=80", "sft.steps=20"]
    _, peak = measured(setup.words("sft", *more), seconds)
    return f"peak {peak / GB:.2f} GB"


def train(setup: Setup, seconds: float) -> str:
    _, peak = measured(
        [*setup.words("train", "name=gagpo", "training.iterations=2"), "--runs", str(setup.runs)], seconds
    )
    rows = metrics_of(setup.runs / "gagpo")
    rate = rows[-1]["tokens_per_second"]
    last = rows[-1]
    return (
        f"{compared(peak, planned_peak(setup))}; generating {last['seconds_generate']:.1f} s, update "
        f"{last['seconds_train']:.1f} s, {rate:,.0f} response tokens/s of the iteration"
    )


def decoding(setup: Setup, seconds: float) -> str:
    """Response tokens per second of sampling alone, from the metrics of the run before."""
    first, last = metrics_of(setup.runs / "gagpo")[-2:]
    tokens = (last["turns_total"] - first["turns_total"]) * last["response_tokens"]
    return f"{tokens / last['seconds_generate']:,.0f} response tokens/s, prompts included"


def fsdp2(setup: Setup, seconds: float) -> str:
    """One step of sharded weights next to one of unsharded ones."""
    variables = Rank(0, 1, 0, 1).variables("127.0.0.1", free_port())
    words = module_command("benchmarks.gpu", "--step", str(setup.model), "--device", setup.device)
    result = json.loads(output_of(words, seconds, variables).splitlines()[-1])
    gap = abs(result["sharded"] / result["whole"] - 1.0)
    text = f"{result['backend']}: gradient norm {result['sharded']:.5g}, unsharded {result['whole']:.5g}"
    if not gap <= TOLERANCE["bfloat16"]:
        raise StageFailed(f"{text}: differ by {gap:.1%}")
    return f"{text} ({gap:.1e})"


def lora(setup: Setup, seconds: float) -> str:
    adapter = ("lora.rank=16", "lora.base_dtype=bfloat16")
    words = setup.words("train", "name=lora", "training.iterations=1", *adapter)
    _, peak = measured([*words, "--runs", str(setup.runs)], seconds)
    return compared(peak, planned_peak(setup, *adapter))


def kill_and_resume(setup: Setup, seconds: float) -> str:
    """Kill a run after its first checkpoint, and resume it to its end."""
    run = setup.runs / "killed"
    words = [*setup.words("train", "name=killed", "training.iterations=3"), "--runs", str(setup.runs), "--quiet"]
    deadline = time.monotonic() + seconds
    with started(module_command("gagpo", *words)) as process:
        while not list(run.glob("checkpoints/iteration-*/manifest.json")):
            if process.poll() is not None:
                raise StageFailed(f"the run ended before it was killed, status {process.returncode}")
            if time.monotonic() > deadline:
                raise StageFailed("no checkpoint in time")
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    before = len(metrics_of(run))
    output_of(module_command("gagpo", "train", "--resume", str(run), "--quiet"), deadline - time.monotonic())
    iterations = [int(row["iteration"]) for row in metrics_of(run)]
    if iterations != [1, 2, 3]:
        raise StageFailed(f"iterations after the resumption: {iterations}")
    return f"killed with {before} iterations recorded; resumed to 3"


def compared(peak: float, plan: float) -> str:
    return f"peak {peak / GB:.2f} GB, planned {plan / GB:.2f} GB ({peak / plan - 1:+.0%})"


STAGES: dict[str, Callable[[Setup, float], str]] = {
    "doctor": doctor,
    "SFT": sft,
    "GAGPO": train,
    "decoding": decoding,
    "FSDP2, one rank": fsdp2,
    "LoRA": lora,
    "kill and resume": kill_and_resume,
}


# In the processes of stages -------------------------------------------------------------------------------------------


def run_measured(words: Sequence[str]) -> None:
    """Run a command of gagpo in this process, then print the peak of its memory."""
    from gagpo.cli.main import app

    try:
        app(list(words), standalone_mode=False)
    finally:
        peak = float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
        if torch.cuda.is_available():
            peak = float(torch.cuda.max_memory_allocated())
        print(f"\n{PEAK}{peak}", flush=True)


def run_step(model_folder: str, device: str) -> None:
    """Print the gradient norm of one step with unsharded weights, and with weights that FSDP2 shards over one rank."""
    backend = "nccl" if device == "cuda" else "gloo"
    torch.distributed.init_process_group(backend)
    try:
        whole = _norm(model_folder, device, sharded=False)
        norms = {"backend": backend, "whole": whole, "sharded": _norm(model_folder, device, sharded=True)}
    finally:
        torch.distributed.destroy_process_group()
    print(json.dumps(norms))


def _norm(model_folder: str, device: str, sharded: bool) -> float:
    from torch.distributed.device_mesh import init_device_mesh

    from gagpo.algorithms import load as load_algorithm
    from gagpo.credit import Credit
    from gagpo.data import Row
    from gagpo.learning.packing import Packing
    from gagpo.learning.update import Updater, UpdateSettings
    from gagpo.model.dtypes import autocast
    from gagpo.model.loading import load_model
    from gagpo.model.networks import Networks
    from gagpo.model.sharding import shard

    model = load_model(model_folder, "float32", device)
    if sharded:
        shard(model, init_device_mesh(device, (1,)), "bfloat16")
    rng = np.random.default_rng(0)
    count, length, response = 8, 64, 16
    position_K = np.arange(length - response, length)
    rows = []
    for i in range(count):
        ids = rng.integers(5, 250, length).astype(np.int32)
        old_K = np.full(response, -5.0, np.float32)
        rows.append(Row(ids, position_K, np.full(response, i), i * response + np.arange(response), old_K, 1.0, i))
    networks = Networks(model, autocast=lambda: autocast(device, "bfloat16"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
    updater = Updater(networks, optimizer, load_algorithm("cispo"), UpdateSettings(packing=Packing(1024)))
    credit = Credit(np.linspace(-1.0, 1.0, count), np.full(count, response))
    return float(updater.update(rows, credit, rng)["grad_norm"])


# The page -------------------------------------------------------------------------------------------------------------


def section(report: Report, setup: Setup) -> str:
    """The results as a section of lab/gpu.md."""
    gpu = torch.cuda.get_device_name() if setup.device == "cuda" else f"no GPU (dry run), {platform.machine()}"
    date = datetime.now(UTC).date().isoformat()
    rows = [
        [result.name, result.verdict, f"{result.seconds:.0f}", result.text.replace("|", "/")]
        for result in report.results
    ]
    table = Table(["stage", "result", "s", "what it showed"], rows, words=(0, 1, 3))
    head = f"## {date}, {gpu}\n\ntorch {torch.__version__}, Python {platform.python_version()}; `{setup.config}`"
    if setup.device == "cpu":
        head = f"{head.partition(';')[0]}; a tiny model"
    return f"{head}\n\n" + "\n".join(table.markdown()) + f"\n\nNot covered: {NOT_COVERED}.\n"


PAGE = """# Runs on a GPU

What `python -m benchmarks.gpu` printed, newest first. Each stage is one command of the suite with a small setting.
"""


def add_section(page: Path, text: str) -> None:
    """Put a section on the page, above the earlier ones."""
    before = page.read_text(encoding="utf-8") if page.exists() else PAGE
    head, mark, older = before.partition("\n## ")
    durable.write_text(page, f"{head.rstrip()}\n\n{text}{mark}{older}")


def main() -> int:
    words = sys.argv[1:]
    if words[:1] == ["--measured"]:
        run_measured(words[1:])
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry", action="store_true", help="a tiny model on a CPU")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="time of all stages (default %(default)s)")
    parser.add_argument("--model", type=Path, default=Path("data/models/smollm2-135m"), help="folder of SmolLM2")
    parser.add_argument("--out", type=Path, default=ROOT / "lab" / "gpu.md", help="page to add the results to")
    parser.add_argument("--stages", nargs="+", choices=list(STAGES), default=list(STAGES), help="only these")
    parser.add_argument("--step", help=argparse.SUPPRESS)
    parser.add_argument("--device", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step:
        run_step(options.step, options.device)
        return 0
    if not options.dry and not torch.cuda.is_available():
        parser.error("there is no GPU here: run it with --dry for a tiny model on a CPU")
    if not options.dry and not (options.model / "config.json").is_file():
        parser.error(
            f"there is no model in {options.model}: run `gagpo models get smollm2-135m`, or name --model FOLDER"
        )
    with tempfile.TemporaryDirectory(prefix="gagpo-gpu-") as folder:
        setup = Setup.of(Path(folder), options.dry, options.model.absolute())
        report = Report(time.monotonic() + options.seconds)
        for name in options.stages:
            report.run(name, lambda seconds, stage=STAGES[name]: stage(setup, seconds))  # type: ignore[misc]
        add_section(options.out, section(report, setup))
    print(f"written to {options.out}; not covered: {NOT_COVERED}")
    return int(any(result.verdict == "failed" for result in report.results))


if __name__ == "__main__":
    sys.exit(main())
