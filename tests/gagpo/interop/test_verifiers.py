"""verifiers plays our environments: by its own openenv taskset through our server, and by our taskset without one.

Server and taskset are one process each, since the two want different versions of mcp.
"""

# ruff: noqa: E402 (without the package there is nothing to import)

import asyncio
import importlib.abc
import importlib.machinery
import json
import os
import re
import shlex
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

pytest.importorskip("verifiers.v1")
pytest.importorskip("openenv")


class NoTools(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands for fastmcp, whose mcp verifiers excludes; OpenEnv needs it for servers of tools, and ours is none."""

    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.startswith("fastmcp") else None

    def create_module(self, spec):
        return type("Stub", (ModuleType,), {"__getattr__": lambda self, name: type(name, (), {})})(spec.name)

    def exec_module(self, module):
        module.__path__ = []


try:
    import fastmcp  # noqa: F401
except ImportError:
    sys.meta_path.append(NoTools())

from verifiers.v1.tasksets.openenv.taskset import OpenEnvConfig, OpenEnvEnv, OpenEnvTaskset
from verifiers.v1.utils import loaders

from gagpo.envs.testing import CorridorEnv
from gagpo.interop.verifiers import EnvironmentConfig, EnvironmentTaskset, TasksetEnv
from tests.agents.chat_server import serving

pytestmark = pytest.mark.interop
SERVER = os.environ.get("GAGPO_SERVER_PYTHON")  # a Python in which `gagpo serve` works


class Player:
    """Walks by what it is shown, and keeps it."""

    def __init__(self, style="{}"):
        self.shown, self.rewards, self.metrics, self.style = [], {}, {}, style

    @asynccontextmanager
    async def interaction(self, task):
        trace = SimpleNamespace(
            record_reward=self.rewards.__setitem__, record_metrics=self.metrics.update, stop=lambda why: None
        )

        async def turn(text):
            self.shown.append(text)
            place, door = map(int, re.search(r"You stand at (\d+)\. Go to door (\d+)\.", text).groups())
            return SimpleNamespace(terminated=False, last_reply=self.style.format("left" if place > door else "right"))

        yield SimpleNamespace(turn=turn, trace=trace)


@pytest.mark.skipif(SERVER is None, reason="GAGPO_SERVER_PYTHON names no Python with OpenEnv's server")
def test_its_taskset_plays_our_server():
    code = "from gagpo.interop.openenv import serve; serve('gagpo.envs.testing:gagpo-test/Corridor-v0', port=0)"
    server = subprocess.Popen([SERVER, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        url = server.stdout.readline().split(" at ")[1].strip()
        resets = [{"split": "test", "index": 1, "seed": 3}, {"split": "train", "index": 0, "seed": 1}]
        tasks = list(OpenEnvTaskset(OpenEnvConfig(base_url=url, resets=resets)))
        assert len(tasks) == 2
        for task in tasks:
            player = Player()
            asyncio.run(OpenEnvEnv.run(None, task, SimpleNamespace(player=player)))
            assert player.rewards == {"openenv_reward": 1.0}
            assert all("success" not in text and "state" not in text for text in player.shown)
    finally:
        server.terminate()
        server.wait(20)


CORRIDOR = "gagpo.envs.testing:gagpo-test/Corridor-v0"


def test_our_taskset_plays_without_a_server():
    tasks = list(EnvironmentTaskset(EnvironmentConfig(env_id=CORRIDOR, split="test")))
    assert [task.data.id for task in tasks] == CorridorEnv().tasks("test").ids
    for task in tasks:
        player = Player("<think>which way?</think><action>{}</action>")
        asyncio.run(TasksetEnv.run(None, task, SimpleNamespace(player=player)))
        env = CorridorEnv()
        observation, _ = env.reset(seed=task.data.start, options={"task": task.data.task})
        seen, reward, over = [observation], 0.0, False
        while not over:
            observation, gained, terminated, truncated, info = env.step("left" if env.place > env.door else "right")
            reward, over = reward + gained, terminated or truncated
            seen.append(observation)
        assert player.rewards == {"reward": reward} and reward == 1.0
        assert player.metrics == {"success": info["success"], "turns": len(seen) - 1, "invalid": 0}
        assert all(shown in text for shown, text in zip(seen, player.shown, strict=False))
        assert len(player.shown) == len(seen) - 1


def test_verifiers_finds_it_by_the_name_of_a_module(tmp_path, monkeypatch):
    page = (Path(__file__).parents[3] / "docs/interop.md").read_text()
    (tmp_path / "environments.py").write_text(page.split("```python\n# environments.py\n")[1].split("```")[0])
    monkeypatch.syspath_prepend(tmp_path)
    assert (
        loaders.taskset_class("environments") is EnvironmentTaskset
        and loaders.environment_class("environments") is TasksetEnv
    )


def printed_command():
    """The words of `vf-eval` as the page prints it."""
    page = (Path(__file__).parents[3] / "docs/interop.md").read_text()
    (text,) = re.findall(r"^PYTHONPATH=\. (vf-eval (?:.*\\\n)*.*)$", page, re.MULTILINE)
    return shlex.split(text.replace("\\\n", " "))


def test_a_game_is_played_to_its_end_by_its_own_command(tmp_path):
    """The page's command, with a quick environment and a server that plays it; harness and runtime are as printed."""
    page = (Path(__file__).parents[3] / "docs/interop.md").read_text()
    (tmp_path / "environments.py").write_text(page.split("```python\n# environments.py\n")[1].split("```")[0])
    with serving(style="<think>which way?</think><action>{}</action>") as server:
        address = server.url if server.url.endswith("/v1") else f"{server.url}/v1"
        changed = {"gagpo/ALFWorld-v0": CORRIDOR, "http://127.0.0.1:8000/v1": address, "5": "2"}
        command = [changed.get(word, word) for word in printed_command()]
        assert set(changed.values()) <= set(command)
        found = subprocess.run(
            [str(Path(sys.executable).with_name(command[0])), *command[1:], "--no-rich", "-o", "out"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[3]}", "API_KEY": "none"},
            capture_output=True,
            text=True,
            timeout=500,
        )
        said = found.stdout[-2000:] + found.stderr[-2000:]
        if "uv" in said and "not found" in said:
            pytest.skip("the runtime subprocess of verifiers needs uv, which is not to be had here")
        assert found.returncode == 0, said
        assert server.answered > 2 and all(request["stream"] for request in server.requests)
    (results,) = tmp_path.rglob("traces.jsonl")
    games = [game for line in results.read_text().splitlines() for game in json.loads(line)["traces"]]
    assert len(games) == 2
    for game in games:
        assert game["rewards"]["reward"]["score"] == 1.0 and game["metrics"]["success"] == 1.0, game["errors"]
        assert game["metrics"]["invalid"] == 0.0 and len(game["calls"]) == game["metrics"]["turns"]


def test_the_defaults_play_at_once(tmp_path):
    """`vf-eval environments`, resolved by its own command: a plain chat in a process of this machine."""
    (tmp_path / "environments.py").write_text(
        "from gagpo.interop.verifiers import TasksetEnv, EnvironmentTaskset\n\n"
        "__all__ = ['TasksetEnv', 'EnvironmentTaskset']\n"
    )
    command = [str(Path(sys.executable).with_name("vf-eval")), "environments", "--env.taskset.env-id", CORRIDOR]
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[3])])
    found = subprocess.run(
        [*command, "-n", "1", "--no-push", "--no-rich", "--dry-run", "-o", "out"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert found.returncode == 0, found.stdout + found.stderr
    (resolved,) = tmp_path.rglob("eval.json")
    player = json.loads(resolved.read_text())["env"]["player"]
    assert (player["harness"]["id"], player["runtime"]["type"]) == ("null", "subprocess")
