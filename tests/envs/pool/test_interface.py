"""The pool's interface without faults, and its errors for invalid calls."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import gymnasium
import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gagpo.envs.base import Kwargs
from gagpo.envs.lookup import find_spec, is_cheap
from gagpo.envs.pool import Event, Pool, WorkerPool
from gagpo.envs.testing import CorridorEnv
from tests.rejections import rejects

CORRIDOR = "gagpo.envs.testing:gagpo-test/Corridor-v0"
FAULTY = "tests.envs.faulty:gagpo-test/Faulty-v0"
PATIENCE = 60.0


def play(pool: Pool, episodes: list[tuple[str, int]]) -> list[list[Event]]:
    """Walk left in every episode (task, seed), all at once; the events of each."""
    for slot, (task, seed) in enumerate(episodes):
        pool.reset(slot, task, seed)
    played: list[list[Event]] = [[] for _ in episodes]
    running = len(episodes)
    while running:
        for event in pool.wait(timeout=PATIENCE):
            played[event.slot].append(event)
            if event.terminated or event.truncated:
                running -= 1
            else:
                pool.step(event.slot, "left")
    return played


def test_every_number_of_workers_gives_the_same_episodes() -> None:
    episodes = [(f"door-{i % 12:02d}", i) for i in range(30)]
    played = []
    for workers in (0, 1, 3):
        with WorkerPool(CORRIDOR, workers=workers) as pool:
            played.append(play(pool, episodes))
            assert pool.counters.resets == 30
            assert pool.counters.steps == sum(len(events) - 1 for events in played[-1])
            assert len(pool.processes) == workers
    assert played[0] == played[1] == played[2]
    for (task, _), events in zip(episodes, played[0], strict=True):
        assert events[0].info["task"] == task
        assert [event.kind for event in events] == ["reset"] + ["step"] * (len(events) - 1)
        assert events[-1].terminated and events[-1].reward == 1.0 and events[-1].info["success"]
        assert [event.info["turn"] for event in events] == list(range(len(events)))


class HastyEnv(CorridorEnv):
    """Not one of the suite's own, whatever it says of itself."""

    @classmethod
    def cheap(cls, kwargs: Kwargs) -> bool:
        return True


gymnasium.register("gagpo-test/Hasty-v0", HastyEnv, disable_env_checker=True, order_enforce=False)


@pytest.mark.parametrize(
    ("env_id", "kwargs", "here"),
    [
        (CORRIDOR, {}, True),
        (FAULTY, {}, False),
        ("gagpo-test/Hasty-v0", {}, False),
        ("CartPole-v1", {}, False),
        ("gagpo/ALFWorld-v0", {"size": "full"}, True),
        ("gagpo/WebShop-v0", {}, True),
        ("gagpo/Math-v0", {}, False),
        ("gagpo/SQL-v0", {}, False),
    ],
)
def test_only_our_own_envs_that_cannot_hang_may_be_stepped_in_the_callers_process(
    env_id: str, kwargs: dict, here: bool
) -> None:
    assert is_cheap(find_spec(env_id), kwargs) is here


def test_left_to_itself_the_pool_takes_no_process_for_a_cheap_env_and_plays_the_same() -> None:
    episodes = [(f"door-{i % 12:02d}", i) for i in range(12)]
    with WorkerPool(CORRIDOR, workers="auto") as here, WorkerPool(CORRIDOR, workers=2) as elsewhere:
        assert play(here, episodes) == play(elsewhere, episodes)
        assert (len(here.processes), len(elsewhere.processes)) == (0, 2)
    with WorkerPool(FAULTY, workers="auto") as pool:
        pool.reset(0, "quiet")
        assert pool.wait(timeout=PATIENCE)[0].kind == "reset" and len(pool.processes) >= 1


def test_the_caller_gets_whichever_are_ready_and_nobody_waits_for_the_slowest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gagpo.envs.pool.process_worker.CLOSE_SECONDS", 0.2)
    with WorkerPool(FAULTY, workers=2) as pool:
        for slot in range(2):
            pool.reset(slot, "quiet", seed=slot)
        assert len(pool.wait(timeout=PATIENCE, at_least=2)) == 2
        pool.step(0, f"nap {PATIENCE}")
        pool.step(1, "look")
        (event,) = pool.wait(timeout=PATIENCE)
        assert event.slot == 1
        while pool.counters.steps < 21:
            pool.step(1, "look")
            assert [event.slot for event in pool.wait(timeout=PATIENCE)] == [1]


def test_work_is_shared_evenly_and_a_freed_slot_makes_room() -> None:
    with WorkerPool(FAULTY, workers=2) as pool:
        for slot in range(6):
            pool.reset(slot, "quiet")
        events = pool.wait(timeout=PATIENCE, at_least=6)
        home = {event.slot: event.observation.split()[-1] for event in events}
        assert sorted(home.values()).count(home[0]) == 3
        expected = [slot for slot in home if home[slot] == home[0]]
        for slot in expected:
            pool.release(slot)
        for slot in (100, 7_000_000_000):
            pool.reset(slot, "quiet")
        again = pool.wait(timeout=PATIENCE, at_least=2)
        assert {event.observation.split()[-1] for event in again} == {home[0]}


def test_wait_returns_at_once_when_nothing_is_asked_and_at_its_timeout_when_nothing_comes() -> None:
    with WorkerPool(FAULTY, workers=1) as pool:
        assert pool.wait() == []
        pool.reset(0, "quiet")
        assert len(pool.wait(timeout=PATIENCE, at_least=5)) == 1
        pool.step(0, "nap 1")
        assert pool.wait(timeout=0.01) == []
        assert len(pool.wait(timeout=PATIENCE)) == 1


def test_a_reset_or_a_release_makes_the_answer_to_what_was_asked_before_void() -> None:
    for workers in (0, 1):
        with WorkerPool(CORRIDOR, workers=workers) as pool:
            pool.reset(0, "door-01", seed=1)
            pool.reset(0, "door-02", seed=1)
            (event,) = pool.wait(timeout=PATIENCE, at_least=2)
            assert event.info["task"] == "door-02"
            pool.step(0, "left")
            pool.reset(0, "door-03", seed=1)
            (event,) = pool.wait(timeout=PATIENCE, at_least=2)
            assert (event.kind, event.info["task"]) == ("reset", "door-03")
            pool.step(0, "left")
            pool.release(0)
            pool.release(0)
            assert pool.wait() == []


def test_steps_run_after_flush_while_the_caller_is_busy() -> None:
    with WorkerPool(FAULTY, workers=1) as pool:
        pool.reset(0, "quiet")
        pool.wait(timeout=PATIENCE)
        pool.step(0, "nap 0.3")
        pool.flush()
        time.sleep(1.5)
        begin = time.process_time()
        assert len(pool.wait(timeout=PATIENCE)) == 1
        assert time.process_time() - begin < 0.3


@pytest.mark.parametrize("workers", [0, 1])
def test_misuse_is_refused_with_the_reason(workers: int) -> None:
    with WorkerPool(CORRIDOR, workers=workers) as pool:
        with rejects(ValueError, "slot 3", advice="reset it"):
            pool.step(3, "left")
        with rejects(ValueError, key="slot"):
            pool.reset(-1, "door-01")
        pool.reset(0, "door-11", seed=0)
        with rejects(ValueError, "not answered", advice="wait"):
            pool.step(0, "left")
        pool.wait(timeout=PATIENCE)
        with pytest.raises(TypeError, match="an action is a string, got int"):
            pool.step(0, 1)  # type: ignore[arg-type]
        over = False
        while not over:
            pool.step(0, "left")
            (event,) = pool.wait(timeout=PATIENCE)
            over = event.terminated
        with rejects(ValueError, "over", advice="reset it"):
            pool.step(0, "left")
    with rejects(ValueError, "closed"):
        pool.reset(0, "door-01")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"workers": -1}, "must not be negative"),
        ({"max_restarts": -1}, "must not be negative"),
        ({"step_timeout": 0}, "positive seconds"),
        ({"reset_timeout": float("nan")}, "positive seconds"),
        ({"env_kwargs": {"max_turns": object()}}, "env_kwargs['max_turns'] holds object"),
    ],
)
def test_settings_that_cannot_be_right_are_refused(settings: dict, words: str) -> None:
    with pytest.raises(ValueError) as caught:
        WorkerPool(CORRIDOR, **settings)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("env_id", "words"),
    [
        ("gagpo/ALFWrld-v0", "known here: gagpo/ALFWorld-v0"),
        ("gagpo/ALFWorld-v7", "ALFWorld"),
        ("no_such_module:Name-v0", "No module named 'no_such_module'; is its folder on PYTHONPATH?"),
        ("not an id!", "not an id!"),
    ],
)
def test_an_unknown_environment_is_refused_with_advice(env_id: str, words: str) -> None:
    with pytest.raises(ValueError) as caught:
        WorkerPool(env_id)
    assert words in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_unknown_task_fails_its_episode_with_the_nearest_ids(workers: int) -> None:
    with WorkerPool(CORRIDOR, workers=workers, max_restarts=1) as pool:
        pool.reset(0, "door-1", seed=0)
        (event,) = pool.wait(timeout=PATIENCE)
        assert event.kind == "failed"
        assert "nearest: door-01" in event.error


def test_a_class_that_other_processes_cannot_import_is_refused_with_advice() -> None:
    gymnasium.register("gagpo-test/Lambda-v0", lambda **kwargs: None)
    with rejects(ValueError, advice="workers=0"):
        WorkerPool("gagpo-test/Lambda-v0")


@pytest.mark.parametrize("workers", [0, 1])
def test_keyword_arguments_reach_the_environment(workers: int) -> None:
    with WorkerPool(CORRIDOR, {"max_turns": 2}, workers=workers) as pool:
        (events,) = play(pool, [("door-00", 0)])
        assert [event.truncated for event in events] == [False, False, True]


@pytest.mark.parametrize("workers", [0, 1])
def test_actions_and_observations_of_any_size_and_script_pass(workers: int) -> None:
    with WorkerPool(FAULTY, workers=workers) as pool:
        for slot in range(3):
            pool.reset(slot, "quiet", seed=slot)
        pool.wait(timeout=PATIENCE, at_least=3)
        for slot, action in enumerate(("走到 👩‍🚀\0", "\ud800", "x" * 5_000_000)):
            pool.step(slot, action)
        assert {event.kind for event in pool.wait(timeout=PATIENCE, at_least=3)} == {"step"}


# The contract: one call, one event ------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[0, 2])
def faulty_pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    with WorkerPool(FAULTY, workers=request.param, max_restarts=1) as pool:
        yield pool


CALLS = st.lists(
    st.one_of(
        st.tuples(st.just("reset"), st.integers(0, 3), st.sampled_from(["quiet", "at-reset:raise"])),
        st.tuples(st.just("step"), st.integers(0, 3), st.sampled_from(["look", "end", "raise", "reward"])),
        st.tuples(st.just("release"), st.integers(0, 3), st.none()),
        st.tuples(st.just("wait"), st.integers(0, 4), st.none()),
    ),
    max_size=40,
)


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(calls=CALLS)
def test_every_reset_and_step_is_answered_by_exactly_one_event(faulty_pool: Pool, calls: list[tuple]) -> None:
    pending: set[int] = set()
    live: set[int] = set()

    def take(events: list[Event]) -> None:
        for event in events:
            pending.remove(event.slot)  # KeyError: an event that nobody asked for
            if event.kind != "failed" and not event.terminated:
                live.add(event.slot)

    for call, number, argument in calls:
        if call == "reset":
            faulty_pool.reset(number, argument, seed=number)
            live.discard(number)
            pending.add(number)
        elif call == "step" and number in live:
            faulty_pool.step(number, argument)
            live.remove(number)
            pending.add(number)
        elif call == "release":
            faulty_pool.release(number)
            live.discard(number)
            pending.discard(number)
        elif call == "wait":
            expected = min(number, len(pending))
            events = faulty_pool.wait(timeout=PATIENCE, at_least=number)
            assert len(events) >= expected
            take(events)
    take(faulty_pool.wait(timeout=PATIENCE, at_least=99))
    assert pending == set()
    assert faulty_pool.wait() == []
    for slot in range(4):
        faulty_pool.release(slot)


# Start and memory -----------------------------------------------------------------------------------------------------

PRELOADING = """
import os
import gymnasium
from gagpo.envs.testing import CorridorEnv

LOADED = []

class PreloadingEnv(CorridorEnv):
    @classmethod
    def preload(cls, max_turns=50):
        LOADED.append(f"{max_turns} in {os.getpid()}")

    def begin(self, task):
        outcome = super().begin(task)
        outcome.extras["loaded"] = list(LOADED)
        return outcome

gymnasium.register("Preloading-v0", "preloading:PreloadingEnv", disable_env_checker=True, kwargs={"max_turns": 9})
"""


def test_what_preload_loads_is_loaded_once_for_all_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "preloading.py").write_text(PRELOADING, encoding="utf-8")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with WorkerPool("preloading:Preloading-v0", workers=2) as pool:
        for slot in range(4):
            pool.reset(slot, "door-00")
        loaded = [event.info["loaded"] for event in pool.wait(timeout=PATIENCE, at_least=4)]
        parent = psutil.Process(pool.processes[0]).ppid()
    assert loaded == [[f"9 in {parent}"]] * 4
    assert parent != os.getpid()


def resident(processes: list[int]) -> int:
    return sum(psutil.Process(process).memory_info().rss for process in processes)


@pytest.mark.slow
def test_memory_stays_flat_over_ten_thousand_episodes() -> None:
    with WorkerPool(CORRIDOR, workers=2) as pool:
        started = finished = 0
        before = 0
        for slot in range(64):
            pool.reset(slot, "door-11", seed=slot)
            started += 1
        while finished < 10_000:
            for event in pool.wait(at_least=16):
                if event.terminated:
                    finished += 1
                    if finished == 2_000:  # caches and arenas have grown to their size
                        before = resident([os.getpid(), *pool.processes])
                    pool.reset(event.slot, "door-11", seed=started)
                    started += 1
                else:
                    pool.step(event.slot, "left")
        growth = resident([os.getpid(), *pool.processes]) - before
        assert pool.counters.restarts == 0
    assert growth < 3_000_000, f"{growth / 8_000:.0f} bytes an episode"
