"""Pools of several environments as one: every request is answered, and faults stay in one environment."""

import time

import pytest

from gagpo.base.errors import GagpoError
from gagpo.envs.pool import WorkerPool
from gagpo.envs.pool.mixed import MixedPool
from tests.rejections import rejects

CORRIDOR, SLEEPY = (f"gagpo.envs.testing:gagpo-test/{name}-v0" for name in ("Corridor", "Sleepy"))
FAULTY = "tests.envs.faulty:gagpo-test/Faulty-v0"


def mixed(**workers):
    type_names = {"a": CORRIDOR, "b": CORRIDOR, "faulty": FAULTY}
    return MixedPool(
        {name: WorkerPool(type_names[name], workers=count, max_restarts=1) for name, count in workers.items()}
    )


def events(pool, count, seconds=60):
    results, end = [], time.monotonic() + seconds
    while len(results) < count and time.monotonic() < end:
        results += pool.wait(1.0)
    return sorted(results, key=lambda event: event.slot)


@pytest.mark.parametrize("workers", [{"a": 0, "b": 1}, {"a": 0, "b": 0}, {"a": 1, "b": 2}], ids=str)
def test_each_request_is_answered_by_its_own_env(workers):
    with mixed(**workers) as pool:
        assert pool.wait() == [] and pool.wait(0.0) == []
        for slot in range(8):
            pool.reset(slot, f"{'ab'[slot % 2]}.door-0{slot}", seed=1)
        assert [event.observation.endswith(f"door {event.slot}.") for event in events(pool, 8)] == [True] * 8
        for slot in range(8):
            pool.step(slot, "left")
        assert {event.kind for event in events(pool, 8)} == {"step"} and pool.wait() == []
        assert pool.counters.steps == 8 and [item.counters.steps for item in pool.pools.values()] == [4, 4]


def test_a_slot_goes_from_one_env_to_the_other():
    with mixed(a=0, b=0) as pool:
        pool.reset(3, "a.door-01", seed=1)
        pool.reset(3, "b.door-02", seed=1)
        (event,) = events(pool, 1)
        assert event.observation.endswith("door 2.") and pool.wait() == []
        pool.release(3)
        with rejects(ValueError, "slot 3", advice="reset it"):
            pool.step(3, "left")
        pool.release(3)


@pytest.mark.parametrize("task", ["door-01", "c.door-01", "", "."])
def test_a_task_of_no_env_is_refused(task):
    with mixed(a=0, b=0) as pool, rejects(GagpoError, where=f"task {task!r}", advice="a, b"):
        pool.reset(0, task)


def test_what_breaks_in_one_env_costs_the_other_nothing():
    with mixed(a=1, faulty=1) as pool:
        pool.reset(0, "a.door-01", seed=1)
        pool.reset(1, "faulty.quiet", seed=1)
        events(pool, 2)
        pool.step(0, "left")
        pool.step(1, "crash")
        results = events(pool, 2)
        assert [event.kind for event in results] == ["step", "restarted"]
        assert (pool.counters.crashes, pool.pools["a"].counters.crashes) == (1, 0)


def test_the_quick_env_is_not_kept_waiting_by_the_slow_one():
    pools = {"slow": WorkerPool(SLEEPY, {"seconds": 30.0}, workers=1), "quick": WorkerPool(CORRIDOR, workers=0)}
    with MixedPool(pools) as pool:
        for slot, task in enumerate(("slow.door-01", "quick.door-01")):
            pool.reset(slot, task, seed=1)
        events(pool, 2)
        pool.step(0, "left")
        for _ in range(5):
            pool.step(1, "left")
            assert [event.slot for event in events(pool, 1, seconds=20)] == [1]
        pool.release(0)


def test_it_closes_every_env_and_again():
    pool = mixed(a=1, b=1)
    assert events(pool, 0) == []
    pool.close()
    pool.close()
    with rejects(ValueError, "closed"):
        pool.reset(0, "a.door-01")
