"""Worlds in containers as a pool: episodes over several of them, a death in the middle, and a real engine."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("websockets")

from typer.testing import CliRunner

from gagpo.cli.main import app
from gagpo.envs.remote import containers as module
from gagpo.envs.remote.container_engine import EngineFailed, find_engine
from gagpo.envs.remote.containers import ContainerFailed, ContainerLease
from gagpo.envs.remote.pool import RemotePool, open_pool
from gagpo.envs.remote.world import ContainerWorld
from tests.envs.remote import python_image
from tests.envs.remote.engine_server import COUNTING, IMAGE, ROOT, engine_server
from tests.envs.remote.test_containers import SAYS_AND_ENDS, until
from tests.envs.remote.test_pool import PATIENCE, play

pytestmark = pytest.mark.interop
WORLD = f"docker://{IMAGE}"


@pytest.fixture
def engine(tmp_path, monkeypatch, dead_proxy):  # what is on this machine is asked directly
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.1)
    with engine_server(tmp_path, COUNTING) as server:
        monkeypatch.setenv("DOCKER_HOST", f"unix://{server.socket}")
        yield server


def test_episodes_are_played_in_all_of_them(engine):
    with open_pool(WORLD, {"train": 8, "containers": 2}) as pool:
        assert isinstance(pool, RemotePool) and len(engine.running) == 2
        played = play(pool, 8)
        assert [events[0].observation for events in played.values()] == [f"seed {slot}" for slot in range(8)]
        assert all(len(events) == 4 and events[-1].info["success"] for events in played.values())
        assert len({name for name, place in enumerate(pool._places) if place.sessions._free}) == 2
    assert engine.containers == {}


def test_a_death_in_the_middle_starts_episodes_over(engine):
    with open_pool(WORLD, {"containers": 2}) as pool:
        for slot in range(4):
            pool.reset(slot, f"train-{slot:07d}", slot)
        while pool.outstanding:
            pool.wait(PATIENCE)
        engine.running[0].end()
        for slot in range(4):
            pool.step(slot, "go")
        events = []
        while pool.outstanding:
            events += pool.wait(PATIENCE)
        assert sorted(event.kind for event in events) == ["restarted", "restarted", "step", "step"]
        assert {event.observation for event in events if event.kind == "restarted"} <= {f"seed {n}" for n in range(4)}
        assert pool.counters.restarts == 2
        assert all(len(played) == 4 for played in play(pool, 4).values())
    assert engine.containers == {}


def test_when_no_other_takes_its_place_the_wait_ends_in_one_line(engine):
    with open_pool(WORLD, {"restarts": 1}) as pool:
        play(pool, 2)
        engine.command = SAYS_AND_ENDS
        engine.running[0].end()
        pool.reset(0, "train-0000000", 0)
        with pytest.raises(ContainerFailed, match=r"restarts=1 an hour.*no such game") as caught:
            pool.wait(PATIENCE)
        assert "\n" not in str(caught.value)
    assert engine.containers == {}


def test_whoever_asks_for_the_same_shares_them(engine):
    world = ContainerWorld(WORLD, train=5, memory_mb=100)
    with open_pool(WORLD, {"train": 5, "memory_mb": 100}) as pool:
        assert len(engine.created) == 1
        assert world.tasks("train").ids == [f"train-{seed:07d}" for seed in range(5)]
        world.reset(options={"task": "train-0000003"})
        world.close()
        play(pool, 2)
        with open_pool(WORLD, {"train": 5, "memory_mb": 101}):
            assert len(engine.running) == 2
        assert len(engine.running) == 1
    assert engine.containers == {}
    lease = ContainerLease(WORLD, {})
    assert len(engine.running) == 1
    del lease
    until(lambda: not engine.containers, "what nobody holds is not ended")


def test_what_cannot_be_opened_leaves_nothing(engine):
    engine.command = [sys.executable, "-P", "-m", "http.server", "--bind", "127.0.0.1", "{port}"]  # no world
    for opening in (lambda: open_pool(WORLD), lambda: ContainerWorld(WORLD)):
        with pytest.raises(Exception, match="404"):
            opening()
        assert engine.containers == {}


def test_containers_of_other_tasks_are_no_pool(engine):
    """An image whose content depends on when it was started."""
    lease = ContainerLease(WORLD, {"containers": 2})
    first, second = lease.containers.servers(3, 3)
    second._known["train"] = second.tasks("test")
    lease.containers.servers = lambda train, test: [first, second]
    with pytest.raises(ContainerFailed, match="list other tasks of 'train'"):
        lease.servers(3, 3)
    lease.close()


def test_the_checker_takes_an_image(engine):
    result = CliRunner().invoke(app, ["check", WORLD, "-k", "memory_mb=100", "--episodes", "2", "--json"])
    found = {one["name"]: one for one in json.loads(result.output.splitlines()[-1])["findings"]}
    assert found["construction"]["ok"] and found["close"]["ok"], result.output
    assert len(engine.created) == 1 and engine.containers == {}
    assert engine.created[0]["HostConfig"]["Memory"] == 100 << 20


# A real engine --------------------------------------------------------------------------------------------------------


@pytest.fixture
def real():
    """Docker's or Podman's engine, with an image that is made of what is here."""
    try:
        engine = find_engine()
    except EngineFailed as error:
        pytest.skip(str(error))
    python_image.install(engine.socket)
    return engine


REAL = f"docker://{python_image.IMAGE}"


def test_real_containers_are_played_and_replaced(real, caplog):
    with open_pool(REAL, {"train": 8, "containers": 2, "memory_mb": 128, "processes": 64, "read_only": True}) as pool:
        assert all(len(events) == 4 for events in play(pool, 8).values())
        containers = pool._lease.containers
        facts = real.inspect(containers.all[0].name)
        host, (published,) = facts["HostConfig"], facts["NetworkSettings"]["Ports"]["8000/tcp"]
        assert published["HostIp"] == "127.0.0.1" and not host["Privileged"] and not facts["Mounts"]
        assert (host["Memory"], host["PidsLimit"]) == (128 << 20, 64) or "sets no limit" in caplog.text
        real._ask("POST", f"/containers/{containers.all[0].name}/kill")
        assert all(len(events) == 4 for events in play(pool, 8).values())
        name = containers.all[1].name
    with pytest.raises(EngineFailed) as caught:
        real.inspect(name)
    assert caught.value.status == 404


def test_a_real_container_has_the_limits_that_were_said(real, tmp_path):
    """Its own kernel files say so: no capability, no way to more, its mounts read-only."""
    (tmp_path / "games.txt").write_text("three")
    lease = ContainerLease(REAL, {"mounts": {"/games": str(tmp_path)}, "variables": {"GAMES": "3"}})
    try:
        name = lease.containers.all[0].name
        process = real.inspect(name)["State"]["Pid"]
        facts = Path(f"/proc/{process}")
        status = dict(line.split(":\t", 1) for line in (facts / "status").read_text().splitlines() if ":\t" in line)
        assert int(status["CapEff"], 16) == 0 and status["NoNewPrivs"] == "1" and status["Seccomp"] == "2"
        assert b"GAMES=3" in (facts / "environ").read_bytes().split(b"\0")
        mounted = [line.split() for line in (facts / "mounts").read_text().splitlines()]
        (games,) = [line for line in mounted if line[1] == "/games"]
        assert "ro" in games[3].split(",")
    except PermissionError:
        pytest.skip("the files of a process in a container cannot be read without root")
    finally:
        lease.close()


def test_a_real_container_of_a_killed_process_is_swept(real):
    code = (
        f"from gagpo.envs.remote.containers import ContainerLease\nimport time\nheld = ContainerLease({REAL!r}, {{}})\n"
        "print(held.containers.all[0].name, flush=True)\ntime.sleep(600)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    name = process.stdout.readline().strip()
    assert real.inspect(name)["State"]["Running"]
    process.send_signal(signal.SIGKILL)
    process.communicate()
    time.sleep(0.5)
    assert real.inspect(name)["State"]["Running"]
    ContainerLease(REAL, {}).close()
    with pytest.raises(EngineFailed):
        real.inspect(name)


def test_a_real_internal_network_leads_nowhere_else(real):
    """A container there is reached at its own address, and publishes nothing."""
    name = f"gagpo-test-{os.getpid()}"
    real._ask("POST", "/networks/create", {"Name": name, "Internal": True, "CheckDuplicate": True})
    try:
        try:
            pool = open_pool(REAL, {"network": name, "start_deadline": 20})
        except ContainerFailed as error:
            if os.getuid() == 0:
                raise
            pytest.skip(f"a rootless engine's networks are not reached from here: {error}")
        with pool:
            url = pool._lease.containers.all[0].url
            assert "127.0.0.1" not in url and url.endswith(":8000")
            assert all(len(events) == 4 for events in play(pool, 4).values())
    finally:
        real._ask("DELETE", f"/networks/{name}")


def test_a_real_engine_without_the_image_says_so(real):
    with pytest.raises(EngineFailed, match="has no image 'localhost/gagpo-test/none:1'"):
        open_pool("docker://localhost/gagpo-test/none:1")
