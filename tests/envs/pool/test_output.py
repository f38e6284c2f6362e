"""What workers write: each line once, with the environment's name, bounded, and never a reason to wait."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator

import gymnasium
import pytest

from gagpo.base import once
from gagpo.envs.base import Outcome
from gagpo.envs.pool import Event, WorkerPool
from gagpo.envs.pool.output import MAX_LINES, CapturedOutput
from gagpo.envs.testing import CorridorEnv


@pytest.fixture(autouse=True)
def _nothing_shown_yet() -> Iterator[None]:
    once.forget()
    yield
    once.forget()


class NoisyEnv(CorridorEnv):
    """A corridor that writes in every way."""

    def act(self, action: str) -> Outcome:
        print("a", "banner")
        print("\x1b[31ma warning\x1b[0m", file=sys.stderr)
        os.write(1, b"half a line, \xff")
        os.system("echo from a child")
        logging.getLogger("gagpo.envs.of_a_test").warning("2 rows were skipped")
        if action == "flood":
            os.write(1, b"x" * 3_000_000 + b"".join(b"%d\n" % number for number in range(100_000)))
        if action == "die":
            os.write(2, b"\nlast words")
            os._exit(1)
        return super().act(action)


gymnasium.register("gagpo-test/Noisy-v0", NoisyEnv, disable_env_checker=True, order_enforce=False)


def play(*actions: str) -> None:
    with WorkerPool("gagpo-test/Noisy-v0", workers=2, max_restarts=0) as pool:
        for slot in range(4):
            pool.reset(slot, "door-01", seed=0)
        for action in actions:
            slots = [event.slot for event in answers(pool) if event.kind != "failed"]
            for slot in slots:
                pool.step(slot, action)
        answers(pool)


def answers(pool: WorkerPool) -> list[Event]:
    """The answers to all outstanding requests."""
    events = []
    while pool.outstanding:
        events += pool.wait()
    return events


def test_each_line_is_shown_once_with_the_name_of_the_environment(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")
    play("left", "left", "die")
    readouterr = capfd.readouterr()
    assert readouterr.out == ""
    lines = readouterr.err.splitlines()
    assert len(lines) == len(set(lines)) and all(line.startswith("gagpo-test/Noisy-v0: ") for line in lines)
    tokens = " / ".join(line.partition(": ")[2] for line in lines)
    for line in ("a banner", r"\x1b[31ma warning\x1b[0m", "half a line, �", "from a child", "last words"):
        assert line in tokens  # workers share the pipe, so the half line may end with another one's words
    assert "\x1b" not in readouterr.err


def test_a_flood_is_cut_and_delays_no_answer(capfd: pytest.CaptureFixture[str]) -> None:
    play("flood")
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) <= MAX_LINES + 1 and max(map(len, lines)) < 400


def test_more_lines_than_are_shown_are_announced(capfd: pytest.CaptureFixture[str]) -> None:
    output = CapturedOutput("mine")
    with output.receiving() as descriptor:
        os.write(descriptor, "".join(f"line {number}\n" for number in range(1000)).encode())
    output.finish()
    lines = capfd.readouterr().err.splitlines()
    assert lines[0] == "mine: line 0" and lines[-1] == "mine: further output is not shown"
    assert len(lines) == MAX_LINES + 1


def test_what_the_caller_has_shown_is_not_repeated(capfd: pytest.CaptureFixture[str]) -> None:
    log = logging.getLogger("gagpo-test.once")
    once.show("gagpo-test.once")
    once.show("gagpo-test.once")
    try:
        for _ in range(3):
            log.warning("2 rows were skipped")
    finally:
        log.handlers.clear()
    play("left")
    lines = capfd.readouterr().err.splitlines()
    assert lines.count("2 rows were skipped") == 1 and "gagpo-test/Noisy-v0: 2 rows were skipped" not in lines
