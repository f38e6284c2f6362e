"""Sessions of several servers in one pool: lost, full and silent servers."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator

import pytest

pytest.importorskip("openenv", reason="the optional package openenv is not installed")

from gagpo.envs.openenv.errors import ServerLost
from gagpo.envs.pool import Pool
from gagpo.envs.pool.opening import open_pool
from tests.envs.openenv.servers import CountServer
from tests.rejections import rejects

pytestmark = pytest.mark.interop


@pytest.fixture
def servers() -> Iterator[list[CountServer]]:
    pair = [CountServer(), CountServer()]
    yield pair
    for server in pair:
        server.kill()


def opened(servers: list[CountServer], **options: float) -> Pool:
    return open_pool(",".join(server.address for server in servers), {}, **options)


def run(pool: Pool, episodes: int, at_event: int = -1, action=lambda: None) -> tuple[Counter[str], dict[int, int]]:
    """Run an episode in each slot; the kinds of events, and the rewarded steps of each slot."""
    for slot in range(episodes):
        pool.reset(slot, f"train-{slot:07d}")
    steps: dict[int, int] = dict.fromkeys(range(episodes), 0)
    type_names: Counter[str] = Counter()
    running = episodes
    deadline = time.monotonic() + 60
    while running:
        assert time.monotonic() < deadline
        for event in pool.wait(5):
            type_names[event.kind] += 1
            if sum(type_names.values()) == at_event:
                action()
            if event.kind == "failed" or event.terminated:
                running -= 1
                continue
            if event.kind in ("reset", "restarted"):
                assert event.observation == f"seed {event.slot}"
                steps[event.slot] = 0
            steps[event.slot] += 1
            pool.step(event.slot, str(steps[event.slot]))
    return type_names, steps


def test_episodes_are_spread_over_the_servers(servers):
    with opened(servers) as pool:
        type_names, steps = run(pool, 8)
        assert type_names == {"reset": 8, "step": 32} and set(steps.values()) == {4}
    assert [server.resets for server in servers] == [4, 4]


def test_a_lost_server_costs_its_episodes_only(servers):
    with opened(servers) as pool:
        type_names, steps = run(pool, 8, at_event=20, action=servers[0].kill)
        assert set(steps.values()) == {4} and type_names["failed"] == 0 and type_names["reset"] == 8
        assert 0 < type_names["restarted"] <= 4 and pool.counters.restarts == type_names["restarted"]
        assert pool.counters.crashes >= 1 and pool.counters.failures == 0
        type_names, _ = run(pool, 8)  # all on the other server
        assert type_names == {"reset": 8, "step": 32}
    assert servers[0].resets == 4 and servers[1].resets >= 12


def test_episodes_wait_while_no_server_is_there(servers):
    with opened(servers, reset_timeout=2.0) as pool:
        for server in servers:
            server.kill()
        pool.reset(0, "train-0000001")
        assert pool.wait(0.5) == []
        with rejects(ServerLost, "2 s", advice="start one"):
            while True:
                pool.wait(1.0)


def test_a_full_server_leaves_its_episodes_to_others(servers):
    servers[0].full = True
    with opened(servers) as pool:
        type_names, _ = run(pool, 6)
        assert type_names == {"reset": 6, "step": 24}, "a refused session is no fault of the episode"
    assert [server.resets for server in servers] == [0, 6]


def test_a_silent_server_costs_a_deadline(servers, monkeypatch):
    answered = servers[0].reply
    with opened(servers[:1], step_timeout=0.5) as pool:
        pool.reset(0, "train-0000003")
        assert [event.kind for event in pool.wait(10)] == ["reset"]
        monkeypatch.setattr(servers[0], "reply", lambda request: time.sleep(3.0))
        pool.step(0, "1")
        pool.flush()
        time.sleep(0.7)
        monkeypatch.setattr(servers[0], "reply", answered)
        (event,) = pool.wait(20)
        assert event.kind == "restarted" and "did not answer within 0.5 s" in event.error
        assert pool.counters.hangs == 1


def test_released_slots_are_reused_with_a_request_under_way(servers):
    with opened(servers) as pool:
        for number in range(30):
            pool.reset(0, f"train-{number:07d}")
            pool.flush()
        (event,) = pool.wait(10)
        assert event.observation == "seed 29"
        assert pool.outstanding == 0


def test_closing_ends_requests_under_way(servers, monkeypatch):
    monkeypatch.setattr(servers[0], "reply", lambda request: time.sleep(2.0))
    pool = opened(servers[:1])
    pool.reset(0, "train-0000001")
    pool.flush()
    begun = time.monotonic()
    pool.close()
    assert time.monotonic() - begun < 20
