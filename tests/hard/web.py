"""Hostile actions on hostile pages, and browsers that are killed while a run is trained in them."""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import yaml

from gagpo.agents.setup import make_env
from gagpo.envs.pool import Event, WorkerPool
from gagpo.envs.web.supervisor import PREFIX
from tests.hard.hostile_site import SLOW
from tests.hard.outcome import FAULT, FINE, REFUSED, Outcome, Tally
from tests.hard.small_run import make_model

SLOTS = 4  # as many browsers as one worker runs
PIECES = (
    *("click[", "type[", "select[", "press[", "scroll[", "]", "back", "0", "-1", "9" * 7, "1", "2", "\n", " ", "[3]"),
    *("<script>alert(1)</script>", "'); document.body.remove(); ('", "${x}", "\\", "\x00", "\ud800", "\u202e", "F5"),
    *("file:///etc/passwd", "javascript:for(;;);", "x" * 3000, "Enter", "Tab", "Control", "2026-02-30", "\U0001f469"),
)
SOURCES: dict[str, dict[str, Any]] = {
    "MiniWoB++ pages": {"source": "miniwob", "level": "all", "unseen": []},
    "hostile pages": {"source": "tests.hard.hostile_site:HostileSite"},
}
TIMEOUT = 10.0  # seconds for a page
OFTEN = 0.9  # share of the episodes on pages that are not slow
RUN: dict[str, Any] = {
    "environment": {
        "id": "gagpo/Web-v0",
        "kwargs": {"tasks": ["click-test", "click-test-2"], "unseen": [], "max_turns": 4, "timeout": 10.0},
    },
    "rollout": {"tasks": 2, "group_size": 4, "max_tokens": 8, "workers": 1, "concurrency": 4},
    "algorithm": {"preset": "gagpo", "kl": {"coefficient": 0.0}},
    "training": {"iterations": 10_000, "save_every": 10_000, "save_episodes_every": 0},
    "evaluation": {"splits": [], "every": 0},
    "threads": 1,
}
_START_SECONDS = 240.0
_PAUSE = (0.5, 6.0)  # seconds between two kills
_END_SECONDS = 60.0


# Actions --------------------------------------------------------------------------------------------------------------


def web_actions(folder: Path, count: int, seed: int, only: int | None = None) -> list[Tally]:
    """Send half of ``count`` hostile actions to each kind of page; an episode that fails is a fault."""
    return [
        _flood(name, kwargs, -(-count // len(SOURCES)), random.Random(f"{seed}/{name}"))
        for name, kwargs in SOURCES.items()
    ]


def _flood(name: str, kwargs: dict[str, Any], count: int, rng: random.Random) -> Tally:
    tally, started = Tally(f"actions on {name}"), time.monotonic()
    kwargs = {**kwargs, "timeout": TIMEOUT, "max_turns": 30}
    tasks = make_env("gagpo/Web-v0", kwargs).tasks("train").ids
    quick = [task for task in tasks if task not in SLOW]
    sent: dict[int, str] = {}

    def begin_episode(slot: int) -> None:
        sent.pop(slot, None)
        task = rng.choice(quick if rng.random() < OFTEN else tasks)
        pool.reset(slot, task, seed=sum(tally.counts.values()))

    # A page that hangs while it opens is not the action's fault: the episode starts over, then fails alone.
    with WorkerPool("gagpo/Web-v0", kwargs, workers=1, step_timeout=120.0, max_restarts=1) as pool:
        for slot in range(SLOTS):
            begin_episode(slot)
        while sum(tally.counts.values()) < count:
            for event in pool.wait():
                _note(tally, event, sent)
                if event.kind == "failed" or event.terminated or event.truncated:
                    begin_episode(event.slot)
                else:
                    sent[event.slot] = _action(event, rng)
                    pool.step(event.slot, sent[event.slot])
        if pool.counters.crashes + pool.counters.hangs:
            tally.add(name, Outcome(FAULT, f"the worker ended: {pool.counters}"))
    tally.seconds = time.monotonic() - started
    return tally


def _note(tally: Tally, event: Event, sent: dict[int, str]) -> None:
    if event.kind == "failed":
        tally.add(f"{tally.name}: {sent.get(event.slot, '(the reset)')[:200]!a}", Outcome(FAULT, event.error))
    elif event.kind == "step":
        if "root:" in event.observation:
            tally.add(sent[event.slot], Outcome(FAULT, "a file of this machine was shown"))
        tally.counts[FINE if event.info["valid"] else REFUSED] += 1


def _action(event: Event, rng: random.Random) -> str:
    """Random pieces, random characters, or a valid action, sometimes damaged."""
    type_name = rng.random()
    if type_name < 0.2:
        return "".join(rng.choice(PIECES) for _ in range(rng.randint(1, 8)))
    if type_name < 0.25:
        return "".join(chr(rng.randrange(sys.maxunicode)) for _ in range(rng.randint(1, 40)))
    if type_name < 0.35:
        return rng.choice(("back", "scroll[down]", "press[Enter]", "press[Tab]", f"click[{rng.randrange(60)}]"))
    text = rng.choice(event.info["admissible_actions"])
    if type_name > 0.8:
        randrange = rng.randrange(len(text) + 1)
        text = text[:randrange] + rng.choice(PIECES) + text[randrange + rng.randint(0, 2) :]
    return str(text)


# Kills ----------------------------------------------------------------------------------------------------------------


def web_kills(folder: Path, count: int, seed: int, only: int | None = None) -> Tally:
    """Kill ``count`` browsers, drivers, supervisors and page processes under a training run, which must go on."""
    rng = random.Random(f"{seed}/web kills")
    tally, begin = Tally("killed browsers"), time.monotonic()
    settings = folder / "web.yaml"
    settings.write_text(yaml.safe_dump({**RUN, "name": "web", "model": str(make_model(folder))}), encoding="utf-8")
    with tempfile.TemporaryDirectory(prefix="t") as profiles, (folder / "errors.txt").open("w+") as errors:
        command = [sys.executable, "-m", "gagpo", "train", str(settings), "--runs", str(folder / "runs"), "--quiet"]
        variables = {"env": _with_temporary(profiles), "stdout": subprocess.DEVNULL, "stderr": errors}
        with subprocess.Popen(command, **variables) as run:
            victims = Counter[str]()
            while sum(victims.values()) < count and run.poll() is None and time.monotonic() - begin < _limit(count):
                victims += _kill(run.pid, rng)
                time.sleep(rng.uniform(*_PAUSE))
            outcome = _judge(run, folder / "runs" / "web" / "metrics.jsonl")
            family = psutil.Process(run.pid).children(recursive=True) if run.poll() is None else []
            run.terminate()
            run.wait(_END_SECONDS)
        for victim, number in victims.items():
            for _ in range(number):
                tally.add("", Outcome(FINE, victim))
        if outcome:
            errors.seek(0)
            tally.add(f"web_kills --seed {seed}", Outcome(FAULT, f"{outcome}: {errors.read()[-300:]}"))
        if alive := psutil.wait_procs(family, timeout=_END_SECONDS)[1]:
            tally.add("", Outcome(FAULT, f"{len(alive)} processes outlive the run, such as {alive[0].name()}"))
        if folders := list(Path(profiles).glob(f"{PREFIX}*")):
            tally.add("", Outcome(FAULT, f"{folders[0]} is left"))
    tally.seconds = time.monotonic() - begin
    return tally


def _limit(count: int) -> float:
    return _START_SECONDS + 4 * count * _PAUSE[1]


def _with_temporary(folder: str) -> dict[str, str]:
    import os

    return {**os.environ, "TMPDIR": folder}


def _kill(run: int, rng: random.Random) -> Counter[str]:
    """Kill a random process of a random kind below ``run``, if a browser runs."""
    by_kind: dict[str, list[psutil.Process]] = {}
    with suppress(psutil.Error):
        for process in psutil.Process(run).children(recursive=True):
            if type_name := _kind(process):
                by_kind.setdefault(type_name, []).append(process)
    if "browser" not in by_kind:
        return Counter()
    type_name = rng.choice(sorted(by_kind))
    with suppress(psutil.Error):
        rng.choice(by_kind[type_name]).kill()
    return Counter([type_name])


def _kind(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        cmdline = process.cmdline()
        if any("crashpad" in word or "--type=zygote" in word for word in cmdline[:2]):
            return ""
        if process.name().startswith("chromedriver"):
            return "driver"
        if process.name().startswith("chrom"):
            return "page" if "--type=renderer" in cmdline else "browser" * (not any("--type=" in w for w in cmdline))
        if any(child.name().startswith("chromedriver") for child in process.children()):
            return "supervisor"
    return ""


def _judge(run: subprocess.Popen[bytes], metrics: Path) -> str:
    """What is wrong with a run after its browsers were killed; empty if it goes on."""
    if run.poll() is not None:
        return f"the run ended with exit status {run.returncode}"
    before = _lines(metrics)
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and run.poll() is None:
        if _lines(metrics) > before:
            return ""
        time.sleep(0.5)
    return f"no iteration ended after {before} iterations"


def _lines(path: Path) -> int:
    return path.read_text().count("\n") if path.exists() else 0
