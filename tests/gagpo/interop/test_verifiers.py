"""The openenv taskset of verifiers plays our server, one process each: the two want different versions of mcp."""

# ruff: noqa: E402 (without the package there is nothing to import)

import asyncio
import importlib.abc
import importlib.machinery
import os
import subprocess
import sys
from contextlib import asynccontextmanager
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

pytestmark = pytest.mark.interop
SERVER = os.environ.get("GAGPO_SERVER_PYTHON")  # a Python in which `gagpo serve` works


class Player:
    """Walks by what it is shown, and keeps it."""

    def __init__(self):
        self.shown, self.rewards = [], {}

    @asynccontextmanager
    async def interaction(self, task):
        trace = SimpleNamespace(record_reward=self.rewards.__setitem__, stop=lambda why: None)

        async def turn(text):
            self.shown.append(text)
            place, door = (int("".join(filter(str.isdigit, part))) for part in text.split("Go to")[:2])
            return SimpleNamespace(terminated=False, last_reply="left" if place > door else "right")

        yield SimpleNamespace(turn=turn, trace=trace)


@pytest.mark.skipif(SERVER is None, reason="GAGPO_SERVER_PYTHON names no Python with OpenEnv's server")
def test_its_taskset_plays_our_server():
    code = "from gagpo.interop.serve import serve; serve('gagpo.envs.testing:gagpo-test/Corridor-v0', port=0)"
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
