"""Hosts that die at any moment: each request is still answered once, and what was played can be counted."""

import random
import threading
import time
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait

import pytest

from gagpo.base.errors import InvalidArgument
from gagpo.envs.pool import EnvironmentBroken, WorkerPool
from gagpo.envs.saved import CannotRestore
from gagpo.ray.pool import ClusterPool, HostLost, HostsLost, PoolHost

CORRIDOR = "gagpo.envs.testing:gagpo-test/Corridor-v0"
FAULTY = "gagpo.envs.testing:gagpo-test/Faulty-v0"
THREADS = ThreadPoolExecutor(16)


class ThreadConnection:
    """A host in a thread of this process. dies: called with the number of its exchange, says whether it dies in it."""

    def __init__(self, env_id=CORRIDOR, kwargs=None, dies=lambda count: False):
        self.settings, self.dies = (env_id, kwargs or {}, {"workers": 0}), dies
        self.count, self.hosts, self.hangs = 0, 0, threading.Event()
        self.hang = False
        self.replace()

    def replace(self):
        self.host, self.lock = PoolHost(*self.settings), threading.Lock()
        self.hosts += 1

    def ask(self, batch):
        self.count += 1
        return THREADS.submit(self._exchange, self.host, self.lock, batch, self.dies(self.count))

    def _exchange(self, host, lock, batch, dies):
        if self.hang:
            self.hangs.wait(30)
        with lock:
            answer = host.exchange(batch)
        if dies:
            raise HostLost("it was killed")
        return answer

    def answer(self, call):
        return call.result()

    def close(self):
        self.host.close()


def ready(calls, timeout):
    return list(wait(calls, timeout, FIRST_COMPLETED).done)


def play(pool, slots=6, actions=("left",) * 4):
    """Every slot a task and the same actions; returns what was seen, restarts of an episode left out, and counts."""
    seen, counts = {}, {"answers": 0, "requests": 0, "restarted": 0}
    for slot in range(slots):
        pool.reset(slot, f"door-{slot % 8:02d}", seed=slot)
        counts["requests"] += 1
    left = set(range(slots))
    while left:
        for event in pool.wait(timeout=5):
            counts["answers"] += 1
            counts["restarted"] += event.kind == "restarted"
            if event.kind in ("reset", "restarted"):
                seen[event.slot] = [event.observation]
            else:
                assert event.kind == "step"
                seen[event.slot].append((event.observation, event.reward))
            if len(seen[event.slot]) > len(actions) or event.terminated:
                left.discard(event.slot)
                pool.release(event.slot)
            else:
                pool.step(event.slot, actions[len(seen[event.slot]) - 1])
                counts["requests"] += 1
    assert counts["answers"] == counts["requests"]
    return seen, counts


def test_it_plays_what_one_pool_plays():
    with WorkerPool(CORRIDOR, workers=0) as pool:
        expected = play(pool)[0]
    with ClusterPool([ThreadConnection(), ThreadConnection()], ready) as pool:
        seen, counts = play(pool)
        assert seen == expected and counts["restarted"] == 0
        assert pool.counters.as_dict() == {
            "crashes": 0, "hangs": 0, "errors": 0, "restarts": 0, "failures": 0, "resets": 6,
            "steps": sum(len(turns) - 1 for turns in seen.values()),
        }  # fmt: skip


@pytest.mark.parametrize("seed", range(6))
def test_hosts_that_die_at_any_moment_lose_nothing_and_are_counted(seed):
    with WorkerPool(CORRIDOR, workers=0) as pool:
        expected = play(pool)[0]
    rng, deaths = random.Random(seed), []

    def dies(count):
        if len(deaths) < 10 and rng.random() < 0.4:
            deaths.append(count)
        else:
            return False
        return True

    connections = [ThreadConnection(dies=dies) for _ in range(3)]
    with ClusterPool(connections, ready, restarts=10) as pool:
        seen, counts = play(pool)
        assert seen == expected
        told = pool.counters
        assert told.crashes == len(deaths) == sum(connection.hosts - 1 for connection in connections) and deaths
        assert told.restarts == counts["restarted"] and told.failures == 0
        assert told.steps + told.resets == counts["answers"]


def test_a_silent_host_is_replaced_at_the_deadline():
    connection = ThreadConnection()
    with ClusterPool([connection, ThreadConnection()], ready, deadline=0.5) as pool:
        connection.hang = True
        for slot in range(4):
            pool.reset(slot, "door-01", seed=slot)
        events = pool.wait(timeout=0.2, at_least=4)
        connection.hang = False
        end = time.monotonic() + 30
        while len(events) < 4 and time.monotonic() < end:
            events += pool.wait(timeout=1)
        assert sorted(event.slot for event in events) == [0, 1, 2, 3] and {event.kind for event in events} == {"reset"}
        assert connection.hosts == 2 and pool.counters.crashes == 1
    connection.hangs.set()


def test_an_episode_that_waited_for_its_agent_starts_over_with_its_next_step():
    connection = ThreadConnection()
    with ClusterPool([connection], ready) as pool:
        pool.reset(0, "door-01", seed=3)
        pool.reset(1, "door-01", seed=3)
        first = pool.wait(at_least=2)[0].observation
        connection.dies = lambda count: True
        pool.step(1, "left")
        pool.flush()
        connection.dies = lambda count: False
        (other,) = pool.wait()
        assert other.slot == 1 and other.kind == "restarted" and other.error == "it was killed"
        pool.step(0, "left")
        (event,) = pool.wait()
        assert event.kind == "restarted" and event.observation == first and event.error == "it was killed"
        pool.step(0, "left")
        assert pool.wait()[0].kind == "step"


def test_hosts_that_die_too_often_end_it(caplog):
    with ClusterPool([ThreadConnection(dies=lambda count: True)], ready, restarts=3) as pool:
        pool.reset(0, "door-01")
        with pytest.raises(HostsLost, match=r"too often \(cluster.restarts\); the last: it was killed"):
            pool.wait()
    assert caplog.messages == ["lost a host of environments, another takes its place: it was killed"] * 3


def test_what_a_pool_says_of_its_environment_is_passed_on():
    pool = ClusterPool([ThreadConnection(FAULTY, {"broken": "raise"})], ready)
    pool.reset(0, "quiet")
    with pytest.raises(EnvironmentBroken, match="cannot be built: RuntimeError: broken on purpose"):
        pool.wait()
    with ClusterPool([ThreadConnection(FAULTY)], ready) as pool:
        pool.reset(0, "quiet", seed=1)
        pool.wait()
        for _ in range(4):
            pool.step(0, "raise")
            (event,) = pool.wait()
        assert event.kind == "failed" and pool.counters.failures == 1 and pool.counters.errors == 4
        with pytest.raises(InvalidArgument):
            pool.step(0, "left")


def test_a_slot_that_is_reset_hears_nothing_of_the_episode_before():
    with ClusterPool([ThreadConnection()], ready) as pool:
        pool.reset(0, "door-01", seed=1)
        pool.flush()
        pool.reset(0, "door-05", seed=2)
        events = pool.wait()
        events += pool.wait(timeout=0.3)
        assert len(events) == 1 and "door 5" in events[0].observation


def test_misuse_is_named():
    with pytest.raises(InvalidArgument, match="at least one host"):
        ClusterPool([], ready)
    pool = ClusterPool([ThreadConnection()], ready)
    with pytest.raises(InvalidArgument, match="waits for an action"):
        pool.step(0, "left")
    with pytest.raises(InvalidArgument, match="non-negative"):
        pool.reset(-1, "door-01")
    assert pool.wait() == []
    pool.close()
    pool.close()
    with pytest.raises(InvalidArgument, match="closed"):
        pool.reset(0, "door-01")


def test_a_state_that_one_host_saved_is_gone_on_from_at_another():
    connections = [ThreadConnection(), ThreadConnection()]
    with ClusterPool(connections, ready) as pool:
        pool.reset(0, "door-02", seed=3)
        pool.reset(1, "door-03", seed=3)
        assert len(pool.wait(timeout=5, at_least=2)) == 2
        pool.step(0, "left")
        (seen,) = pool.wait(timeout=5)
        token = pool.save(0)
        pool.restore(1, token)
        (event,) = pool.wait(timeout=5)
        assert (event.slot, event.kind, event.observation, event.info) == (1, "restored", seen.observation, seen.info)
        with pytest.raises(InvalidArgument, match="slot 7 holds no episode"):
            pool.save(7)


def test_a_host_that_dies_while_it_saves_is_told_and_its_episode_starts_over():
    connection = ThreadConnection()
    with ClusterPool([connection], ready) as pool:
        pool.reset(0, "door-02", seed=3)
        (first,) = pool.wait(timeout=5)
        connection.dies = lambda count: True
        with pytest.raises(CannotRestore, match="starts over with its next step: it was killed"):
            pool.save(0)
        connection.dies = lambda count: False
        pool.step(0, "left")
        (event,) = pool.wait(timeout=5)
        assert (event.kind, event.observation) == ("restarted", first.observation)
