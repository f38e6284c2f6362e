"""The metadata of an OpenEnv server: any invalid answer is a one-line error."""

import json
import re
import socket
import time

import pytest

from gagpo.envs.remote import server as module
from gagpo.envs.remote.protocol import ServerFailed
from gagpo.envs.remote.server import Server
from tests.agents.raw_server import answering, reply

BODIES = {
    "half of a JSON": b'{"a"',
    "deep nesting": b"[" * 200_000,
    "not UTF-8": b'"\xff"',
    "nothing": b"",
}


def lists(splits=b'[{"name": "train"}]', count=None, pages=()):
    """The answers of a server of one environment, in the order in which they are asked for."""
    bodies = [b'["env"]', splits, json.dumps({"num_tasks": count}).encode(), *pages]
    return lambda number: [reply(body) if isinstance(body, bytes) else body for body in bodies[number : number + 1]]


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
def test_a_body_that_is_not_json_is_one_line(body):
    with answering(lambda number: [reply(body)]) as server, pytest.raises(ServerFailed, match="http://127") as caught:
        _ = Server(server.url).splits
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500


def test_an_endless_body_is_not_held(monkeypatch):
    monkeypatch.setattr(module, "MOST_BYTES", 1 << 20)
    endless = [b"HTTP/1.1 200 OK\r\n\r\n", *[b"[" * 100_000] * 2000]
    with answering(lambda number: endless) as server, pytest.raises(ServerFailed, match="more than 1048576 bytes"):
        _ = Server(server.url).splits
    assert server.sent < 100e6


def test_a_slow_body_ends_at_the_deadline(monkeypatch):
    monkeypatch.setattr(module, "TIMEOUT", 0.5)
    slow = [b"HTTP/1.1 200 OK\r\n\r\n", *[b" ", 0.1] * 600]
    with answering(lambda number: slow) as server, pytest.raises(ServerFailed, match=r"did not answer within 0\.5 s"):
        _ = Server(server.url).splits


def test_an_unreachable_server_is_reported_within_five_seconds():
    """A listener whose queue is full drops connections, as an unroutable host does."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        waiting = [socket.socket() for _ in range(8)]
        try:
            for one in waiting:
                one.setblocking(False)
                one.connect_ex(address)
            begun = time.monotonic()
            with pytest.raises(ServerFailed, match=f"127.0.0.1:{address[1]}"):
                _ = Server(f"http://127.0.0.1:{address[1]}").splits
            assert time.monotonic() - begun < 5
        finally:
            for one in waiting:
                one.close()


def test_a_server_that_lists_no_tasks_is_played_by_seeds():
    missing = [b'["env"]', b"{}"]
    answers = [reply(missing[0]), reply(missing[1], "501 Not Implemented"), reply(b'{"action": {}}'), reply(b"{}")]
    with answering(lambda number: [answers[number]]) as server:
        found = Server(server.url, train=3)
        assert found.splits == ("train", "test") and found.tasks("train").ids[-1] == "train-0000002"


def test_splits_that_cannot_be_had_are_not_replaced_by_seeds():
    answers = [reply(b'["env"]'), reply(b"{}", "500 Internal Server Error")]
    failed = pytest.raises(ServerFailed, match="/env/splits: status 500")
    with answering(lambda number: [answers[number]]) as server, failed:
        _ = Server(server.url).splits


@pytest.mark.parametrize("splits", [b"5", b'{"name": "train"}', b'["train"]', b'[{"name": 3}]', b"[{}]"])
def test_splits_of_another_form_are_one_line(splits):
    with answering(lists(splits)) as server, pytest.raises(ServerFailed, match="/env/splits: expected") as caught:
        _ = Server(server.url).splits
    assert "\n" not in str(caught.value)


def page(numbers):
    return json.dumps({"tasks": [{"id": f"task-{number}"} for number in numbers]}).encode()


def test_tasks_are_listed_page_by_page():
    with answering(lists(count=5, pages=[page(range(2)), page(range(2, 4)), page(range(4, 5))])) as server:
        assert Server(server.url).tasks("train").ids == [f"task-{number}" for number in range(5)]


@pytest.mark.parametrize(
    ("limits", "count", "words"),
    [
        ({"MOST_TASKS": 3}, 4, "has 4 tasks; the limit is 3"),
        ({"MOST_TASKS": 3}, 3, "lists more than 3 tasks"),
        ({"MOST_TASKS": 3}, None, "lists more than 3 tasks"),
        ({"ALL_BYTES": 200}, 8, "take more than 200 bytes"),
        ({}, 9, "has 9 tasks but lists 8 of them"),
        ({}, 3, "holds task 'task-0' twice"),
    ],
)
def test_the_listing_of_tasks_is_bounded(monkeypatch, limits, count, words):
    for name, value in limits.items():
        monkeypatch.setattr(module, name, value)
    first = page([0, 0, 1]) if count == 3 and not limits else page(range(4))
    pages = [first, page(range(4, 8)), page([])]
    with answering(lists(count=count, pages=pages)) as server, pytest.raises(ServerFailed, match=re.escape(words)):
        Server(server.url, 1, 1).tasks("train")


def test_a_listing_that_never_ends_is_bounded_in_time(monkeypatch):
    monkeypatch.setattr(module, "ALL_SECONDS", 1.0)
    begun, ready = time.monotonic(), lists(count=1000)

    def drips(number):
        return ready(number) if number < 3 else [0.1, reply(page([number]))]

    with answering(drips) as server, pytest.raises(ServerFailed, match=r"more than 1 s|did not answer within 0\.\d+ s"):
        Server(server.url).tasks("train")
    assert time.monotonic() - begun < 10


@pytest.mark.parametrize("schema", [[], {"action": []}, {"action": {"required": {}}}, "x", None, 3])
def test_a_schema_of_another_form_does_no_harm(schema):
    with answering(lambda number: [reply(json.dumps(schema).encode())]) as server:
        assert Server(server.url).field == "action"
