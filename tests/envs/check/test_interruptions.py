"""Signals end a check; an environment that ends the program is the environment's fault."""

from __future__ import annotations

import functools
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from gagpo.agents.preview import make_with_expert, preview
from gagpo.base.errors import InvalidArgument, Terminated
from gagpo.envs.arguments import build
from gagpo.envs.base import Outcome
from gagpo.envs.check.check import check
from gagpo.envs.pool import WorkerPool
from gagpo.envs.pool.shared_pool import PoolClosed, SharedPool
from gagpo.envs.pool.worker import EnvironmentHost
from gagpo.envs.testing import CorridorEnv
from tests.rejections import rejects

STUCK = """
import time
from gagpo.envs.testing import CorridorEnv

class Stuck(CorridorEnv):
    def act(self, action):
        print("stuck", flush=True)
        time.sleep(1000)
"""


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_the_command(number: signal.Signals, status: int, tmp_path: Path) -> None:
    (tmp_path / "stuck.py").write_text(STUCK)
    command = [sys.executable, "-m", "gagpo", "check", "stuck:Stuck"]
    # A process that a shell starts in the background ignores SIGINT, and so do its children, unless it is reset.
    heed = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, preexec_fn=heed) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "stuck\n"
        process.send_signal(number)
        messages, _ = process.communicate(timeout=60)
    assert process.returncode == status
    assert "SystemExit" not in messages and "│" not in messages  # no table of findings


class QuittingEnv(CorridorEnv):
    """A corridor that ends the program, at the place named by ``place``."""

    def __init__(self, place: str, error: type[BaseException] = SystemExit, **kwargs: Any):
        super().__init__(**kwargs)
        self.place_of_end, self.error = place, error
        self._end("building")

    def _end(self, place: str) -> None:
        if self.place_of_end == place:
            raise self.error(0)

    def begin(self, task: Any) -> Outcome:
        self._end("reset")
        return super().begin(task)

    def act(self, action: str) -> Outcome:
        if self.place_of_end == "a signal":
            signal.raise_signal(signal.SIGTERM)
        self._end("step")
        return super().act(action)

    def close(self) -> None:
        self._end("closing")


gymnasium.register("gagpo-test/Quitting-v0", QuittingEnv, disable_env_checker=True, order_enforce=False)


@pytest.mark.parametrize("place", ["building", "reset", "step"])
def test_an_environment_that_ends_the_program_is_a_finding(place: str) -> None:
    only = ["construction", "info", "chance"]
    findings = check("gagpo-test/Quitting-v0", {"place": place}, episodes=1, only=only)
    assert [finding.ok for finding in findings] == ([False] if place == "building" else [True, False, False])
    assert findings[-1].detail.startswith("SystemExit: 0")


@pytest.mark.parametrize("place", ["building", "reset", "step"])
def test_a_termination_passes_the_checks(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QuittingEnv.__init__, "__defaults__", (Terminated,))
    with pytest.raises(Terminated):
        check("gagpo-test/Quitting-v0", {"place": place}, episodes=1, only=["construction", "info"])


def test_a_handler_of_another_program_passes_the_checks() -> None:
    """A program that uses the package may raise a plain SystemExit in its handler."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with pytest.raises(SystemExit, match="143"):
            check("gagpo-test/Quitting-v0", {"place": "a signal"}, episodes=1, only=["construction", "info"])
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_episode_that_ends_the_program_fails_and_the_pool_goes_on(workers: int) -> None:
    with WorkerPool("gagpo-test/Quitting-v0", {"place": "step"}, workers=workers, max_restarts=0) as pool:
        for _ in range(2):
            pool.reset(0, "door-01", seed=0)
            assert [event.kind for event in pool.wait()] == ["reset"]
            pool.step(0, "left")
            (event,) = pool.wait()
            assert event.kind == "failed" and event.error.startswith("SystemExit: 0")


def test_no_client_waits_for_a_shared_pool_that_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QuittingEnv.__init__, "__defaults__", (KeyboardInterrupt,))
    pool = SharedPool("gagpo-test/Quitting-v0", {"place": "step"}, workers=0)
    try:
        pool.reset(0, "door-01", seed=0).result(10)
        with pytest.raises(PoolClosed):
            pool.step(0, "left").result(10)
    finally:
        pool.close()


def test_a_termination_passes_the_end_of_an_environment_in_this_process() -> None:
    EnvironmentHost(lambda: QuittingEnv("closing"), isolated=False).close()
    with pytest.raises(Terminated):
        EnvironmentHost(lambda: QuittingEnv("closing", Terminated), isolated=False).close()


def test_an_environment_that_ends_the_program_elsewhere_is_an_error_of_one_line() -> None:
    with rejects(InvalidArgument, "sys.exit(0)"):
        build("gagpo-test/Quitting-v0", {"place": "building"})
    env = make_with_expert("gagpo-test/Quitting-v0", {"place": "reset"})
    with rejects(InvalidArgument, "QuittingEnv", "door-00", "SystemExit"):
        next(preview(env, None, "door-00"))  # type: ignore[arg-type]  # it fails before the context is used
