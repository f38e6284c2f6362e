"""Environments on a server: concurrency, faults, deadlines, and lost servers."""

import json
import threading
import time
from contextlib import closing

import pytest
from gymnasium.error import ResetNeeded

pytest.importorskip("websockets")

from gagpo.base.errors import InvalidArgument
from gagpo.envs.lookup import find_spec
from gagpo.envs.pool import slots
from gagpo.envs.pool.slots import BasePool
from gagpo.envs.remote.env import RemoteEnv
from gagpo.envs.remote.pool import RemotePool, open_pool
from gagpo.envs.remote.protocol import ServerFailed
from tests.envs.remote.session_server import counting, observation, serving

pytestmark = pytest.mark.interop
PATIENCE = 60.0


def play(pool, episodes):
    """All episodes at once, three steps each; the events of each slot."""
    played = {slot: [] for slot in range(episodes)}
    for slot in played:
        pool.reset(slot, f"train-{slot:07d}", slot)
    running = set(played)
    while running:
        events = pool.wait(PATIENCE)
        assert events, f"nothing came in {PATIENCE:g} s"
        for event in events:
            played[event.slot].append(event)
            if event.kind == "failed" or event.terminated or event.truncated:
                running.discard(event.slot)
            else:
                pool.step(event.slot, "go")
    return played


def test_episodes_are_played_and_their_tasks_are_seeds():
    with serving() as server, open_pool(server.url, {"train": 8}) as pool:
        assert isinstance(pool, RemotePool) and isinstance(pool, BasePool)
        played = play(pool, 8)
        for slot, events in played.items():
            assert [event.kind for event in events] == ["reset", "step", "step", "step"]
            assert events[0].observation == f"seed {slot}"
            assert [event.observation for event in events[1:]] == [f"seed {slot} step {n} go" for n in (1, 2, 3)]
            assert (events[-1].reward, events[-1].terminated, events[-1].info["success"]) == (1.0, True, True)
            assert events[-1].info["task"] == f"train-{slot:07d}" and events[-1].info["split"] == "train"
        play(pool, 8)  # the same sessions again
        assert len(server.opened) == 8
        assert (pool.counters.steps, pool.counters.resets, pool.counters.restarts) == (48, 16, 0)


def test_two_hundred_slow_envs_step_at_the_same_time():
    """No environment answers before all have been asked: whoever waits for one after the other waits for ever."""
    together = threading.Barrier(200, timeout=PATIENCE)

    def answer(message, state):
        if message["type"] == "step" and not state["steps"]:
            together.wait()
        return counting(message, state)

    with serving(answer) as server, open_pool(server.url) as pool:
        assert all(len(events) == 4 for events in play(pool, 200).values())
        assert pool.counters.restarts == 0


def test_envs_run_while_the_caller_does_something_else():
    stepped = threading.Event()

    def answer(message, state):
        if message["type"] == "step":
            stepped.set()
        return counting(message, state)

    with serving(answer) as server, open_pool(server.url) as pool:
        pool.reset(0, "train-0000000", 0)
        pool.wait(PATIENCE)
        pool.step(0, "go")
        pool.flush()
        assert stepped.wait(PATIENCE)


def test_an_env_that_hangs_costs_its_own_episode_alone():
    def answer(message, state):
        if message["type"] == "step" and state["seed"] == 1:
            return None
        return counting(message, state)

    with serving(answer) as server, open_pool(server.url, step_deadline=0.5, max_restarts=1) as pool:
        played = play(pool, 3)
        assert [event.kind for event in played[1]] == ["reset", "restarted", "failed"]
        assert "step took more than 0.5 s" in played[1][-1].error
        assert len(played[0]) == len(played[2]) == 4
        assert (pool.counters.hangs, pool.counters.failures) == (2, 1)


def test_an_episode_that_the_server_never_ends_is_truncated(monkeypatch):
    monkeypatch.setattr(slots, "MOST_TURNS", 5)
    with serving(lambda message, state: observation("on and on")) as server, open_pool(server.url) as pool:
        for _ in range(2):  # the same session again
            for events in play(pool, 2).values():
                assert [event.kind for event in events] == ["reset", *["step"] * 5]
                assert [event.truncated for event in events] == [False] * 5 + [True]


def test_an_error_of_the_env_starts_its_episode_over():
    broken = {2}

    def answer(message, state):
        if message["type"] == "step" and state["seed"] in broken:
            broken.discard(state["seed"])
            return json.dumps(
                {"type": "error", "data": {"message": "the environment\nbroke", "code": "EXECUTION_ERROR"}}
            )
        return counting(message, state)

    with serving(answer) as server, open_pool(server.url) as pool:
        played = play(pool, 4)
        assert [event.kind for event in played[2]] == ["reset", "restarted", "step", "step", "step"]
        assert played[2][1].error.endswith("the environment broke'") and played[2][1].observation == "seed 2"
        assert pool.counters.errors == pool.counters.restarts == 1


@pytest.mark.parametrize(
    "said",
    [
        *("", "{", "[]", "null", "3", "[" * 100_000, '{"type": "error", "data": 3}', b"\xff\x00"),
        observation("x" * (5 << 20)),
        observation("a", "much"),
        '{"type": "observation", "data": {"observation": {"text": "a"}, "reward": NaN, "metadata": 3}}',
        '{"type": "observation", "data": {"observation": {"text": "a"}, "reward": ' + "9" * 5000 + "}}",
        observation("a", success="false"),
        observation("a", done=1),
        observation("a", valid=[]),
    ],
    ids=range(15),
)
def test_no_answer_brings_more_than_a_failed_episode(said):
    with serving(lambda message, state: said) as server, open_pool(server.url, max_restarts=1) as pool:
        (events,) = play(pool, 1).values()
        assert [event.kind for event in events] == ["failed"]
        assert "\n" not in events[0].error and len(events[0].error) < 500 and server.url in events[0].error


@pytest.mark.parametrize(
    "said",
    [
        '{"type": "observation", "data": 3}',
        observation("\ud800 half a character"),
        observation(["no text"]),
        '{"type": "observation", "data": {"observation": {"text": "a", "admissible_actions": [1, {}]}}}',
    ],
)
def test_odd_answers_are_text_all_the_same(said):
    with serving(lambda message, state: said) as server, open_pool(server.url) as pool:
        pool.reset(0, "train-0000000", 0)
        (event,) = pool.wait(PATIENCE)
        assert event.kind == "reset" and event.observation.encode() and event.info["admissible_actions"] is None


def test_a_redirect_is_refused():
    """A server must not send its client to another host."""
    with serving() as other:
        to = other.url.replace("http", "ws") + "/ws"
        with serving(redirect=to) as server, open_pool(server.url) as pool:
            pool.reset(0, "train-0000000", 0)
            with pytest.raises(ServerFailed, match="HTTP 302"):
                pool.wait(PATIENCE)
        assert other.opened == []


def test_one_session_is_an_environment():
    with serving() as server, closing(RemoteEnv(server.url, train=8)) as env:
        with pytest.raises(ResetNeeded, match="reset before"):
            env.step("go")
        starts = []
        for seed in (1, 2, 1):
            observation, info = env.reset(seed=seed)
            starts.append((observation, info["task"]))
        assert starts[0] == starts[2] != starts[1]
        assert env.reset(options={"task": "train-0000005"})[0] == "seed 5"
        assert [env.step("go")[1:3] for _ in range(3)] == [(0.0, False), (0.0, False), (1.0, True)]
        with pytest.raises(ResetNeeded, match="is over"):
            env.step("go")
    with serving(lambda message, state: "no JSON") as server, closing(RemoteEnv(server.url)) as env:
        for _ in range(2):
            with pytest.raises(ServerFailed, match="not JSON"):
                env.reset(seed=0)


def test_an_answer_in_drips_ends_at_the_deadline():
    over = threading.Event()

    def drips(message, state):
        if message["type"] == "reset":
            return counting(message, state)

        def parts():
            while not over.wait(0.1):
                yield " "

        return parts()

    with serving(drips) as server, open_pool(server.url, step_deadline=0.5, max_restarts=0) as pool:
        (events,) = play(pool, 1).values()
        assert [event.kind for event in events] == ["reset", "failed"] and "more than 0.5 s" in events[1].error
        over.set()


def test_a_server_that_admits_few_has_the_others_wait(caplog):
    with serving(most=3) as server, open_pool(server.url) as pool:
        played = play(pool, 10)
        assert all([event.kind for event in events] == ["reset", "step", "step", "step"] for events in played.values())
    assert any("further episodes wait" in record.getMessage() for record in caplog.records)


def test_a_session_that_ended_while_it_lay_idle_is_nobodys_fault():
    with serving() as server, open_pool(server.url) as pool:
        play(pool, 3)
        for connection in server.opened:
            connection.close()
        assert all(len(events) == 4 for events in play(pool, 3).values())
        assert pool.counters.restarts == pool.counters.crashes == 0


def test_a_server_that_comes_back_is_gone_on_with(caplog):
    with serving() as server, open_pool(server.url) as pool:
        port = server.socket.getsockname()[1]
        for slot in range(4):
            pool.reset(slot, f"train-{slot:07d}", slot)
        seen = 0
        while seen < 4:
            seen += len(pool.wait(PATIENCE))
        server.shutdown()
        server.socket.close()
        for connection in server.opened:
            connection.close()
        for slot in range(4):
            pool.step(slot, "go")
        assert pool.wait(1.0) == []  # nobody is there
        with serving(port=port):
            found = []
            while len(found) < 4:
                found += pool.wait(PATIENCE)
            assert {event.kind for event in found} == {"restarted"}
            for slot in range(4):
                pool.step(slot, "go")
            again = []
            while len(again) < 4:
                again += pool.wait(PATIENCE)
            assert {event.kind for event in again} == {"step"}
    said = [record.getMessage() for record in caplog.records if server.url in record.getMessage()]
    assert len(said) == 2 and "cannot be reached" in said[0] and "can be reached again" in said[1]


def test_a_lost_server_is_one_line():
    with serving() as server, open_pool(server.url, reset_deadline=1.0) as pool:
        pool.reset(0, "train-0000000", 0)
        pool.wait(PATIENCE)
        server.shutdown()
        server.socket.close()
        server.opened[0].close()
        pool.step(0, "go")
        with pytest.raises(ServerFailed, match="was not reached within 1 s") as caught:
            pool.wait(PATIENCE)
    assert "\n" not in str(caught.value)
    with pytest.raises(ServerFailed, match=r"http://127\.0\.0\.1:9/"):
        open_pool("http://127.0.0.1:9")


def test_what_a_slot_gave_up_is_not_answered():
    free = threading.Event()

    def answer(message, state):
        if message["type"] == "step" and message["data"]["action"] == "wait":
            free.wait(PATIENCE)
        return counting(message, state)

    with serving(answer) as server, open_pool(server.url) as pool:
        pool.reset(0, "train-0000000", 0)
        pool.wait(PATIENCE)
        pool.step(0, "wait")
        pool.flush()
        pool.reset(0, "train-0000005", 0)  # in the middle of a step
        (event,) = pool.wait(PATIENCE)
        assert (event.kind, event.observation) == ("reset", "seed 5")
        free.set()
        pool.release(0)
        assert pool.wait(0.2) == []


def test_what_cannot_be_is_said():
    with serving() as server, open_pool(server.url, {"train": 3}) as pool:
        pool.reset(2, "train-0000007")
        (event,) = pool.wait(PATIENCE)
        assert event.kind == "failed" and "has no task" in event.error
    with pytest.raises(InvalidArgument, match="pool is closed"):
        pool.reset(0, "train-0000000")
    for wrong in ({"train": 0}, {"house": 3}):
        with serving() as server, pytest.raises(InvalidArgument, match=r"train|house"):
            open_pool(server.url, wrong)
    with pytest.raises(InvalidArgument, match="deadlines"):
        open_pool("http://127.0.0.1:9", step_deadline=0.0)


def test_nothing_of_it_lives_on():
    before = threading.active_count()
    with serving(lambda message, state: None) as server:
        pool = open_pool(server.url)
        for slot in range(5):
            pool.reset(slot, f"train-{slot:07d}")
        pool.flush()
        while len(server.opened) < 5:
            time.sleep(0.01)
        pool.close()
        pool.close()
        assert not [thread for thread in threading.enumerate() if thread.name == "remote-sessions"]
    assert threading.active_count() <= before + 10


def test_the_address_is_an_id():
    assert find_spec("https://environments.example/a").kwargs == {"url": "https://environments.example/a"}
