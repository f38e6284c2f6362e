"""Connections are shared among programs, whatever one of them opens."""

import asyncio
import resource
import socket
from contextlib import ExitStack, closing
from urllib.parse import urlsplit

import pytest

from gagpo.base import descriptors
from gagpo.envs.gateway.connections import GRACE_SECONDS, MAX_CONNECTIONS_PER_KEY, Connections
from gagpo.envs.gateway.messages import GatewayError
from tests.envs.program.programs import ask, key_of, play, running


class FakeTransport:
    aborted = False

    def abort(self):
        self.aborted = True


class FakeConnection:
    """What :class:`Connections` reads of a connection."""

    def __init__(self, number, seconds=0.0, idle=True):
        self.address, self.key, self.is_idle, self.idle_seconds = ("127.0.0.1", number), "", idle, seconds
        self.transport = FakeTransport()


@pytest.fixture
def few():
    """Room for 32 connections, half of them without a key."""
    return Connections(64)


def opened(connections, count, **about):
    listed = [FakeConnection(number, **about) for number in range(count)]
    for connection in listed:
        connections.add(connection)
    return [not connection.transport.aborted for connection in listed]


def test_the_oldest_strangers_are_dropped(few):
    assert opened(few, 20, seconds=GRACE_SECONDS) == [False] * 4 + [True] * 16


def test_new_strangers_may_take_all_the_room_for_a_moment(few):
    assert opened(few, 40) == [False] * 8 + [True] * 32
    few.sweep(0.0)
    assert not few._by_address


def test_a_key_gives_up_its_idle_connections_first(few):
    for number in range(20):
        connection = FakeConnection(number, idle=number % 2 == 0)
        few.add(connection)
        few.claim(connection.address, "key", keys=1)
    assert [number for _, number in few._by_address] == [1, 3, 5, 7, *range(8, 20)]


def test_a_key_has_a_share_of_the_room(few):
    def busy(number, key, keys):
        connection = FakeConnection(number, idle=False)
        few.add(connection)
        few.claim(connection.address, key, keys)

    for number in range(4):
        busy(number, "greedy", 8)
    with pytest.raises(GatewayError, match="a program may have 4 requests at a time") as error:
        busy(4, "greedy", 8)
    assert error.value.status == 429
    busy(5, "other", 8)


def test_a_connection_that_ends_is_forgotten(few):
    connection = FakeConnection(1)
    few.add(connection)
    few.claim(connection.address, "key", 1)
    few.remove(connection)
    few.remove(connection)
    assert not few._by_address and not few._by_key
    few.claim(("127.0.0.1", 9), "key", 1)  # one that is closed already


def test_a_failed_accept_is_one_line_and_makes_room(few, caplog):
    connection = FakeConnection(1, seconds=GRACE_SECONDS)
    few.add(connection)
    error = OSError(24, "Too many open files")
    with closing(asyncio.new_event_loop()) as loop:
        for _ in range(3):
            few.handle(loop, {"message": "socket.accept() out of system resource", "exception": error})
    (record,) = caplog.records
    assert "cannot accept" in record.getMessage() and not record.exc_info and connection.transport.aborted


def test_a_flood_of_connections_disturbs_nobody(tmp_path, monkeypatch):
    """As with ``ulimit -n 320``; some hold the beginning of a request."""
    monkeypatch.setattr(descriptors, "raise_limit", lambda: 320)
    with running(tmp_path, "chat(user('one'))\nprint('{\"reward\": 1}')\n") as pool, ExitStack() as stack:
        address = urlsplit(pool._server.address)
        location = (address.hostname, address.port)
        for number in range(240):
            client = stack.enter_context(closing(socket.create_connection(location)))
            if number % 2:
                client.send(b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 100\r\n")
            if number % 20 == 0:  # all earlier ones are accepted: a full queue would have the system wait a second
                assert ask(pool, "/", method="GET")[0] == 401
        assert play(pool, "ok")[-1].reward == 1.0
        assert len(pool._server._connections._by_address) <= 160


def test_a_program_cannot_hold_more_than_its_share(tmp_path):
    with running(tmp_path, "time.sleep(1000)\n") as pool, ExitStack() as stack:
        pool.reset(0, "a", 1)
        pool.flush()
        while not pool._programs:
            pass
        address, key = urlsplit(pool._server.address), key_of(pool)
        head = f"POST /reward HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {key}\r\nContent-Length: 9\r\n\r\n"
        for _ in range(MAX_CONNECTIONS_PER_KEY):
            client = stack.enter_context(closing(socket.create_connection((address.hostname, address.port))))
            client.send(head.encode())  # and never the body
        status, body = ask(pool, "/v1/models", key=key, method="GET")
        assert status == 429 and "requests at a time" in body["error"]["message"]


@pytest.mark.parametrize(
    ("soft", "hard", "result"),
    [
        (1024, 4096, 4096),
        (1024, resource.RLIM_INFINITY, 65_536),
        (1024, 1 << 20, 65_536),
        (1024, 1024, 1024),
        (100_000, 1 << 20, 100_000),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, 65_536),
    ],
)
def test_the_limit_of_descriptors_is_raised_within_reason(monkeypatch, soft, hard, result):
    raised = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: raised.append(limits))
    assert descriptors.raise_limit() == result
    assert raised == ([(result, hard)] if result > soft > 0 else [])


def test_a_limit_that_cannot_be_raised_stays(monkeypatch):
    def refuse(*given):
        raise ValueError("not allowed")

    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert descriptors.raise_limit() == 1024
