"""Real processes are killed, stopped, hung and fed garbage; no episode may be lost and no process left."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from gagpo.envs.pool import EnvironmentBroken, Event, Pool

CORRIDOR = "gagpo.envs.testing:gagpo-test/Corridor-v0"
FAULTY = "gagpo.envs.testing:gagpo-test/Faulty-v0"
ROOT = Path(__file__).parents[3]
PATIENCE = 60.0  # for what happens at once on an idle machine


@pytest.fixture(autouse=True)
def no_patience_with_the_hung(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gagpo.envs.pool.link.CLOSE_SECONDS", 0.3)


def until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"still waiting for: {what}"
        time.sleep(0.02)


def gone(process: int) -> bool:
    try:
        return psutil.Process(process).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def answers(pool: Pool, count: int) -> dict[int, Event]:
    """The next ``count`` events by slot; more than one of a slot, or none in time, is a failure."""
    events: dict[int, Event] = {}
    end = time.monotonic() + PATIENCE
    while len(events) < count:
        assert time.monotonic() < end, f"{len(events)} of {count} events came"
        for event in pool.wait(timeout=1.0):
            assert event.slot not in events
            events[event.slot] = event
    return events


def start(pool: Pool, slots: int) -> dict[int, Event]:
    for slot in range(slots):
        pool.reset(slot, "quiet", seed=slot)
    events = answers(pool, slots)
    assert {event.kind for event in events.values()} == {"reset"}
    return events


def beginning(event: Event) -> str:
    """What of the first observation does not depend on the process."""
    return event.observation.split(" process ")[0]


def worker_of(event: Event) -> int:
    return int(event.observation.split()[-1])


@pytest.mark.parametrize("fault", ["crash", "exit", "child"])
def test_a_crash_starts_over_the_episodes_of_its_worker_and_charges_only_the_guilty_one(fault: str) -> None:
    with Pool(FAULTY, workers=2, max_restarts=2) as pool:
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
    with Pool(FAULTY, workers=2) as pool:
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
    with Pool(FAULTY, workers=2, step_deadline=1.0) as pool:
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


@pytest.mark.parametrize("fault", ["sleep", "spin", "stop"])
def test_an_environment_that_never_answers_harms_only_its_own_episode(fault: str) -> None:
    with Pool(FAULTY, workers=1, step_deadline=0.7, max_restarts=1) as pool:
        first = start(pool, 3)
        pool.step(0, "look")
        pool.step(1, fault)
        pool.step(2, "look")
        events = answers(pool, 3)
        assert [events[slot].kind for slot in range(3)] == ["step", "restarted", "restarted"]
        assert "more than 0.7 s" in events[1].error
        assert gone(worker_of(first[0]))
        pool.step(0, "look")  # answered before the hang, but its world died with the worker
        pool.step(1, fault)
        events = answers(pool, 2)
        assert events[0].kind == "restarted"
        assert events[1].kind == "failed"
        assert (pool.counters.hangs, pool.counters.failures, pool.counters.errors) == (2, 1, 0)
        pool.step(2, "end")
        (event,) = answers(pool, 1).values()
        assert event.kind in ("step", "restarted")


def test_answers_that_are_ready_do_not_wait_for_a_slow_one() -> None:
    with Pool(FAULTY, workers=1, step_deadline=PATIENCE) as pool:
        start(pool, 3)
        pool.step(0, "look")
        pool.step(1, "sleep")
        pool.step(2, "look")
        assert [event.slot for event in pool.wait(timeout=PATIENCE / 2)] == [0]
        assert pool.wait(timeout=0.05) == []


def test_a_queue_of_steps_each_within_its_deadline_is_no_hang() -> None:
    with Pool(FAULTY, workers=1, step_deadline=2.0) as pool:
        start(pool, 8)
        for slot in range(8):
            pool.step(slot, "nap 0.4")  # 3.2 s together
        assert {event.kind for event in answers(pool, 8).values()} == {"step"}
        assert pool.counters.hangs == 0


def test_a_caller_that_is_away_longer_than_the_deadline_finds_its_answers() -> None:
    with Pool(FAULTY, workers=1, step_deadline=0.5) as pool:
        start(pool, 2)
        for slot in range(2):
            pool.step(slot, "nap 0.2")
        pool.flush()
        time.sleep(1.2)
        assert {event.kind for event in answers(pool, 2).values()} == {"step"}
        assert pool.counters.hangs == 0


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("raise", "RuntimeError: broken on purpose (testing.py"),
        ("observation", "the observation is NoneType"),
        ("surrogate", "not Unicode"),
        ("reward", "reward is nan"),
        ("shape", "did not return (observation, reward, terminated, truncated, info)"),
        ("unpicklable", "info['open'] holds function"),
        ("bigint", "info['big'] is an integer of more than 64 bits"),
    ],
)
def test_an_error_or_garbage_harms_only_its_own_episode(workers: int, fault: str, words: str) -> None:
    with Pool(FAULTY, workers=workers, max_restarts=1) as pool:
        first = start(pool, 2)
        for kind in ("restarted", "failed"):
            pool.step(0, fault)
            pool.step(1, "look")
            events = answers(pool, 2)
            assert events[1].kind == "step"
            assert events[0].kind == kind
            assert words in events[0].error
            if kind == "restarted":
                assert beginning(events[0]) == beginning(first[0])
        assert (pool.counters.errors, pool.counters.restarts, pool.counters.failures) == (2, 1, 1)
        assert (pool.counters.crashes, pool.counters.steps) == (0, 2)
        with pytest.raises(ValueError, match="holds no episode"):
            pool.step(0, "look")
        pool.reset(0, "quiet", seed=0)
        assert answers(pool, 1)[0].kind == "reset"


def test_an_answer_too_large_to_be_text_is_garbage() -> None:
    with Pool(FAULTY, workers=1, max_restarts=0) as pool:
        start(pool, 1)
        pool.step(0, "huge")
        (event,) = answers(pool, 1).values()
        assert event.kind == "failed"
        assert "at most" in event.error


@pytest.mark.parametrize("fault", ["babble", "forge"])
def test_an_environment_that_writes_into_the_pools_own_connection_is_a_crash(fault: str) -> None:
    with Pool(FAULTY, workers=1, max_restarts=1) as pool:
        first = start(pool, 2)
        pool.step(0, fault)
        (event,) = answers(pool, 1).values()
        assert event.kind == "restarted"
        assert beginning(event) == beginning(first[0])
        assert "it sent what is no answer" in event.error
        assert pool.counters.crashes == 1


def test_a_fork_of_the_environment_does_not_answer_for_the_worker() -> None:
    with Pool(FAULTY, workers=1) as pool:
        start(pool, 2)
        for _ in range(3):
            pool.step(0, "fork")
            pool.step(1, "look")
            events = answers(pool, 2)
            assert [events[slot].kind for slot in range(2)] == ["step", "step"]
            assert events[0].observation.startswith("start ") and not events[0].terminated
        assert (pool.counters.crashes, pool.counters.errors, pool.counters.steps) == (0, 0, 6)


def test_the_end_of_a_worker_is_seen_although_a_fork_of_it_lives_on() -> None:
    with Pool(FAULTY, workers=1, step_deadline=1000, max_restarts=0) as pool:
        first = start(pool, 1)
        pool.step(0, "orphan")
        (event,) = answers(pool, 1).values()
        assert event.kind == "failed" and "exit status 4" in event.error
        assert gone(worker_of(first[0]))


def test_an_episode_that_bursts_the_memory_limit_is_charged_and_the_others_live() -> None:
    with Pool(FAULTY, workers=1, max_restarts=1, memory_limit_mb=256) as pool:
        first = start(pool, 3)
        for kind in ("restarted", "failed"):
            pool.step(0, "burst")
            pool.step(1, "look")
            pool.step(2, "look")
            events = answers(pool, 3)
            assert [events[slot].kind for slot in range(3)] == [kind, "step", "step"]
            assert "MemoryError" in events[0].error and "limit is 256 MB" in events[0].error
        assert worker_of(events[1]) == worker_of(first[1])  # the worker lives
        assert (pool.counters.errors, pool.counters.crashes, pool.counters.failures) == (2, 0, 1)


def test_children_count_towards_the_memory_limit_of_their_worker() -> None:
    with Pool(FAULTY, workers=2, step_deadline=1000, max_restarts=0, memory_limit_mb=256) as pool:
        first = start(pool, 2)
        pool.step(0, "brood")
        pool.step(1, "look")
        events = answers(pool, 2)
        assert events[1].kind == "step"
        assert events[0].kind == "failed" and "more memory than its limit" in events[0].error
        assert gone(worker_of(first[0]))


def test_without_a_limit_memory_is_the_environments_own_affair() -> None:
    with Pool(FAULTY, workers=1) as pool:
        start(pool, 1)
        pool.step(0, "burst")
        assert answers(pool, 1)[0].kind == "step"
    with pytest.raises(ValueError, match="memory_limit_mb must be at least 1"):
        Pool(FAULTY, workers=1, memory_limit_mb=0)


def escaped(pool: Pool) -> int:
    """The id of a process that left the group of its worker and the parent it had."""
    pool.step(0, "escape")
    stray = int(answers(pool, 1)[0].observation.removeprefix("escaped: "))
    assert not gone(stray)
    return stray


@pytest.mark.parametrize("end", ["crash", "close", "sleep"])
def test_what_an_environment_started_ends_with_its_worker_even_in_a_session_of_its_own(end: str) -> None:
    with Pool(FAULTY, workers=2, step_deadline=2.0) as pool:
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
    with Pool(FAULTY, workers=2, max_restarts=2, reset_deadline=0.7) as pool:
        pool.reset(0, f"at-reset:{fault}", seed=0)
        pool.reset(1, "quiet", seed=1)
        events = answers(pool, 2)
        assert events[0].kind == "failed"
        assert events[1].kind == "reset"
        broken = {"crash": "crashes", "sleep": "hangs", "raise": "errors"}[fault]
        assert getattr(pool.counters, broken) == 3
        assert (pool.counters.restarts, pool.counters.failures, pool.counters.resets) == (2, 1, 1)


def test_a_fault_that_passes_costs_one_restart(tmp_path: Path) -> None:
    with Pool(FAULTY, {"marker": str(tmp_path / "once")}, workers=1) as pool:
        pool.reset(0, "at-reset:crash", seed=5)
        (event,) = answers(pool, 1).values()
        assert event.kind == "restarted"
        pool.step(0, "crash")
        assert answers(pool, 1)[0].kind == "step"
        assert (pool.counters.crashes, pool.counters.restarts, pool.counters.failures) == (1, 1, 0)


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"split": "lunch"}, "no split 'lunch'"),
        ({"colour": "red"}, "colour"),
        ({"broken": "raise"}, "broken on purpose"),
        ({"broken": "exit"}, "exit status 3"),
    ],
)
def test_an_environment_that_cannot_be_built_is_one_clear_error(kwargs: dict[str, str], words: str) -> None:
    with Pool(FAULTY, kwargs, workers=2) as pool:
        pool.reset(0, "quiet")
        with pytest.raises(EnvironmentBroken, match="cannot be built") as caught:
            answers(pool, 1)
        assert words in str(caught.value)


def test_a_constructor_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gagpo.envs.pool.pool.START_SECONDS", 0.5)
    with Pool(FAULTY, {"broken": "sleep"}, workers=1, reset_deadline=0.5, max_restarts=1) as pool:
        pool.reset(0, "quiet")
        with pytest.raises(EnvironmentBroken, match="more than"):
            answers(pool, 1)


def test_the_loss_of_the_process_that_forks_workers_is_survived() -> None:
    with Pool(FAULTY, workers=2) as pool:
        first = start(pool, 4)
        nursery = psutil.Process(worker_of(first[0])).ppid()
        os.kill(nursery, signal.SIGKILL)
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
    with Pool(CORRIDOR, workers=workers, step_deadline=1.0, reset_deadline=1.0, max_restarts=1000) as pool:
        for slot in played:
            pool.reset(slot, f"door-{slot % 8:02d}", seed=slot)
        seen, running = 0, len(played)
        while running:
            for event in pool.wait(timeout=PATIENCE):
                if event.kind != "step":
                    played[event.slot].clear()
                played[event.slot].append(event.observation)
                if event.terminated:
                    running -= 1
                else:
                    pool.step(event.slot, "left")
                seen += 1
                if kills and seen % 40 == 0 and pool.processes:
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


# Ends -----------------------------------------------------------------------------------------------------------------

SCRIPT = """
import sys, time
import gagpo.envs.pool.link
from gagpo.envs.pool import Pool
gagpo.envs.pool.link.CLOSE_SECONDS = 0.3
pool = Pool("gagpo.envs.testing:gagpo-test/Faulty-v0", workers=2, step_deadline=1000)
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


@pytest.mark.parametrize("busy", ["look", "sleep", "spin", "stop"])
def test_no_process_outlives_a_killed_parent(busy: str) -> None:
    process, children = script(busy)
    process.kill()
    process.wait(timeout=PATIENCE)
    until(lambda: all(map(gone, children)), "the end of the workers")


@pytest.mark.parametrize("busy", ["look", "sleep"])
def test_ctrl_c_ends_everything(busy: str) -> None:
    process, children = script(busy, start_new_session=True, stderr=subprocess.PIPE)
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
    pool = Pool(FAULTY, workers=2)
    first = start(pool, 4)
    pool.step(0, busy)
    pool.flush()
    children = {worker_of(event) for event in first.values()}
    nursery = psutil.Process(min(children)).ppid()
    pool.close()
    pool.close()
    assert all(map(gone, {*children, nursery}))
    with pytest.raises(ValueError, match="closed"):
        pool.wait()


def test_a_forgotten_pool_is_closed() -> None:
    pool = Pool(FAULTY, workers=1)
    child = worker_of(start(pool, 1)[0])
    del pool
    until(lambda: gone(child), "the worker's end")


def test_a_forked_copy_of_the_caller_cannot_end_the_pool() -> None:
    with Pool(FAULTY, workers=1) as pool:
        start(pool, 1)
        copy = os.fork()
        if copy == 0:
            pool.close()
            os._exit(0)
        assert os.waitpid(copy, 0)[1] == 0
        pool.step(0, "look")
        assert answers(pool, 1)[0].kind == "step"
        assert pool.counters.crashes == 0
