"""Client threads share one pool; none blocks another, and all are told when it ends."""

from __future__ import annotations

import threading
import time
from contextlib import closing

import pytest

from gagpo.envs.pool import WorkerPool
from gagpo.envs.pool.shared_pool import PoolClosed, SharedPool
from tests.envs.pool.faulty import CORRIDOR, FAULTY, PATIENCE, until
from tests.rejections import rejects


def test_a_wait_is_ended_from_another_thread() -> None:
    with WorkerPool(FAULTY, workers=1) as pool:
        pool.reset(0, "quiet")
        assert len(pool.wait(timeout=PATIENCE)) == 1
        pool.step(0, f"nap {2 * PATIENCE}")
        pool.flush()
        waker = threading.Timer(0.2, pool.wake)
        waker.start()
        begin = time.monotonic()
        assert pool.wait(timeout=PATIENCE) == [] and time.monotonic() - begin < PATIENCE
        waker.join()
        pool.wake()
        assert pool.wait(timeout=PATIENCE) == []  # asked for before it began
        assert pool.wait(timeout=0.01) == []


def test_a_request_does_not_wait_for_another_clients_answer() -> None:
    with closing(SharedPool(FAULTY, workers=2)) as pool:
        slow, quick = pool.open(), pool.open()
        for slot in (slow, quick):
            assert pool.reset(slot, "quiet").result(PATIENCE).kind == "reset"
        nap = pool.step(slow, f"nap {2 * PATIENCE}")
        for _ in range(3):
            assert pool.step(quick, "look").result(PATIENCE).kind == "step"
        with pytest.raises(ValueError, match="not answered yet"):
            pool.step(slow, "look").result(PATIENCE)
        assert not nap.done()
        pool.release(slow)
        until(nap.cancelled, "the end of what was given up")


@pytest.mark.parametrize("workers", [0, 1])
def test_what_is_asked_of_a_closed_pool_is_refused(workers: int) -> None:
    pool = SharedPool(CORRIDOR, workers=workers)
    slot = pool.open()
    assert pool.reset(slot, "door-01").result(PATIENCE).kind == "reset"
    with rejects(ValueError, advice="reset it"):
        pool.step(slot + 1, "left").result(PATIENCE)
    pool.close()
    pool.close()
    with pytest.raises(PoolClosed, match="the pool is closed"):
        pool.step(slot, "left")


def test_an_environment_that_cannot_be_built_ends_it_for_every_client() -> None:
    pool = SharedPool(FAULTY, {"broken": "raise"}, workers=1)
    with pytest.raises(PoolClosed, match="cannot be built"):
        pool.reset(pool.open(), "quiet").result(PATIENCE)
    with pytest.raises(PoolClosed, match="cannot be built"):
        pool.reset(0, "quiet")
    pool.close()
