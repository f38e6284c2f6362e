"""A server ends when it is closed and when its owner is killed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gagpo.agents.engines.remote import server as server_file
from gagpo.agents.engines.remote.server import Server, ServerPlan, arguments, environment, last_error_line
from gagpo.base.errors import MissingPackage
from gagpo.model.loading import ModelError
from tests.rejections import rejects

STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], start_new_session=True)
open({place!r}, "w").write(f"{{os.getpid()}} {{child.pid}}\\n")
time.sleep(1000)
"""
OWNER = """
import sys, time
from pathlib import Path
from tests.agents.engines.remote.test_supervisor import stubborn
server = stubborn(Path(sys.argv[1]))
print(server.process, flush=True)
time.sleep(1000)
"""


def stubborn(folder):
    """A started mock server that ignores SIGTERM, with a child in another session."""
    required = server_file.require_vllm
    server_file.require_vllm = lambda: None
    server_file.arguments = lambda plan: []
    real = server_file.Child
    tokens = [sys.executable, "-c", STUBBORN.format(place=str(folder / "pids"))]
    server_file.Child = lambda target, *_, **options: real(target, *tokens, **options)
    try:
        server = Server(ServerPlan("folder"), folder / "log")
        server.start()
    finally:
        server_file.Child = real
        server_file.require_vllm = required
        server_file.arguments = arguments
    return server


def until(true, seconds=30):
    end = time.monotonic() + seconds
    while not (value := true()):
        assert time.monotonic() < end
        time.sleep(0.02)
    return value


def alive(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def pids(folder):
    path = folder / "pids"
    text = until(lambda: path.exists() and path.read_text().endswith("\n") and path.read_text())
    return [int(pid) for pid in text.split()]


def test_close_ends_a_server_and_its_children(tmp_path):
    server = stubborn(tmp_path)
    processes = pids(tmp_path)
    assert server.running and server.process == processes[0] and all(map(alive, processes))
    server.close()
    server.close()
    assert not server.running
    until(lambda: not any(map(alive, processes)))


@pytest.mark.slow
def test_a_server_ends_when_its_owner_is_killed(tmp_path):
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path)], stdout=subprocess.PIPE)
    try:
        assert int(owner.stdout.readline()) == pids(tmp_path)[0]
        processes = pids(tmp_path)
    finally:
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        owner.stdout.close()
    until(lambda: not any(map(alive, processes)))


def test_children_end_when_a_server_is_killed(tmp_path):
    server = stubborn(tmp_path)
    processes = pids(tmp_path)
    os.kill(processes[0], signal.SIGKILL)
    until(lambda: not server.running)
    until(lambda: not any(map(alive, processes)))
    with rejects(ModelError, "no output"):
        server.wait(5)


def test_a_server_that_is_not_ready_in_time_is_ended(tmp_path):
    server = stubborn(tmp_path)
    processes = pids(tmp_path)
    with rejects(ModelError, "0.5 s", "log"):
        server.wait(0.5)
    until(lambda: not any(map(alive, processes)))


def test_the_last_error_of_a_log_is_found(tmp_path):
    (tmp_path / "log").write_text("INFO: starting\nValueError: no such head size\n  the frame above\n")
    assert last_error_line(tmp_path / "log") == "ValueError: no such head size"
    assert last_error_line(tmp_path / "none") == "no output"


def test_a_missing_vllm_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("gagpo.agents.engines.remote.placement.find_spec", lambda name: None)
    with rejects(MissingPackage, "pip install -c constraints.txt -e '.[vllm]'", advice="engine.options.urls"):
        Server(ServerPlan("folder"), tmp_path / "log")


def test_the_command_line_of_a_server(tiny, tmp_path):
    tiny[0].config.save_pretrained(tmp_path)
    line = arguments(ServerPlan(str(tmp_path), max_length=256, architecture="LlamaForCausalLM", more=("--seed", "3")))
    assert line[line.index("--logprobs-mode") + 1] == "processed_logprobs" and line[-2:] == ["--seed", "3"]
    assert json.loads(line[line.index("--weight-transfer-config") + 1]) == {"backend": "gagpo_file"}
    assert "--no-enable-chunked-prefill" in line and line[line.index("--max-model-len") + 1] == "256"
    variables = environment(ServerPlan(str(tmp_path), threads=3))
    assert variables["OMP_NUM_THREADS"] == "3" and variables["VLLM_SERVER_DEV_MODE"] == "1"
    shared = ServerPlan(str(tmp_path), devices=(2, 3), sleeps=True, memory=0.4)
    assert environment(shared)["CUDA_VISIBLE_DEVICES"] == "2,3"
    line = arguments(shared)
    assert "--enable-sleep-mode" in line and line[line.index("--tensor-parallel-size") + 1] == "2"
    assert "--worker-extension-cls" in line and "--enforce-eager" not in line


def test_a_server_for_a_trainer_elsewhere(tiny, tmp_path, monkeypatch):
    tiny[0].config.save_pretrained(tmp_path)
    became = []
    monkeypatch.setattr(os, "execve", lambda *words: became.append(words))
    server_file.main([str(tmp_path), "--port", "9", "--max-length", "300", "--dtype", "float32", "--", "--seed", "3"])
    program, line, variables = became[0]
    assert program == sys.executable and variables["VLLM_SERVER_DEV_MODE"] == "1"
    assert line[line.index("--port") + 1] == "9" and line[line.index("--host") + 1] == "127.0.0.1"
    assert line[line.index("--model") + 1] == str(tmp_path) and line[-2:] == ["--seed", "3"]
