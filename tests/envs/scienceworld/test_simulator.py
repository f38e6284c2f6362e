"""The Java process of ScienceWorld: its random state, its loss, its end, and what is said where it is missing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gagpo.base.errors import MissingPackage
from gagpo.envs.scienceworld import simulator as module
from gagpo.envs.scienceworld.experiment import Experiment, Variation
from gagpo.envs.scienceworld.simulator import Globals, Simulator, SimulatorFailed, java_path, simulator_command
from gagpo.envs.scienceworld.variations import VARIATIONS
from tests.rejections import rejects

ROOT = Path(__file__).parents[3]
OWNER = """
from gagpo.envs.scienceworld.simulator import Simulator
simulator = Simulator()
simulator.start()
print(simulator.process, flush=True)
input()
"""


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def stop(process: int) -> None:
    """Stop all threads of a process. The signal returns before they stand still, and one could still answer."""
    os.kill(process, signal.SIGSTOP)
    deadline = time.monotonic() + 30
    while any(path.read_text().rpartition(")")[2].split()[0] != "T" for path in threads(process)):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def threads(process: int) -> list[Path]:
    return list(Path(f"/proc/{process}/task").glob("*/stat"))


@pytest.mark.parametrize("state", [0, 5, 2**31 - 1, 2**31, 2**47 + 3, 2**48 - 1])
@pytest.mark.interop
def test_the_random_state_is_read_and_set_exactly(simulator: Simulator, state: int) -> None:
    simulator.start()
    simulator.set_globals(Globals(state, state >> 3))
    assert simulator.read_globals() == Globals(state, state >> 3)


@pytest.mark.interop
@pytest.mark.slow
def test_the_table_of_variations_is_the_simulators(simulator: Simulator) -> None:
    simulator.start()
    interface = simulator.new_interface()
    assert sorted(simulator.texts(interface.getTaskNames())) == sorted(VARIATIONS)
    for task, counts in VARIATIONS.items():
        interface.load(task, 0, "", False)
        first, last = counts[0], sum(counts)
        assert list(interface.getVariationsTrain()) == list(range(first))
        assert list(interface.getVariationsDev()) == list(range(first, first + counts[1]))
        assert list(interface.getVariationsTest()) == list(range(first + counts[1], last))


@pytest.mark.interop
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_java_ends_with_a_killed_owner(installed: None) -> None:
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=variables, text=True
    )
    assert owner.stdout is not None
    java = int(owner.stdout.readline())
    assert alive(java)
    owner.send_signal(signal.SIGKILL)
    owner.wait(30)
    deadline = time.monotonic() + 30
    while alive(java) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(java)


@pytest.mark.interop
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_process_that_does_not_answer_is_ended_and_replaced(simulator: Simulator) -> None:
    experiment = Experiment(simulator)
    experiment.load(Variation("find-animal", 0))
    first = simulator.process
    assert first is not None
    stop(first)
    for connection in simulator._gateway._gateway_client.deque:
        connection.gateway_parameters.read_timeout = 0.2  # py4j sets it again before each call
        connection.socket.settimeout(0.2)
    with rejects(SimulatorFailed, "not answer"):
        experiment.step("look around")
    assert simulator.process is None and not alive(first)
    assert experiment.step("look around").valid
    assert simulator.process not in (None, first)


def test_without_java_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with rejects(MissingPackage, "program java on the path"):
        java_path()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with rejects(MissingPackage, "JAVA_HOME", tmp_path):
        java_path()


def test_without_the_package_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    with rejects(MissingPackage, advice="pip install -c constraints.txt -e '.[scienceworld]'"):
        simulator_command()


@pytest.mark.interop
@pytest.mark.parametrize(("program", "words"), [("exit 1", "Java ended"), ("sleep 60", "no port within 0.2 s")])
def test_java_that_does_not_start_is_reported(
    program: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("scienceworld", reason="the optional package scienceworld is not installed")
    script = tmp_path / "java"
    script.write_text(f"#!/bin/sh\n{program}\n")
    script.chmod(0o755)
    monkeypatch.setattr(module, "simulator_command", lambda: ([str(script)], tmp_path))
    monkeypatch.setattr(module, "START_SECONDS", 0.2 if "sleep" in program else 30.0)
    simulator = Simulator()
    with rejects(SimulatorFailed, words):
        simulator.start()
    assert simulator.process is None
