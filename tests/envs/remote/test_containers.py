"""Containers by an engine's documented API: what they may do, what becomes of those that die, and that none is left."""

import os
import signal
import subprocess
import sys
import time

import pytest

from gagpo.base.errors import InvalidArgument
from gagpo.envs.lookup import find_spec
from gagpo.envs.remote import containers as module
from gagpo.envs.remote.container_engine import ContainerEngine
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
    os.waitid(os.P_PID, killed.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and nobody has reaped it
    assert sweep(ContainerEngine(engine.socket)) == 2
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
