"""Real commands print text of configs, files, programs and servers, and no terminal obeys any of it."""

import json
import os
import pty
import subprocess
import sys

import pytest

from tests.agents.raw_server import answering, reply
from tests.gagpo.base.test_terminal import is_harmless
from tests.gagpo.cli.test_view import write_run

EVIL = "\x1b]0;taken\x07\x1b[2J\x9b31m\rgone\u202egnp\x08\x7f"
SHOWN = r"\x1b]0;taken\x07\x1b[2J\x9b31m"
FAILS = """
import gymnasium
from gagpo.envs.testing import CorridorEnv

class FailsEnv(CorridorEnv):
    def step(self, action):
        raise RuntimeError({text!r})

gymnasium.register("Fails-v0", "fails:FailsEnv", disable_env_checker=True, order_enforce=False)
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


def require_harmless(done, shown=SHOWN):
    printed = done.stdout + done.stderr
    assert is_harmless(printed) and shown in printed, printed


CONFIG = "name: x\nmodel: starter:alfworld\nalgorithm: {preset: gagpo}\nenvironment: {id: gagpo/Math-v0}\n"
CONFIGS = {
    "an environment": ("environment.id", 2),
    "a model": ("model", 2),
    "an algorithm": ("algorithm.preset", 2),
    "an engine": ("engine.name", 2),
    "a tracker": ("trackers", 2),
    "a device": ("device", 2),
    "an unknown key": (f"training.{json.dumps(EVIL)}", 2),
}


@pytest.mark.parametrize(("key", "status"), CONFIGS.values(), ids=CONFIGS.keys())
def test_a_config(key, status, inside, tmp_path):
    (tmp_path / "x.yaml").write_text(CONFIG)
    value = json.dumps([EVIL] if key == "trackers" else EVIL)
    done = inside("train", "x.yaml", f"{key}={value}", "--runs", "runs", "-q")
    assert done.returncode == status
    assert is_harmless(done.stdout + done.stderr) and "taken" in done.stderr


def test_files_and_folders(inside, tmp_path):
    run = write_run(tmp_path / f"run {EVIL}")
    for command in (["report", run], ["view", run], ["report", f"{EVIL}={run}", f"B={run}"]):
        done = inside(*command)
        require_harmless(done)
    (tmp_path / "runs" / EVIL).mkdir(parents=True)
    (tmp_path / "runs" / EVIL / "config.yaml").write_text(CONFIG)
    require_harmless(inside("list", "--runs", "runs"))
    (run / "metrics.jsonl").write_text(f'{{"iteration": 1}}\n{EVIL}\n')
    require_harmless(inside("plan", "alfworld-quickstart", "--run", f"{run}{EVIL}", "--gpu-memory", "80"))


def test_an_environment_that_fails(inside, tmp_path):
    (tmp_path / "fails.py").write_text(FAILS.format(text=EVIL))
    require_harmless(inside("eval", "random", "--env", "fails:Fails-v0", "--split", "test", "--workers", "0", "-q"))
    require_harmless(inside("check", "fails:Fails-v0", "--episodes", "1"), "taken")


def test_a_server_that_refuses(inside):
    body = json.dumps({"error": {"message": EVIL}}, ensure_ascii=False).encode()
    tokens = ["--env", "gagpo/Math-v0", "--tasks", "1", "--workers", "0", "-q"]
    for status, text in (("400 Bad Request", EVIL.encode()), ("401 Unauthorized", body)):
        with answering(lambda number, text=text, status=status: [reply(text, status)]) as server:
            done = inside("eval", f"openai:m{EVIL}", "--base-url", f"{server.url}/v1", *tokens)
        assert done.returncode == 2 and "refuses: status 40" in done.stderr
        require_harmless(done, r"\x1b]0;taken")


def test_a_tool_server_that_fails(inside, tmp_path):
    pytest.importorskip("mcp")
    (tmp_path / "evil.py").write_text(f"import sys\nprint({EVIL!r}, file=sys.stderr)\nsys.exit(1)\n")
    (tmp_path / "tasks.jsonl").write_text('{"question": "q", "answer": "a"}\n')
    tokens = ["-k", "command=python evil.py", "-k", "tasks=tasks.jsonl", "--workers", "0", "-q"]
    done = inside("eval", "random", "--env", "gagpo/MCP-v0", "--split", "test", *tokens)
    assert done.returncode == 2 and is_harmless(done.stdout + done.stderr)


def test_a_fault_of_ours(inside, monkeypatch):
    def fails(*arguments):
        raise KeyError(f"{EVIL}")

    monkeypatch.setattr("gagpo.eval.viewer.opening.runs_in", fails)
    done = inside("view", "runs")
    assert done.returncode == 1 and "Traceback" in done.stderr
    require_harmless(done)


def test_on_a_terminal(tmp_path):
    """Colours are drawn by a library; only it may write escapes, and no title, cleared screen or link is among them."""
    run = write_run(tmp_path / f"run {EVIL}")
    os.symlink("nowhere", run / "episodes" / f"{EVIL}.jsonl")
    actual, expected = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "gagpo", "view", str(run)],
        stdout=expected,
        stderr=expected,
        stdin=expected,
        cwd=tmp_path,
    )
    os.close(expected)
    printed = b""
    while chunk := _read(actual):
        printed += chunk
    os.close(actual)
    assert process.wait(60) == 0, printed
    text = printed.decode().replace("\r\n", "\n")  # as a terminal's driver writes newlines
    assert is_harmless(text) and text.count(SHOWN) == 4, text


def _read(handle):
    try:
        return os.read(handle, 1 << 16)
    except OSError:  # the program has ended
        return b""
