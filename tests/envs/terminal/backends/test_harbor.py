"""The backend of the package harbor, over a stand-in for the package whose environments are bubblewrap's."""

import subprocess
import sys

import pytest

from gagpo.base.errors import InvalidArgument, MissingPackage
from gagpo.base.sandbox import SandboxUnavailable, program
from gagpo.envs.terminal.backends.base import BadTree, SandboxLost
from gagpo.envs.terminal.backends.choice import make_sandbox
from gagpo.envs.terminal.backends.harbor import HarborSandbox
from gagpo.envs.terminal.env import TerminalEnv
from gagpo.envs.terminal.tree import file, link
from tests.rejections import rejects

PACKAGE = {
    "environments/factory.py": """
import json, shutil, subprocess, tempfile
from pathlib import Path

LOG = []

class Environment:
    def __init__(self, **kwargs):
        LOG.append(kwargs)
        self.root = Path(tempfile.mkdtemp())

    async def start(self, force_build):
        if LOG[-1]["task_env_config"].docker_image == "absent":
            raise RuntimeError("no such image")
        for name in ("app", "tmp", "opt", "logs", "tests", "proc", "dev", "usr"):
            (self.root / name).mkdir()
        (self.root / "app" / "from-image").write_text("image")
        for name in ("bin", "lib", "lib64"):
            (self.root / name).symlink_to(f"usr/{name}")

    async def stop(self, delete):
        assert delete
        LOG.append("stopped")
        shutil.rmtree(self.root)

    async def exec(self, command, cwd=None, timeout_sec=None):
        line = ["bwrap", "--bind", self.root, "/", "--ro-bind", "/usr", "/usr", "--proc", "/proc", "--dev", "/dev"]
        line += ["--unshare-net", "--chdir", cwd, "--clearenv", "--setenv", "PATH", "/usr/bin:/bin"]
        subprocess.run([*line, "sh", "-c", command], check=True, stdin=subprocess.DEVNULL)

    async def upload_file(self, source_path, target_path):
        shutil.copyfile(source_path, self.root / target_path.lstrip("/"))

    async def download_file(self, source_path, target_path):
        shutil.copyfile(self.root / source_path.lstrip("/"), target_path)

class EnvironmentFactory:
    @staticmethod
    def create_environment(**kwargs):
        return Environment(**kwargs)
""",
    "models/environment_type.py": """
from enum import Enum

class EnvironmentType(str, Enum):
    CLOUD = "cloud"
""",
    "models/task/config.py": """
from types import SimpleNamespace

def EnvironmentConfig(**kwargs):
    return SimpleNamespace(**kwargs)
""",
    "models/trial/paths.py": """
def TrialPaths(trial_dir):
    return trial_dir
""",
}


@pytest.fixture
def harbor(tmp_path, monkeypatch, sandbox):
    """The stand-in's log. Skipped where ``sandbox`` is."""
    if subprocess.run([program(), "--ro-bind", "/", "/", "true"]).returncode:
        pytest.skip("the stand-in's plain command line makes no sandbox here")
    for name, source in PACKAGE.items():
        path = tmp_path / "package" / "harbor" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path / "package"))
    yield __import__("harbor.environments.factory", fromlist=["LOG"]).LOG
    for name in [name for name in sys.modules if name.partition(".")[0] == "harbor"]:
        del sys.modules[name]


def test_a_missing_package_is_named_with_its_extra():
    with rejects(MissingPackage, key="backend", advice="pip install -c constraints.txt -e '.[harbor]'"):
        TerminalEnv(backend="harbor:daytona", image="python:3.12")


def test_unknown_backends_are_named(harbor):
    with rejects(InvalidArgument, "harbor:clod", advice="NAME from cloud"):
        HarborSandbox("clod", "x")
    with rejects(InvalidArgument, "harbor:NAME", "harbour", key="backend"):
        TerminalEnv(backend="harbour")
    with rejects(InvalidArgument, key="backend"):
        TerminalEnv(backend="harbor:cloud")
    with rejects(SandboxUnavailable, "harbor:cloud", "RuntimeError: no such image"):
        HarborSandbox("cloud", "absent").start({})


def test_a_shell_keeps_its_state_between_requests(harbor):
    remote = HarborSandbox("cloud", "python:3.12", max_output=100)
    first = remote.start({"a.txt": file("x\n"), "to": link("a.txt")})
    config = harbor[0]["task_env_config"]
    assert (config.docker_image, config.network_mode, config.memory_mb) == ("python:3.12", "no-network", 256)
    result = remote.run("mkdir d; cd d; X=5; f() { echo in $X; }; echo more > b.txt", 5)
    assert (result.status, result.directory) == (0, "/app/d") and result.changes == ["+ app/d", "+ app/d/b.txt"]
    result = remote.run("f; pwd; echo problem >&2; false", 5)
    assert (result.status, result.output.text(), result.errors.text()) == (1, "in 5\n/app/d\n", "problem\n")
    assert "bytes cut]" in remote.run("seq 1000", 5).output.text()
    late = remote.run("sleep 30", 0.3)
    assert (late.status, late.stopped) == (124, "it took more than 0.3 s")
    assert remote.run("exit 3", 5).restarted
    assert remote.run("cd /app; rm -r d; unset X; unset -f f", 5).state != first  # OLDPWD
    saved = remote.save()
    assert remote.restore(saved) == remote.restore(saved)
    assert remote.files().keys() == {"a.txt", "to"} and remote.files()["to"].kind == "l"
    remote.close()
    assert harbor[-1] == "stopped"
    with rejects(SandboxLost, "sandbox ended"):
        remote.run("true", 1)


def test_the_judge_gets_a_fresh_environment_and_forged_answers_lose_the_episode(harbor, tmp_path):
    remote = make_sandbox("harbor:cloud", "python:3.12", HarborSandbox("cloud", "x").limits, 1000)
    remote.start({})
    assert "from-image" in remote.files()
    remote.run('echo \'open(__import__("sys").argv[2], "w").write("[1")\' > /opt/gagpo/step.py', 5)
    with rejects(SandboxLost, "invalid answer"):
        remote.run("true", 5)
    remote.start({"b.txt": file("x")}, {"/tests": {"test.sh": file("cat /app/b.txt")}})
    assert remote.run("bash /tests/test.sh; ls /app", 5).output.text() == "xb.txt\n"
    remote.run("""echo 'open(__import__("sys").argv[2], "w").write("{\\"answer\\": {}}")' > /opt/gagpo/step.py""", 5)
    with rejects(BadTree, "invalid tree"):
        remote.kill()
    remote.close()


def test_a_task_folder_runs_with_its_solution(harbor, tmp_path):
    task = tmp_path / "task"
    for name, text in {
        "task.toml": "[verifier]\ntimeout_sec = 20\n",
        "instruction.md": "Write 4 to n.txt.",
        "tests/test.sh": "grep -qx 4 n.txt && test -e from-image && echo 1 > /logs/verifier/reward.txt",
        "solution/solve.sh": "echo 4 > n.txt",
        "environment/Dockerfile": "FROM something:rare",
    }.items():
        (task / name).parent.mkdir(parents=True, exist_ok=True)
        (task / name).write_text(text)
    env = TerminalEnv(tasks=str(task), split="test", backend="harbor:cloud", image="something:rare", expert=True)
    try:
        rewards = []
        for solves in (True, False):
            env.reset(options={"task": "task"})
            if solves:
                env.step(env.expert_action())
            rewards.append(env.step("submit")[1])
        assert rewards == [1.0, 0.0]
    finally:
        env.close()
