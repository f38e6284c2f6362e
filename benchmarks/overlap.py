"""Seconds of an iteration with `rollout.ahead: 1`, compared with `ahead: 0`.

    python -m benchmarks.overlap [--iterations 12] [--rounds 2] [--asleep]

A corridor whose steps sleep 50 ms, a small model whose responses are of uneven length, one torch thread. The two runs
take turns in both orders. Wall time between two iterations; the first three of a run and evaluations are left out.

--asleep: the engine sleeps 4 ms for a pass and 0.5 ms for each token of it, and an update sleeps 50 ms for each
episode, where else they compute: for a machine whose cores are taken. Threads, environments and trainer are real.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from gagpo.agents.engines.base import Finished, Request, Response, Sampling
from gagpo.data import Episode
from gagpo.distributed import launch
from gagpo.learning.learner import Learner, LearningResult
from gagpo.runs.run_folder import RunFolder
from gagpo.settings import RunSettings, parse
from gagpo.settings.files import dump
from gagpo.sft.run import sft
from gagpo.training.events import Event, IterationFinished
from gagpo.training.trainer import train

LEFT_OUT = 3
ASLEEP = "GAGPO_BENCHMARK_ASLEEP"
PASS, EACH, UPDATE = 4e-3, 0.5e-3, 0.8  # seconds that are slept
BASE: dict[str, Any] = {
    "name": "overlap",
    "threads": 1,
    "environment": {"id": "gagpo.envs.testing:gagpo-test/Sleepy-v0", "kwargs": {"max_turns": 8, "seconds": 0.05}},
    "context": {"history": "full"},
    "rollout": {"tasks": 4, "group_size": 4, "max_tokens": 16, "workers": 8},
    "algorithm": {"preset": "gagpo", "kl": {"coefficient": 0.0}, "correction": {"name": "tis"}},
    "optimizer": {"learning_rate": 1e-5},
    "training": {"epochs": 4, "minibatches": 2, "save_every": 10_000, "save_episodes_every": 1},
    "evaluation": {"splits": ["test"], "tasks": 1, "before": False},
    "trackers": [],
    "sft": {
        "episodes": 40,
        "noise": 0.5,
        "mistake_rate": 0.0,
        "steps": 20,
        "batch": 32,
        "learning_rate": 1e-2,
        "model": {"num_layers": 2, "hidden_size": 64, "vocab_size": 300},
    },
}


class SleepingEngine:
    """Says random tokens, 1 to ``max_tokens`` of them, in the time that an engine might take."""

    shares_weights = False
    dtype = "float32"

    def __init__(self, model: torch.nn.Module, tokenizer: Any, max_length: int | None = None, *, dtype: str = ""):
        self.tokenizer, self.max_length = tokenizer, 512
        self._new: list[Request] = []
        self._left: dict[int, int] = {}  # by session: tokens to come
        self._asked: dict[int, Request] = {}
        self._known: dict[int, int] = {}

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Response]:
        self.submit(requests, sampling)
        found: dict[int, Response] = {}
        while len(found) < len(requests):
            found.update({request.session: response for request, response in self.collect(None)})
        return [found[request.session] for request in requests]

    def submit(self, requests: Sequence[Request], sampling: Sampling) -> None:
        self._new += requests
        for request in requests:
            self._asked[request.session] = request
            said = 1 + int(np.random.default_rng(request.seed).integers(sampling.max_tokens))
            self._left[request.session] = said

    def collect(self, timeout: float | None = None) -> list[Finished]:
        if self._new:
            new, self._new = self._new, []
            read = sum(len(request.prompt_ids) - self._known.get(request.session, 0) for request in new)
            self._pass(1, read, [request.session for request in new])
        elif self._left:
            steps = min(self._left.values())
            if timeout is not None:
                steps = max(1, min(steps, round(timeout / PASS)))
            self._pass(steps, steps * len(self._left), list(self._left))
        done = [session for session, left in self._left.items() if left == 0]
        return [self._answer(session) for session in done]

    def _pass(self, count: int, tokens: int, sessions: Sequence[int]) -> None:
        time.sleep(PASS * count + EACH * tokens)
        for session in sessions:
            self._left[session] -= count

    def _answer(self, session: int) -> Finished:
        request = self._asked.pop(session)
        del self._left[session]
        rng = np.random.default_rng(request.seed)
        ids = rng.integers(20, 60, 1 + int(rng.integers(BASE["rollout"]["max_tokens"]))).astype(np.int32)
        self._known[session] = len(request.prompt_ids) + len(ids)
        return request, Response(ids, np.full(len(ids), -4.0, np.float32), True)

    def load_weights(self, tensors: Iterable[tuple[str, Any]]) -> None:
        list(tensors)
        self._known.clear()

    def release(self, session: int) -> None:
        self._new = [request for request in self._new if request.session != session]
        for held in (self._left, self._asked, self._known):
            held.pop(session, None)

    def sleep(self) -> None: ...

    def wake(self) -> None: ...

    def close(self) -> None: ...


def fall_asleep() -> None:
    """Runs of this process sleep where they would compute; nothing is learned."""
    BASE["engine"] = {"name": "overlap:SleepingEngine"}

    def learn(self: Learner, episodes: Sequence[Episode], iteration: int) -> LearningResult:
        time.sleep(UPDATE * len(episodes) / 16 / self.ranks.world_size)
        return LearningResult({})

    Learner.learn = learn  # type: ignore[method-assign]
    os.environ[ASLEEP] = "1"  # other ranks are processes of their own


def settings_of(model: Path, iterations: int, **changes: Any) -> RunSettings:
    """The benchmark's settings with sections changed."""
    values = {**BASE, "model": str(model)}
    values["training"] = {**values["training"], "iterations": iterations}
    for section, change in changes.items():
        values[section] = {**values[section], **change} if isinstance(change, dict) else change
    return parse(yaml.safe_load(yaml.safe_dump(values)), "the benchmark")


def make_model(folder: Path) -> Path:
    """A model that has seen a little of the corridor, and says much else."""
    torch.set_num_threads(1)
    return sft(settings_of(folder / "model", 1), quiet=True)


def run_in_ranks(settings: RunSettings, folder: Path) -> Path:
    """Train in ``settings.processes`` processes; the run's folder within ``folder``."""
    folder.mkdir()
    config = folder / "settings.yaml"
    config.write_text(dump(settings), encoding="utf-8")
    here = str(Path(__file__).parent)
    os.environ["PYTHONPATH"] = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), here])
    launch.run(settings.processes, ["train", str(config), "--runs", str(folder / "runs"), "--quiet"])
    return folder / "runs" / settings.name


def timed(settings: RunSettings, folder: Path) -> float:
    """Seconds of an iteration (mean) of a run in ``folder``."""
    moments: list[float] = []
    run = RunFolder.create(folder, settings)

    def note(event: Event) -> None:
        if isinstance(event, IterationFinished):
            moments.append(time.perf_counter())

    train(run, note, quiet=True)
    spans = [after - before for before, after in zip(moments[LEFT_OUT - 1 :], moments[LEFT_OUT:], strict=False)]
    return statistics.fmean(whole_cycles(spans, settings))


def whole_cycles(spans: Sequence[float], settings: RunSettings) -> Sequence[float]:
    """The last iterations of a run, as many as are whole cycles of ``ahead + 1``.

    Batches that are open together end together: one iteration waits for all of them, and the next ones for none.
    """
    cycle = settings.rollout.ahead + 1
    return spans[len(spans) % cycle :] if len(spans) >= cycle else spans


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--asleep", action="store_true")
    options = parser.parse_args()
    if options.asleep:
        fall_asleep()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = make_model(folder)
        runs = {
            ahead: settings_of(model, options.iterations, rollout={"deterministic": False, "ahead": ahead})
            for ahead in (0, 1)
        }
        seconds: dict[int, list[float]] = {0: [], 1: []}
        for number in range(options.rounds):
            for ahead in (0, 1) if number % 2 == 0 else (1, 0):
                spent = timed(runs[ahead], folder / f"run-{number}-{ahead}")
                seconds[ahead].append(spent)
                print(f"round {number}: ahead {ahead} takes {spent:.3f} s an iteration", flush=True)
    for ahead in runs:
        print(f"ahead {ahead}: {statistics.fmean(seconds[ahead]):.3f} s an iteration")
    gains = [before / after for before, after in zip(seconds[0], seconds[1], strict=True)]
    each = ", ".join(f"{gain:.2f}" for gain in gains)
    print(f"throughput of ahead 1 over ahead 0: {statistics.fmean(gains):.2f}, by round {each}")
    print(json.dumps({"measured": seconds}))


if ASLEEP in os.environ:  # a rank of a run of this benchmark, which has imported its engine from here
    fall_asleep()

if __name__ == "__main__":
    main()
