"""A process in a domain of its own reads and controls nothing outside."""

import json
import os
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from gagpo.base.separation import MOVES_SINCE, SIGNALS_SINCE, separate, system_call_filter, version

ROOT = Path(__file__).parents[3]
CODE = """
import ctypes, json, os, sys
from gagpo.base.separation import separate

def begun(action):
    ready, written = os.pipe()
    process = os.fork()
    if process == 0:
        result = action()
        os.write(written, json.dumps(result).encode())
        if result is True:
            os.read(waiting, 1)  # until the parent ends
        os._exit(0)
    os.close(written)
    return process, os.read(ready, 1 << 16)

def allowed(call, *arguments):
    try:
        call(*arguments)
    except PermissionError:
        return False
    return True

def read(place):
    with open(place, "rb") as file:
        file.read(1)

def reach(process):
    return [allowed(read, f"/proc/{process}/environ"), allowed(os.kill, process, 0)]

def attack():
    entered = separate(landlock)
    child, _ = begun(lambda: True)
    for name in ("from", "to"):
        os.mkdir(f"{folder}/{name}")
    open(f"{folder}/from/file", "w").close()
    os.replace(f"{folder}/from/file", f"{folder}/to/file")
    return {"entered": entered, "sibling": reach(victim), "parent": reach(os.getppid()), "child": reach(child)}

landlock, folder = int(sys.argv[1]), sys.argv[2]
if not landlock and os.geteuid() == 0:  # a user's namespace
    os.setgid(12345)
    os.setuid(12345)
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # as if started by that user: readable for the user's processes
waiting, held = os.pipe()
victim, _ = begun(lambda: separate(landlock))
attacker, result = begun(attack)
print(json.dumps({**json.loads(result), "outside": reach(victim)}), flush=True)
os.set_inheritable(held, False)
os.close(held)
os.killpg(0, 9)
"""


@pytest.fixture
def folder():
    """A folder that every user may write to."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o777)
        yield folder


@pytest.mark.parametrize("landlock", [SIGNALS_SINCE, SIGNALS_SINCE - 1, 0])
def test_memory_is_separated_and_signals_where_landlock_can_do_it(folder, landlock):
    if version() < landlock:
        pytest.skip(f"this system offers version {version()} of Landlock")
    if not landlock and not namespaces():
        pytest.skip("users of this system cannot create namespaces")
    command = [sys.executable, "-c", CODE, str(landlock), folder]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, timeout=60, start_new_session=True)
    signals = landlock < SIGNALS_SINCE
    everything, little = [True, True], [False, signals]
    assert json.loads(done.stdout) == {
        "entered": True,
        "sibling": little,
        "parent": little,
        "child": everything,
        "outside": everything,
    }


def namespaces():
    """Whether another user than root may create user namespaces, as the command ``unshare`` sees it."""
    user = {"user": 12345} if os.geteuid() == 0 else {}
    try:
        return subprocess.run(["unshare", "-U", "true"], stderr=subprocess.DEVNULL, timeout=60, **user).returncode == 0
    except OSError:
        return False


@pytest.mark.parametrize("landlock", [0, 1])
def test_nothing_changes_where_the_system_cannot_separate(landlock):
    before = Path("/proc/self/status").read_text()
    assert separate(landlock, namespaces=False) is False
    lines = [line for line in before.splitlines() if line.startswith(("NoNewPrivs", "CapEff"))]
    assert all(line in Path("/proc/self/status").read_text() for line in lines)
    assert os.access(f"/proc/{os.getppid()}/environ", os.R_OK)


CHANGES = """
import json, os, resource, socket, subprocess, sys
from gagpo.base.separation import separate

waiting, held = os.pipe()
victim = os.fork()
if victim == 0:
    os.close(held)
    os.read(waiting, 1)  # until the parent ends
    os._exit(0)
assert separate()

def allowed(call, *arguments):
    try:
        call(*arguments)
    except PermissionError:
        return False
    return True

changes = {
    "limit": [resource.prlimit, victim, resource.RLIMIT_FSIZE, (1, 1)],
    "processors": [os.sched_setaffinity, victim, {0}],
    "policy": [os.sched_setscheduler, victim, os.SCHED_BATCH, os.sched_param(0)],
    "priority": [os.setpriority, os.PRIO_PROCESS, victim, 5],
    "priority of the user": [os.setpriority, os.PRIO_USER, 0, 5],
    "packets": [socket.socket, socket.AF_PACKET, socket.SOCK_RAW, 0],
    "raw": [socket.socket, socket.AF_INET, socket.SOCK_RAW, 1],
}
processor = min(os.sched_getaffinity(0))
of_itself = {
    "limit": [resource.setrlimit, resource.RLIMIT_FSIZE, (1 << 30, 1 << 30)],
    "processors": [os.sched_setaffinity, 0, {processor}],
    "priority": [os.setpriority, os.PRIO_PROCESS, 0, 5],
    "shell": [subprocess.run, ["sh", "-c", "ulimit -n 100 && nice -n 1 true"]],
}
status = open("/proc/self/status").read().split()
names = [[name for name, call in calls.items() if allowed(*call)] for calls in (changes, of_itself)]
print(json.dumps([*names, int(status[status.index("CapPrm:") + 1], 16)]))
"""


@pytest.mark.skipif(version() < MOVES_SINCE or not system_call_filter(), reason="this system cannot separate")
def test_other_processes_and_the_network_below_addresses_are_out_of_reach():
    done = subprocess.run([sys.executable, "-c", CHANGES], cwd=ROOT, stdout=subprocess.PIPE, timeout=60, check=True)
    of_others, of_itself, capabilities = json.loads(done.stdout)
    assert of_others == []
    assert of_itself == ["limit", "processors", "priority", "shell"]
    assert capabilities & ~0b11111 == 0  # only those for files


def test_the_filter_of_system_calls_returns_in_every_case():
    """Each jump of the program stays within it, and its last instruction returns."""
    lines = [struct.unpack("<HBBI", chunk) for chunk in batched(system_call_filter(), 8)]
    for location, (code, if_true, if_false, _) in enumerate(lines):
        if code & 0x07 == 0x05:  # a jump
            assert location + 1 + max(if_true, if_false) < len(lines)
    assert not lines or lines[-1][0] == 0x06


def batched(data, size):
    return [data[start : start + size] for start in range(0, len(data), size)]
