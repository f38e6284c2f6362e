"""No process is left, however a pool, its caller or a worker ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import gymnasium
import psutil
import pytest
from gymnasium.envs.registration import EnvSpec

from gagpo.envs import Text, TextEnv
from gagpo.envs.base import Info
from gagpo.envs.pool import WorkerPool, slots
from tests.envs.pool.faulty import FAULTY, PATIENCE, answers, gone, start, until, worker_of
from tests.rejections import rejects

ROOT = Path(__file__).parents[3]

SCRIPT = """
import sys, time
import gagpo.envs.pool.process_worker
from gagpo.envs.pool import WorkerPool
gagpo.envs.pool.process_worker.CLOSE_SECONDS = 0.3
pool = WorkerPool("tests.envs.faulty:gagpo-test/Faulty-v0", workers=2, step_timeout=1000)
for slot in range(4):
    pool.reset(slot, "quiet", seed=slot)
events = []
while len(events) < 4:
    events += pool.wait()
pool.step(0, sys.argv[1])
pool.flush()
print(*{int(event.observation.split()[-1]) for event in events}, flush=True)
pool.wait()
if sys.argv[1] in ("look", "escape"):
    time.sleep(1000)
pool.wait()
"""


class Endless(gymnasium.Env[str, str]):
    """An environment that ends no episode."""

    observation_space = action_space = Text()
    tasks = TextEnv.tasks

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[str, Info]:
        return "", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        return "", 0.0, False, False, {}


@pytest.mark.parametrize(("registered", "turns"), [({}, 5), ({"max_episode_steps": 8}, 8)])
def test_an_episode_without_a_turn_limit_is_truncated(monkeypatch: pytest.MonkeyPatch, registered: Info, turns: int):
    monkeypatch.setattr(slots, "MAX_TURNS", 5)
    monkeypatch.setitem(gymnasium.registry, "Endless-v0", EnvSpec("Endless-v0", Endless, **registered))
    with WorkerPool("Endless-v0", workers=0) as pool:
        for _ in range(2):
            pool.reset(0, "any")
            pool.wait()
            for turn in range(1, turns + 1):
                pool.step(0, "go")
                assert [event.truncated for event in pool.wait()] == [turn == turns]


def heed_interrupts() -> None:
    """A program started in the background ignores SIGINT, and its children with it: undo that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def script(*arguments: str, **settings: object) -> tuple[subprocess.Popen, list[int]]:
    """A program with a pool (unguarded, from standard input), and the ids of the pool's processes."""
    process = subprocess.Popen(
        [sys.executable, "-", *arguments],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=heed_interrupts,
        **settings,
    )  # type: ignore[call-overload]
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(SCRIPT)
    process.stdin.close()
    workers = [int(word) for word in process.stdout.readline().split()]
    assert len(workers) == 2
    return process, [*workers, psutil.Process(workers[0]).ppid()]


def _leads_a_session(process: int) -> bool:
    try:
        return os.getsid(process) == process
    except ProcessLookupError:  # one that came and went while it was looked at
        return False


def test_no_process_in_a_session_of_its_own_outlives_a_killed_caller() -> None:
    process, children = script("escape")
    strays: list[int] = []

    def found() -> bool:
        strays[:] = [child.pid for worker in children[:2] for child in psutil.Process(worker).children(recursive=True)]
        return any(_leads_a_session(stray) for stray in strays)

    until(found, "the one that leaves")
    process.kill()
    process.wait(timeout=PATIENCE)
    until(lambda: all(map(gone, [*children, *strays])), "the end of the workers and what they started")


@pytest.mark.parametrize("busy", ["look", "stop"])
def test_no_process_outlives_a_killed_parent(busy: str) -> None:
    process, children = script(busy)
    process.kill()
    process.wait(timeout=PATIENCE)
    until(lambda: all(map(gone, children)), "the end of the workers")


def test_ctrl_c_ends_everything() -> None:
    process, children = script("sleep", start_new_session=True, stderr=subprocess.PIPE)
    time.sleep(0.2)
    os.killpg(process.pid, signal.SIGINT)
    assert process.stderr is not None
    errors = process.stderr.read()
    process.wait(timeout=PATIENCE)
    assert "KeyboardInterrupt" in errors
    assert errors.count("Traceback") == 1  # the parent's own, none of the workers'
    until(lambda: all(map(gone, children)), "the end of the workers")


@pytest.mark.parametrize("busy", ["look", "sleep"])
def test_closing_leaves_no_process_and_may_be_repeated(busy: str) -> None:
    pool = WorkerPool(FAULTY, workers=2)
    first = start(pool, 4)
    pool.step(0, busy)
    pool.flush()
    children = {worker_of(event) for event in first.values()}
    fork_server = psutil.Process(min(children)).ppid()
    pool.close()
    pool.close()
    assert all(map(gone, {*children, fork_server}))
    with rejects(ValueError, "closed"):
        pool.wait()


def test_a_forgotten_pool_is_closed() -> None:
    pool = WorkerPool(FAULTY, workers=1)
    child = worker_of(start(pool, 1)[0])
    del pool
    until(lambda: gone(child), "the worker's end")


def test_a_forked_copy_of_the_caller_cannot_end_the_pool() -> None:
    with WorkerPool(FAULTY, workers=1) as pool:
        start(pool, 1)
        copy = os.fork()
        if copy == 0:
            pool.close()
            os._exit(0)
        assert os.waitpid(copy, 0)[1] == 0
        pool.step(0, "look")
        assert answers(pool, 1)[0].kind == "step"
        assert pool.counters.crashes == 0
