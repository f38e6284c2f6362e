"""Container engines: which one is asked, and that whatever it answers is one line, in time, and leaves no container."""

import asyncio
import json
import threading
import time
from pathlib import Path

import pytest

from gagpo.base.errors import GagpoError
from gagpo.envs.remote import containers as module
from gagpo.envs.remote.container_engine import ContainerEngine, EngineFailed, find_engine, usual_sockets
from gagpo.envs.remote.container_settings import ContainerSettings
from gagpo.envs.remote.containers import ContainerFailed, Containers
from tests.envs.remote.engine_server import IMAGE, Container, engine_server
from tests.envs.remote.test_containers import PATIENCE, opened, until


@pytest.fixture
def engine(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.1)
    with engine_server(tmp_path) as server:
        yield server


def test_where_there_is_no_engine_one_line_says_what_was_looked_for(tmp_path):
    variables = {"XDG_RUNTIME_DIR": str(tmp_path), "HOME": str(tmp_path)}
    (tmp_path / "docker.sock").write_text("")
    sockets = usual_sockets(variables)
    if any(Path(one).exists() for one in sockets[3:]):
        pytest.skip("this machine has an engine")
    with pytest.raises(EngineFailed, match="needs Docker or Podman, and neither answers") as caught:
        find_engine(variables)
    words = str(caught.value)
    assert all(one in words for one in sockets) and f"{tmp_path}/docker.sock (is no socket)" in words
    assert "DOCKER_HOST" in words and "podman.socket" in words and "\n" not in words


def test_a_users_own_engine_comes_first(engine, tmp_path):
    (tmp_path / "podman").mkdir()
    (tmp_path / "podman/podman.sock").symlink_to(engine.socket)
    assert find_engine({"XDG_RUNTIME_DIR": str(tmp_path)}).socket == str(tmp_path / "podman/podman.sock")
    assert find_engine({"CONTAINER_HOST": f"unix://{engine.socket}"}).socket == engine.socket


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:2375", "ssh://host", "unix://", "x\ny", "http://a"])
def test_an_engine_elsewhere_is_refused(address):
    with pytest.raises(EngineFailed, match="only an engine of this machine") as caught:
        find_engine({"DOCKER_HOST": address})
    assert "\n" not in str(caught.value)


def test_a_socket_of_something_else_is_no_engine(engine):
    for answer in ((200, b"hello"), (404, {"message": "no"}), (500, b"<html>\n\x1b[2J")):
        engine.odd = {"_ping": answer}
        with pytest.raises(EngineFailed) as caught:
            ContainerEngine(engine.socket)
        assert "\n" not in str(caught.value) and "\x1b" not in str(caught.value) and engine.socket in str(caught.value)
    with pytest.raises(EngineFailed, match="does not answer"):
        ContainerEngine("/nowhere.sock")


def test_an_image_that_is_not_there_is_not_fetched(engine):
    with pytest.raises(EngineFailed, match=r"has no image 'worlds/other:2'.*docker pull worlds/other:2"):
        Containers(ContainerEngine(engine.socket), "worlds/other:2", ContainerSettings())
    assert engine.created == []


def test_an_engine_that_refuses_is_quoted(engine):
    engine.odd = {"/start": (500, {"message": "no space left\non device"})}
    with pytest.raises(EngineFailed, match="no space left on device"):
        opened(engine)
    assert engine.containers == {}


def test_an_engine_that_is_away_for_a_while_costs_nothing(engine, caplog):
    containers = opened(engine)
    engine.odd = {"/containers/": (500, {"message": "restarting"})}
    until(lambda: "not looked after now" in caplog.text, "nobody noticed")
    time.sleep(0.5)
    engine.odd = {}
    assert caplog.text.count("not looked after now") == 1
    (first,) = engine.running
    first.end()
    until(lambda: engine.running, "no other took its place")
    containers.close()


def test_an_answer_without_end_is_given_up(engine, monkeypatch):
    monkeypatch.setattr("gagpo.envs.remote.container_engine.MOST", 1000)
    engine.odd = {"/images/": (200, b" " * 100_000)}
    with pytest.raises(EngineFailed, match="does not end"):
        opened(engine)
    held = threading.Event()
    engine.odd = {"/images/": lambda: held.wait(PATIENCE) and (200, b"{}")}
    monkeypatch.setattr("gagpo.envs.remote.container_engine.ANSWER_SECONDS", 0.3)
    with pytest.raises(EngineFailed, match="does not answer"):
        opened(engine)
    held.set()


HEAD = b"HTTP/1.1 200 OK\r\nx: "
EARLY = b"HTTP/1.1 103 Early Hints\r\n\r\n"


@pytest.mark.parametrize("begun, more", [(HEAD, b"y"), (b"", EARLY), (HEAD + b"y\r\n\r\n", b" ")])
def test_a_byte_now_and_then_does_not_put_off_the_deadline(engine, monkeypatch, begun, more):
    monkeypatch.setattr("gagpo.envs.remote.container_engine.ANSWER_SECONDS", 0.5)
    client, given_up = ContainerEngine(engine.socket), threading.Event()

    def steps():
        yield begun
        while not given_up.is_set():
            yield more
            yield 0.05

    engine.spoiled = lambda method, path, sound: steps()
    watchdog = threading.Timer(PATIENCE, engine.closing.set)
    watchdog.start()
    with pytest.raises(EngineFailed, match=r"did not answer within 0\.5 s"):
        client.image(IMAGE)
    given_up.set()
    watchdog.cancel()


def test_an_end_that_is_refused_once_is_asked_for_again(engine, caplog):
    containers, refused = opened(engine, containers=2), []

    def refuse_once():
        refused.append(1)
        return (500, {"message": "busy"}) if len(refused) == 1 else None

    engine.refused = lambda method, path: refuse_once() if method == "DELETE" else None
    containers.close()
    assert engine.containers == {} and "could not be removed" in caplog.text and len(refused) == 3


def test_an_engine_that_hangs_does_not_hold_up_the_end(engine, monkeypatch):
    monkeypatch.setattr("gagpo.envs.remote.container_engine.ANSWER_SECONDS", 0.3)
    monkeypatch.setattr(module, "END_SECONDS", 0.4)
    containers, asked = opened(engine, containers=8), []
    engine.spoiled = lambda method, path, sound: asked.append(path) or iter([PATIENCE])
    containers.close()
    assert len(asked) < 8


def test_they_can_be_let_go_in_an_event_loop(engine):
    """A lease that nobody closed is collected in whatever thread, and that may have a loop of its own."""
    containers = opened(engine, containers=2)

    async def let_go():
        containers.close()

    asyncio.run(let_go())
    assert engine.containers == {}


def test_an_address_that_is_not_of_this_machine_is_asked_nothing(engine, monkeypatch):
    """A rootless engine's internal network is in a namespace of its own: the address may be somebody else's here."""
    monkeypatch.setattr(Container, "address", "198.51.100.7")
    with pytest.raises(ContainerFailed, match=r"198\.51\.100\.7.*is in no network of this machine") as caught:
        opened(engine, network="internal")
    assert "\n" not in str(caught.value) and engine.containers == {}


def test_limits_that_an_engine_ignores_are_said(engine, monkeypatch, caplog):
    opened(engine).close()
    assert "sets no limit" not in caplog.text
    monkeypatch.setattr(Container, "limits", staticmethod(lambda asked: {**asked, "Memory": 0, "PidsLimit": None}))
    opened(engine, containers=2).close()
    assert caplog.text.count("sets no limit of containers: Memory, PidsLimit are ignored") == 1


def test_what_an_engine_says_is_not_believed(engine):
    """Whatever the answers hold, what comes is one line."""
    odd = [
        [],
        3,
        None,
        "x",
        {"State": 3},
        {"State": {"Running": True}, "NetworkSettings": {"Ports": {"8000/tcp": "a"}}},
    ]
    for answer in [
        *odd,
        {"State": {"Running": True}, "NetworkSettings": {"Ports": {"8000/tcp": [{"HostPort": "7e9"}]}}},
    ]:
        engine.odd = {"gagpo-": (200, json.dumps(answer).encode())}
        with pytest.raises(GagpoError) as caught:
            opened(engine, start_deadline=0.5)
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 900
