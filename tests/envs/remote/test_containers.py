"""Containers by an engine's documented API: what they may do, what becomes of those that die, and that none is left."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from gagpo.envs.errors import GagpoError, InvalidArgument
from gagpo.envs.lookup import find_spec
from gagpo.envs.remote import containers as module
from gagpo.envs.remote.container_engine import ContainerEngine, EngineFailed, find_engine, usual_sockets
from gagpo.envs.remote.container_settings import ContainerSettings, image_of
from gagpo.envs.remote.containers import ContainerFailed, Containers
from gagpo.envs.remote.ownership import OWNER, is_orphan, owner, sweep
from tests.envs.remote.engine_server import IMAGE, ROOT, engine_server

PATIENCE = 60.0
SAYS_AND_ENDS = [sys.executable, "-c", "print('no such game\\x1b[2J'); raise SystemExit(3)", "{port}"]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.1)


@pytest.fixture
def engine(tmp_path):
    with engine_server(tmp_path) as server:
        yield server


def opened(engine, **settings):
    return Containers(ContainerEngine(engine.socket), IMAGE, ContainerSettings.of(settings))


def until(true, what):
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def test_a_container_is_allowed_nothing_but_what_was_said(engine, tmp_path):
    settings = {"memory_mb": 64, "cpus": 0.5, "processes": 20, "variables": {"GAMES": "3"}, "read_only": True}
    opened(engine, **settings, network="worlds", mounts={"/games": str(tmp_path)}).close()
    (body,) = engine.created
    host = body["HostConfig"]
    assert host["PortBindings"] == {"8000/tcp": [{"HostIp": "127.0.0.1", "HostPort": ""}]}
    assert host["Privileged"] is False and host["CapDrop"] == ["ALL"] and host["SecurityOpt"] == ["no-new-privileges"]
    assert (host["Memory"], host["MemorySwap"], host["NanoCpus"], host["PidsLimit"]) == (64 << 20, 64 << 20, 5e8, 20)
    assert host["NetworkMode"] == "worlds" and host["ReadonlyRootfs"] is True and body["Env"] == ["GAMES=3"]
    mounted = {"Type": "bind", "Source": str(tmp_path), "Target": "/games", "ReadOnly": True}
    assert host["Mounts"] == [mounted] and "Binds" not in host
    assert body["Image"].startswith("sha256:") and body["Labels"] == {OWNER: owner()}


def test_by_default_no_file_of_this_machine_is_seen(engine):
    opened(engine).close()
    (body,) = engine.created
    assert not {"Mounts", "Binds", "NetworkMode", "Devices", "CapAdd"} & set(body["HostConfig"])


def test_all_are_up_and_none_is_left(engine):
    containers = opened(engine, containers=3)
    assert len(engine.running) == 3 and len({one.url for one in containers.all}) == 3
    containers.close()
    containers.close()
    assert engine.containers == {}


def test_one_that_dies_is_replaced_and_its_server_moves(engine, caplog):
    containers = opened(engine, containers=2)
    servers = containers.servers(10, 10)
    before = [server.url for server in servers]
    engine.running[0].end()
    until(lambda: servers[0].url != before[0], "no other took its place")
    assert servers[1].url == before[1] and len(engine.containers) == 2
    assert servers[0].socket_url == servers[0].url.replace("http", "ws") + "/ws"
    assert sum("another takes its place" in record.getMessage() for record in caplog.records) == 1
    containers.close()
    assert engine.containers == {}


def test_one_that_hangs_is_replaced(engine, monkeypatch):
    monkeypatch.setattr(module, "HEALTH_SECONDS", 0.2)
    containers = opened(engine, health_deadline=0.5)
    (stuck,) = engine.running
    stuck.process.send_signal(signal.SIGSTOP)
    until(lambda: containers.all[0].name != stuck.name and engine.running, "no other took its place")
    containers.close()


def test_one_that_is_removed_by_hand_is_replaced(engine):
    containers = opened(engine)
    (server,) = containers.servers(10, 10)
    before = server.url
    with engine.lock:
        gone = engine.containers.pop(next(iter(engine.containers)))
    gone.end()
    until(lambda: server.url != before, "no other took its place")
    containers.close()


def test_the_budget_ends(engine):
    containers, told = opened(engine, restarts=2), []
    containers.tell(told.append)
    engine.command = SAYS_AND_ENDS
    engine.running[0].end()
    until(lambda: told, "nobody was told")
    (error,) = told
    assert isinstance(error, ContainerFailed) and "restarts=2 an hour" in str(error)
    assert "ended with status 3; it wrote: no such game\\x1b[2J" in str(error) and "\n" not in str(error)
    containers.tell(told.append)
    assert told == [error, error]
    containers.close()
    assert engine.containers == {}


def test_what_does_not_start_says_why_and_leaves_nothing(engine):
    engine.command = SAYS_AND_ENDS
    with pytest.raises(ContainerFailed, match="ended with status 3; it wrote: no such game"):
        opened(engine, containers=2)
    assert engine.containers == {}
    engine.command = [sys.executable, "-c", "import time; print('loading', flush=True); time.sleep(3600)", "{port}"]
    with pytest.raises(
        ContainerFailed, match=r"did not answer at port 8000 \(GET /health\) within 1 s; it wrote: (loading|nothing)"
    ):
        opened(engine, start_deadline=1)
    assert engine.containers == {}


def test_an_interruption_leaves_nothing(engine, monkeypatch):
    def interrupted(self, name):
        raise KeyboardInterrupt

    monkeypatch.setattr(Containers, "_reach", interrupted)
    with pytest.raises(KeyboardInterrupt):
        opened(engine, containers=2)
    assert len(engine.created) == 2 and engine.containers == {}


def test_an_interruption_of_the_creation_leaves_nothing(engine, monkeypatch):
    """The engine has made it and the answer was never read: its name is known all the same."""
    monkeypatch.setattr(ContainerEngine, "start", lambda self, name: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        opened(engine)
    assert len(engine.created) == 1 and engine.containers == {}


# Processes that end ---------------------------------------------------------------------------------------------------

HOLD = """
import signal, sys, time
from gagpo.envs.remote.container_engine import ContainerEngine
from gagpo.envs.remote.container_settings import ContainerSettings
from gagpo.envs.remote import containers
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # as the command line has it
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a process in the background inherits as ignored
containers.require_websockets = lambda: None
held = containers.ContainerLease("docker://" + sys.argv[1], {"containers": 2})
print("up", flush=True)
time.sleep(600) if sys.argv[2] == "wait" else None
if sys.argv[2] == "raise":
    raise ValueError("wrong")
"""


def holder(engine, what="wait"):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, IMAGE, what],
        env={**os.environ, "DOCKER_HOST": f"unix://{engine.socket}", "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "up\n", process.communicate(timeout=10)
    return process


@pytest.mark.parametrize("how", ["SIGINT", "SIGTERM", "raise", "return"])
def test_however_a_process_ends_its_containers_end(engine, how):
    process = holder(engine, "wait" if how.startswith("SIG") else how)
    if how.startswith("SIG"):
        assert len(engine.running) == 2
        process.send_signal(getattr(signal, how))
    process.communicate(timeout=PATIENCE)
    assert engine.containers == {}


def test_what_a_killed_process_left_is_removed_by_the_next(engine, caplog):
    alive, killed = holder(engine), holder(engine)
    assert len(engine.running) == 4
    killed.kill()
    assert sweep(ContainerEngine(engine.socket)) == 2  # before anybody has reaped it
    killed.communicate()
    assert len(engine.running) == 2 and "of a process that is gone" in caplog.text
    alive.kill()
    alive.communicate()
    opened(engine).close()
    assert engine.containers == {}


def test_whose_process_is_gone():
    boot, namespace, pid, start = owner().split(":")
    assert (pid, bool(start)) == (str(os.getpid()), True) and not is_orphan(owner(), True)
    assert is_orphan(f"{boot}:{namespace}:{pid}:{int(start) + 1}", True)  # another process has the number now
    assert is_orphan(f"{boot}:{namespace}:{2**31}:{start}", True)
    assert not is_orphan(f"{boot}:1:{2**31}:{start}", True)  # of another namespace nothing is known
    assert not is_orphan(f"another:{namespace}:{pid}:{start}", True)
    assert is_orphan(f"another:{namespace}:{pid}:{start}", False)
    assert not any(is_orphan(odd, False) for odd in ("", "None", "a:b:c:d", "::::", f"{boot}:{namespace}:-1:{start}"))


def test_a_forked_process_ends_nothing(engine):
    containers = opened(engine)
    if (child := os.fork()) == 0:
        containers.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert len(engine.running) == 1
    containers.close()


# Engines --------------------------------------------------------------------------------------------------------------


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


# Settings -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong, words",
    [
        ({"memory": 3}, r"'memory'.*known: containers, port, memory_mb"),
        ({"memory_mb": "4g"}, "memory_mb"),
        ({"containers": 0}, "containers"),
        ({"network": "host"}, "not allowed"),
        ({"network": "container:other"}, "not allowed"),
        ({"variables": {"A=B": "c"}}, "cannot be an environment variable"),
        ({"variables": {"A": 3}}, "variables.A"),
        ({"mounts": {"games": "/tmp"}}, "no absolute path"),
        ({"mounts": {"/": "/tmp"}}, "no absolute path"),
        ({"mounts": {"/games": "/no/such/folder"}}, "does not exist here"),
        ({"start_deadline": float("inf")}, "start_deadline"),
    ],
)
def test_settings_that_cannot_be(wrong, words):
    with pytest.raises(InvalidArgument, match=words) as caught:
        ContainerSettings.of(wrong)
    assert "\n" not in str(caught.value) and "environment.kwargs" in str(caught.value)


def test_the_image_is_an_id():
    assert find_spec("docker://worlds/a:1").kwargs == {"image": "docker://worlds/a:1"}
    assert image_of("docker://host:5000/a@sha256:ab") == "host:5000/a@sha256:ab"
    for wrong in ("docker://", "docker://-v", "docker://a b", "docker://a\nb", "docker://" + "a" * 300):
        with pytest.raises(InvalidArgument, match="docker://IMAGE"):
            image_of(wrong)
