"""Every kind of process that is started from a folder with files called like modules, and what it imports of them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.folders import needs

ROOT = Path(__file__).parents[1]
PACKAGES = ("agents", "envs", "eval", "gagpo")
NAMES = ("gagpo", "json", "torch", "numpy", "pickle", "runpy", "multiprocessing", "contextlib", "signal", "vllm")
MARK = "import pathlib; pathlib.Path({folder!r}, 'imported', __name__).touch(); raise SystemExit('the wrong module')\n"

POOL = """
from gagpo.envs.pool import WorkerPool
with WorkerPool("gagpo.envs.testing:gagpo-test/Corridor-v0", workers=1) as pool:
    pool.reset(0, "door-01", seed=0)
    print(pool.wait()[0].kind)
"""
FRESH = """
from gagpo.envs.check.fresh_process import call
call("os:getcwd", timeout=60)
"""
RANKS = """
from gagpo.distributed.launch import run
run(2, ["--version"])
"""
QUERIES = """
import gymnasium, gagpo.envs
environment = gymnasium.make("gagpo/SQL-v0")
environment.reset(seed=0)
environment.step("SELECT 1")
environment.close()
"""
SERVER = """
import os, sys, time
from pathlib import Path
from gagpo.agents.engines.remote.server import Server, ServerPlan
server = Server(ServerPlan(sys.argv[1] + "/model", max_length=64), Path(sys.argv[1], "log"))
server.start()
while server.running:
    time.sleep(0.1)
server.close()
print(Path(sys.argv[1], "log").read_text())
"""
BECOMING = """
import sys
from gagpo.agents.engines.remote.server import main
main([sys.argv[1] + "/model", "--max-length", "64"])
"""
KINDS = {
    "environments": (POOL, "reset"),
    "checks": (FRESH, ""),
    "ranks": (RANKS, "gagpo 0"),
    "queries": (QUERIES, ""),
    "servers": (SERVER, "api_server was started"),
    "what becomes a server": (BECOMING, "api_server was started"),
}
NEEDED = {
    "queries": "envs/sql",
    "servers": "agents/engines/remote",
    "what becomes a server": "agents/engines/remote",
}


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    folder = tmp_path / "here"
    (folder / "imported").mkdir(parents=True)
    for name in NAMES:
        (folder / f"{name}.py").write_text(MARK.format(folder=str(folder)))
    return folder


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A place on the path with a model's config, and a package that stands for vLLM."""
    location = tmp_path / "installed"
    (location / "vllm" / "entrypoints" / "openai").mkdir(parents=True)
    (location / "vllm" / "__init__.py").touch()
    (location / "vllm" / "entrypoints" / "openai" / "api_server.py").write_text(
        "import json, pickle, torch; raise SystemExit('api_server was started')"
    )
    (location / "model").mkdir()
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1}
    (location / "model" / "config.json").write_text(json.dumps({"model_type": "qwen2", **sizes}))
    return location


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=needs(NEEDED[kind]) if kind in NEEDED else ()) for kind in KINDS],
)
def test_no_kind_of_child_imports_a_file_of_the_working_directory(kind: str, hostile: Path, installed: Path) -> None:
    program, messages = KINDS[kind]
    script = installed / "program.py"
    script.write_text(program)
    done = subprocess.run(
        [sys.executable, str(script), str(installed)],  # as the command `gagpo`, whose own folder is on the path
        cwd=hostile,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{installed}"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert sorted(path.name for path in (hostile / "imported").iterdir()) == [], done.stderr
    assert messages in done.stdout + done.stderr and "Traceback" not in done.stderr, (done.stdout, done.stderr)


def test_processes_are_started_by_one_file() -> None:
    reference = re.compile(r"sys\.executable|multiprocessing import|get_context\(|multiprocessing\.(Process|Pool)")
    results = {
        str(path.relative_to(ROOT)): line
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        for line in path.read_text().splitlines()
        if reference.search(line) and '"-I"' not in line
    }
    # The environments of testing stand for those of users, who may start what they like, as agent programs are. The
    # sandbox of the terminal runs the bare interpreter in a file system of its own, which has no working directory.
    remaining = {"envs/testing.py", "envs/program/env.py", "envs/terminal/backends/bubblewrap.py"}
    assert set(results) - remaining == {"gagpo/base/interpreter.py"}, results
