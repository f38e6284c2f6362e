"""Calls in a fresh interpreter: results, errors, noise, deadlines."""

from __future__ import annotations

import os
import sys
import time

import psutil

from gagpo.envs.check.fresh_process import FreshProcessFailed, call
from tests.rejections import rejects


def answer(*arguments: object) -> dict[str, object]:
    print("noise on standard output")
    return {"arguments": arguments, "process": os.getpid(), "path": sys.path, "order": hash("text")}


def fail() -> None:
    raise ValueError("on purpose")


def die() -> None:
    os._exit(7)


def hang(path: str) -> None:
    if os.fork() == 0:
        with open(path, "w") as file:
            file.write(str(os.getpid()))
    time.sleep(1000)


def test_the_result_comes_back_without_the_noise() -> None:
    result = call(f"{__name__}:answer", 1, "zwei", [3.0], timeout=60, hash_seed=1)
    assert result["arguments"] == [1, "zwei", [3.0]]
    assert result["process"] != os.getpid()
    assert result["path"] == [os.path.abspath(location) for location in sys.path]


def test_the_hash_seed_is_the_one_asked_for() -> None:
    item, same, other = (call(f"{__name__}:answer", timeout=60, hash_seed=seed)["order"] for seed in (1, 1, 2))
    assert item == same != other


def test_failures_carry_the_last_words() -> None:
    with rejects(FreshProcessFailed, "ValueError: on purpose"):
        call(f"{__name__}:fail", timeout=60)
    with rejects(FreshProcessFailed, "exit status 7"):
        call(f"{__name__}:die", timeout=60)


def test_a_call_past_its_deadline_is_killed_with_all_it_started(tmp_path: object) -> None:
    path = f"{tmp_path}/child"
    with rejects(FreshProcessFailed, "3 s"):
        call(f"{__name__}:hang", path, timeout=3)
    with open(path) as file:
        child = int(file.read())
    end = time.monotonic() + 30
    while psutil.pid_exists(child) and psutil.Process(child).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < end
        time.sleep(0.02)
