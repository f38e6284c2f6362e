"""Workers are killed, stopped, hung and fed garbage: no episode is lost and no process is left."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import gymnasium
import psutil
import pytest

from gagpo.envs.base import Outcome
from gagpo.envs.pool import EnvironmentBroken, Event, Pool, WorkerPool
from gagpo.envs.testing import CorridorEnv
from tests.envs.pool.faulty import CORRIDOR, FAULTY, PATIENCE, answers, beginning, gone, start, until, worker_of
from tests.rejections import rejects


@pytest.mark.parametrize("fault", ["crash", "child"])
def test_a_crash_starts_over_the_episodes_of_its_worker_and_charges_only_the_guilty_one(fault: str) -> None:
    with WorkerPool(FAULTY, workers=2, max_restarts=2) as pool:
        first = start(pool, 4)
        for round_ in range(2):
            pool.step(0, fault)
            for slot in range(1, 4):
                pool.step(slot, "look")
            events = answers(pool, 4)
            held = {slot for slot in range(4) if worker_of(first[slot]) == worker_of(first[0])}
            assert len(held) == 2
            for slot, event in events.items():
                if slot == 0:
                    assert event.kind == "restarted"
                    assert beginning(event) == beginning(first[slot])
                elif event.kind == "restarted":  # the step came after the crash
                    assert slot in held
                    assert beginning(event) == beginning(first[slot])
                else:
                    assert event.kind == "step"
            assert ("exit status" in events[0].error) == (fault != "crash")
            first = {slot: (events[slot] if events[slot].kind == "restarted" else first[slot]) for slot in first}
            assert pool.counters.crashes == round_ + 1
        pool.step(0, fault)
        (event,) = answers(pool, 1).values()
        assert (event.slot, event.kind) == (0, "failed")
        assert (pool.counters.crashes, pool.counters.failures, pool.counters.hangs) == (3, 1, 0)


def test_a_worker_killed_from_outside_while_its_episodes_wait_for_actions() -> None:
    with WorkerPool(FAULTY, workers=2) as pool:
        first = start(pool, 6)
        victim = worker_of(first[0])
        os.kill(victim, signal.SIGKILL)
        until(lambda: gone(victim), "the victim's end")
        for slot in range(6):
            pool.step(slot, "look")
        events = answers(pool, 6)
        for slot, event in events.items():
            if worker_of(first[slot]) == victim:
                assert event.kind == "restarted"
                assert beginning(event) == beginning(first[slot])
                assert "SIGKILL" in event.error
            else:
                assert event.kind == "step"
        assert pool.counters.crashes == 1
        assert pool.counters.restarts == 3
        for slot in range(6):
            pool.step(slot, "end")
        assert all(event.terminated for event in answers(pool, 6).values())
        assert pool.counters.resets == 9


def test_a_stopped_worker_is_replaced_at_its_deadline() -> None:
    with WorkerPool(FAULTY, workers=2, step_timeout=1.0) as pool:
        first = start(pool, 4)
        victim = worker_of(first[0])
        os.kill(victim, signal.SIGSTOP)
        for slot in range(4):
            pool.step(slot, "look")
        events = answers(pool, 4)
        restarted = {slot for slot, event in events.items() if event.kind == "restarted"}
        assert restarted == {slot for slot in range(4) if worker_of(first[slot]) == victim}
        assert all(beginning(events[slot]) == beginning(first[slot]) for slot in restarted)
        assert (pool.counters.hangs, pool.counters.crashes, pool.counters.restarts) == (1, 0, 2)
        assert gone(victim)


@pytest.mark.parametrize("fault", ["spin", "stop"])
def test_an_environment_that_never_answers_harms_only_its_own_episode(fault: str) -> None:
    with WorkerPool(FAULTY, workers=1, step_timeout=0.7, max_restarts=1) as pool:
        first = start(pool, 3)
        pool.step(0, "look")
        pool.step(1, fault)
        pool.step(2, "look")
        events = answers(pool, 3)
        assert [events[slot].kind for slot in range(3)] == ["step", "restarted", "restarted"]
        assert "more than 0.7 s" in events[1].error
        assert gone(worker_of(first[0]))
        pool.step(0, "look")  # answered before the hang, but its environment died with the worker
        pool.step(1, fault)
        events = answers(pool, 2)
        assert events[0].kind == "restarted"
        assert events[1].kind == "failed"
        assert (pool.counters.hangs, pool.counters.failures, pool.counters.errors) == (2, 1, 0)
        pool.step(2, "end")
        (event,) = answers(pool, 1).values()
        assert event.kind in ("step", "restarted")


def test_answers_that_are_ready_do_not_wait_for_a_slow_one() -> None:
    with WorkerPool(FAULTY, workers=1, step_timeout=PATIENCE) as pool:
        start(pool, 3)
        pool.step(0, "look")
        pool.step(1, "sleep")
        pool.step(2, "look")
        assert [event.slot for event in pool.wait(timeout=PATIENCE / 2)] == [0]
        assert pool.wait(timeout=0.05) == []


def test_a_queue_of_steps_each_within_its_deadline_is_no_hang() -> None:
    with WorkerPool(FAULTY, workers=1, step_timeout=2.0) as pool:
        start(pool, 8)
        for slot in range(8):
            pool.step(slot, "nap 0.4")  # 3.2 s together
        assert {event.kind for event in answers(pool, 8).values()} == {"step"}
        assert pool.counters.hangs == 0


def test_a_caller_that_is_away_longer_than_the_deadline_finds_its_answers() -> None:
    with WorkerPool(FAULTY, workers=1, step_timeout=0.5) as pool:
        start(pool, 2)
        for slot in range(2):
            pool.step(slot, "nap 0.2")
        pool.flush()
        time.sleep(1.2)
        assert {event.kind for event in answers(pool, 2).values()} == {"step"}
        assert pool.counters.hangs == 0


GARBAGE = {
    "raise": "RuntimeError: broken on purpose (faulty.py",
    "observation": "the observation is NoneType",
    "surrogate": "not Unicode",
    "reward": "reward is nan",
    "vast reward": "reward is 1e+300; rewards beyond 1e+09 cannot",
    "success": "success must be True or False (got 'no')",
    "success in info": "info['success'] is str, not a bool",
    "shape": "did not return (observation, reward, terminated, truncated, info)",
    "unpicklable": "info['open'] holds function",
    "bigint": "info['big'] is an integer of more than 64 bits",
    "huge": "the limit is",
}


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_or_garbage_harms_only_its_own_episode(workers: int) -> None:
    faults = {fault: tokens for fault, tokens in GARBAGE.items() if workers or fault != "huge"}
    with WorkerPool(FAULTY, workers=workers, max_restarts=1) as pool:
        first = start(pool, 2)
        for fault, tokens in faults.items():
            for type_name in ("restarted", "failed"):
                pool.step(0, fault)
                pool.step(1, "look")
                events = answers(pool, 2)
                assert events[1].kind == "step"
                assert events[0].kind == type_name and tokens in events[0].error
                if type_name == "restarted":
                    assert beginning(events[0]) == beginning(first[0])
            with rejects(ValueError, advice="reset it"):
                pool.step(0, "look")
            pool.reset(0, "quiet", seed=0)
            assert answers(pool, 1)[0].kind == "reset"
        count = len(faults)
        assert (pool.counters.errors, pool.counters.restarts, pool.counters.failures) == (2 * count, count, count)
        assert (pool.counters.crashes, pool.counters.steps) == (0, 2 * count)


@pytest.mark.parametrize(
    ("fault", "error"),
    [("interrupt", "KeyboardInterrupt"), ("quit", "SystemExit: broken"), ("cancel", "CancelledError")],
)
def test_an_environment_that_raises_what_ends_programs_harms_only_its_own_episode(fault: str, error: str) -> None:
    """A worker ignores Ctrl-C, so that no such exception comes from a signal."""
    with WorkerPool(FAULTY, workers=1, max_restarts=0) as pool:
        start(pool, 2)
        pool.step(0, fault)
        pool.step(1, "look")
        events = answers(pool, 2)
        assert [events[slot].kind for slot in range(2)] == ["failed", "step"]
        assert events[0].error.startswith(error)
        assert (pool.counters.errors, pool.counters.crashes) == (1, 0)


@pytest.mark.parametrize("fault", ["babble", "forge"])
def test_an_environment_that_writes_into_the_pools_own_connection_is_a_crash(fault: str) -> None:
    with WorkerPool(FAULTY, workers=1, max_restarts=1) as pool:
        first = start(pool, 2)
        pool.step(0, fault)
        (event,) = answers(pool, 1).values()
        assert event.kind == "restarted"
        assert beginning(event) == beginning(first[0])
        assert "it sent an invalid answer" in event.error
        assert pool.counters.crashes == 1


def test_a_fork_of_the_environment_does_not_answer_for_the_worker() -> None:
    with WorkerPool(FAULTY, workers=1) as pool:
        start(pool, 2)
        for _ in range(3):
            pool.step(0, "fork")
            pool.step(1, "look")
            events = answers(pool, 2)
            assert [events[slot].kind for slot in range(2)] == ["step", "step"]
            assert events[0].observation.startswith("start ") and not events[0].terminated
        assert (pool.counters.crashes, pool.counters.errors, pool.counters.steps) == (0, 0, 6)


def test_the_end_of_a_worker_is_seen_although_a_fork_of_it_lives_on() -> None:
    with WorkerPool(FAULTY, workers=1, step_timeout=1000, max_restarts=0) as pool:
        first = start(pool, 1)
        pool.step(0, "orphan")
        (event,) = answers(pool, 1).values()
        assert event.kind == "failed" and "exit status 4" in event.error
        assert gone(worker_of(first[0]))


def test_an_episode_that_bursts_the_memory_limit_is_charged_and_the_others_live() -> None:
    with WorkerPool(FAULTY, workers=1, max_restarts=1, memory_limit_mb=256) as pool:
        first = start(pool, 3)
        for type_name in ("restarted", "failed"):
            pool.step(0, "burst")
            pool.step(1, "look")
            pool.step(2, "look")
            events = answers(pool, 3)
            assert [events[slot].kind for slot in range(3)] == [type_name, "step", "step"]
            assert "MemoryError" in events[0].error and "limit is 256 MB" in events[0].error
        assert worker_of(events[1]) == worker_of(first[1])  # the worker lives
        assert (pool.counters.errors, pool.counters.crashes, pool.counters.failures) == (2, 0, 1)


def test_children_count_towards_the_memory_limit_of_their_worker() -> None:
    with WorkerPool(FAULTY, workers=2, step_timeout=1000, max_restarts=0, memory_limit_mb=256) as pool:
        first = start(pool, 2)
        pool.step(0, "brood")
        pool.step(1, "look")
        events = answers(pool, 2)
        assert events[1].kind == "step"
        assert events[0].kind == "failed" and "more memory than its limit" in events[0].error
        assert gone(worker_of(first[0]))


def test_the_memory_of_children_is_watched_while_the_pool_is_busy() -> None:
    with WorkerPool(FAULTY, workers=1, step_timeout=1000, max_restarts=0, memory_limit_mb=256) as pool:
        start(pool, 1)
        pool.step(0, "brood")
        end = time.monotonic() + PATIENCE
        events: list[Event] = []
        while not events:
            assert time.monotonic() < end, "the children still take their memory"
            pool._fork_server.kill(1_000_000)  # an order for the process that also watches
            events = pool.wait(timeout=0.01)
        assert events[0].kind == "failed" and "more memory than its limit" in events[0].error


def test_without_a_limit_memory_is_the_environments_own_affair() -> None:
    with WorkerPool(FAULTY, workers=1) as pool:
        start(pool, 1)
        pool.step(0, "burst")
        assert answers(pool, 1)[0].kind == "step"
    with rejects(ValueError, key="memory_limit_mb"):
        WorkerPool(FAULTY, workers=1, memory_limit_mb=0)


def escaped(pool: Pool) -> int:
    """The id of a process that left the group of its worker and the parent it had."""
    pool.step(0, "escape")
    stray = int(answers(pool, 1)[0].observation.removeprefix("escaped: "))
    assert not gone(stray)
    return stray


@pytest.mark.parametrize("end", ["crash", "close", "sleep"])
def test_what_an_environment_started_ends_with_its_worker_even_in_a_session_of_its_own(end: str) -> None:
    with WorkerPool(FAULTY, workers=2, step_timeout=2.0) as pool:
        start(pool, 2)
        stray = escaped(pool)
        pool.step(1, "look")
        assert answers(pool, 1)[1].kind == "step"
        assert not gone(stray)
        if end == "close":
            pool.close()
        else:
            pool.step(0, end)
            assert answers(pool, 1)[0].kind == "restarted"
        assert gone(stray)


@pytest.mark.parametrize("fault", ["crash", "sleep", "raise"])
def test_a_fault_at_the_reset_is_retried_and_then_given_up(fault: str) -> None:
    with WorkerPool(FAULTY, workers=2, max_restarts=2, reset_timeout=0.7) as pool:
        pool.reset(0, f"at-reset:{fault}", seed=0)
        pool.reset(1, "quiet", seed=1)
        events = answers(pool, 2)
        assert events[0].kind == "failed"
        assert events[1].kind == "reset"
        broken = {"crash": "crashes", "sleep": "hangs", "raise": "errors"}[fault]
        assert getattr(pool.counters, broken) == 3
        assert (pool.counters.restarts, pool.counters.failures, pool.counters.resets) == (2, 1, 1)


def test_a_fault_that_passes_costs_one_restart(tmp_path: Path) -> None:
    with WorkerPool(FAULTY, {"marker": str(tmp_path / "once")}, workers=1) as pool:
        pool.reset(0, "at-reset:crash", seed=5)
        (event,) = answers(pool, 1).values()
        assert event.kind == "restarted"
        pool.step(0, "crash")
        assert answers(pool, 1)[0].kind == "step"
        assert (pool.counters.crashes, pool.counters.restarts, pool.counters.failures) == (1, 1, 0)


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"colour": "red"}, "colour"),
        ({"broken": "exit"}, "exit status 3"),
    ],
)
def test_an_environment_that_cannot_be_built_is_one_clear_error(kwargs: dict[str, str], words: str) -> None:
    with WorkerPool(FAULTY, kwargs, workers=2) as pool:
        pool.reset(0, "quiet")
        with rejects(EnvironmentBroken, "built") as caught:
            answers(pool, 1)
        assert words in str(caught.value)


def test_a_constructor_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gagpo.envs.pool.pool.START_SECONDS", 0.5)
    with WorkerPool(FAULTY, {"broken": "sleep"}, workers=1, reset_timeout=0.5, max_restarts=1) as pool:
        pool.reset(0, "quiet")
        with rejects(EnvironmentBroken, "more than"):
            answers(pool, 1)


def test_the_loss_of_the_process_that_forks_workers_is_survived() -> None:
    with WorkerPool(FAULTY, workers=2) as pool:
        first = start(pool, 4)
        fork_server = psutil.Process(worker_of(first[0])).ppid()
        os.kill(fork_server, signal.SIGKILL)
        os.kill(worker_of(first[0]), signal.SIGKILL)
        for slot in range(4):
            pool.step(slot, "look")
        assert answers(pool, 4)[0].kind == "restarted"
        for slot in range(4):
            pool.step(slot, "look")
        events = answers(pool, 4)
        for slot in range(4):
            pool.step(slot, "look")
        events = answers(pool, 4)
        assert {event.kind for event in events.values()} <= {"step", "restarted"}
    until(lambda: all(gone(worker_of(event)) for event in (*first.values(), *events.values())), "the workers' end")


def corridor(workers: int, kills: int) -> tuple[dict[int, list[str]], Pool]:
    """The observations of 60 corridor episodes, while ``kills`` workers are killed or stopped on the way."""
    rng = random.Random(kills)
    played: dict[int, list[str]] = {slot: [] for slot in range(60)}
    with WorkerPool(CORRIDOR, workers=workers, step_timeout=1.0, reset_timeout=1.0, max_restarts=1000) as pool:
        for slot in played:
            pool.reset(slot, f"door-{slot % 8:02d}", seed=slot)
        observed, running = 0, len(played)
        while running:
            for event in pool.wait(timeout=PATIENCE):
                if event.kind != "step":
                    played[event.slot].clear()
                played[event.slot].append(event.observation)
                if event.terminated:
                    running -= 1
                else:
                    pool.step(event.slot, "left")
                observed += 1
                if kills and observed % 40 == 0 and pool.processes:
                    kills -= 1
                    fault = signal.SIGKILL if rng.random() < 0.7 else signal.SIGSTOP
                    with suppress(ProcessLookupError):
                        os.kill(rng.choice(pool.processes), fault)
    return played, pool


def test_no_episode_is_lost_or_altered_while_workers_are_killed_and_stopped_again_and_again() -> None:
    undisturbed, _ = corridor(workers=0, kills=0)
    disturbed, pool = corridor(workers=2, kills=8)
    assert disturbed == undisturbed
    assert pool.counters.crashes >= 3 and pool.counters.hangs >= 1
    assert pool.counters.restarts > 0 and pool.counters.failures == 0


class TerminatedEnv(CorridorEnv):
    """A corridor in which a signal to the process arrives in the middle of a step."""

    def act(self, action: str) -> Outcome:
        signal.raise_signal(signal.SIGTERM)
        return super().act(action)


gymnasium.register("gagpo-test/Terminated-v0", TerminatedEnv, disable_env_checker=True, order_enforce=False)


def test_a_termination_of_the_caller_is_not_taken_for_an_error_of_the_env() -> None:
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with WorkerPool("gagpo-test/Terminated-v0", workers=0) as pool:
            pool.reset(0, "door-01", seed=0)
            answers(pool, 1)
            pool.step(0, "left")
            with pytest.raises(SystemExit, match="143"):
                pool.wait()
    finally:
        signal.signal(signal.SIGTERM, before)
