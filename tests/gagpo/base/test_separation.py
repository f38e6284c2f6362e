"""A process in a domain of its own reads and controls nothing outside."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gagpo.base.separation import SIGNALS_SINCE, separate, version

ROOT = Path(__file__).parents[3]
CODE = """
import json, os, sys
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
    own, _ = begun(lambda: True)
    os.makedirs(folder + "/from")
    os.makedirs(folder + "/to")
    open(folder + "/from/file", "w").close()
    os.replace(folder + "/from/file", folder + "/to/file")
    return {"entered": entered, "sibling": reach(victim), "parent": reach(os.getppid()), "child": reach(own)}

landlock, folder = int(sys.argv[1]), sys.argv[2]
waiting, held = os.pipe()
victim, _ = begun(lambda: separate(landlock))
attacker, result = begun(attack)
print(json.dumps({**json.loads(result), "outside": reach(victim)}), flush=True)
os.set_inheritable(held, False)
os.close(held)
os.killpg(0, 9)
"""


@pytest.mark.parametrize("landlock", [SIGNALS_SINCE, SIGNALS_SINCE - 1])
def test_a_domain_separates_memory_and_signals(tmp_path, landlock):
    if version() < landlock:
        pytest.skip(f"this system offers version {version()} of Landlock")
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(landlock), str(tmp_path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        timeout=60,
        start_new_session=True,
    )
    signals = landlock < SIGNALS_SINCE
    everything, little = [True, True], [False, signals]
    assert json.loads(done.stdout) == {
        "entered": True,
        "sibling": little,
        "parent": little,
        "child": everything,
        "outside": everything,
    }


@pytest.mark.parametrize("landlock", [0, 1])
def test_nothing_changes_where_the_system_cannot_separate(landlock):
    before = Path("/proc/self/status").read_text()
    assert separate(landlock) is False
    lines = [line for line in before.splitlines() if line.startswith(("NoNewPrivs", "CapEff"))]
    assert all(line in Path("/proc/self/status").read_text() for line in lines)
    assert os.access(f"/proc/{os.getppid()}/environ", os.R_OK)
