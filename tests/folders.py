"""The folders of the product that can be removed, and which of them this checkout has.

In a copy without one, a test elsewhere that needs it is skipped.
"""

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]


class Door(NamedTuple):
    """What stands behind a door.

    paths: its folders and files; the tests that mirror them go with it.
    names: a pattern of what nobody else may name.
    override: a setting that needs it.
    error: what the error says without it.
    """

    paths: tuple[str, ...]
    names: str
    override: str
    error: str

    def contains(self, path: str) -> bool:
        """Whether a file of the repository is behind the door."""
        return any(path == root or path.startswith(f"{root}/") for root in self.paths)


def environment(folder: str, env_id: str) -> Door:
    """The door of a folder of environments with one registered id."""
    error = f"gagpo/envs has no folder '{folder}'"
    return Door((f"envs/{folder}",), re.escape(env_id), f"environment.id={env_id}", error)


DOORS = {
    "sql": environment("sql", "gagpo/SQL-v0"),
    "mcp": environment("mcp", "gagpo/MCP-v0"),
    "web": environment("web", "gagpo/Web-v0"),
    "program": environment("program", "gagpo/Program-v0"),
    "terminal": environment("terminal", "gagpo/Terminal-v0"),
    "scienceworld": environment("scienceworld", "gagpo/ScienceWorld-v0")._replace(names="(?i:scienceworld)"),
    "reasoning_gym": Door(
        ("envs/reasoning_gym",), "reasoning_gym", "environment.id=reasoning_gym:gcd", "ids that begin 'reasoning_gym:'"
    ),
    "openenv": Door(
        ("envs/openenv", "gagpo/interop/openenv.py", "gagpo/cli/servers/openenv.py"),
        "(?i:openenv)-v0|gagpo openenv|RemoteEnv",
        "environment.id=http://127.0.0.1:9",
        "ids that begin 'http://'",
    ),
    "vllm": Door(
        ("agents/engines/remote",),
        r"""["']vllm["']|engine[= ]vllm|VLLM""",
        "engine=vllm",
        "no folder of gagpo/agents/engines offers it",
    ),
}


def present(path: str) -> bool:
    """Whether the checkout has a folder with modules, or a file, such as ``envs/web``."""
    return (ROOT / path).is_file() or any((ROOT / path).glob("*.py"))


def needs(path: str) -> pytest.MarkDecorator:
    """Skip a test where ``path`` was removed."""
    return pytest.mark.skipif(not present(path), reason=f"without {path}")


complete = pytest.mark.skipif(
    not all(present(door.paths[0]) for door in DOORS.values()), reason="a folder was removed that pages and plans name"
)


def copy_without(doors: Sequence[Door], folder: Path) -> Path:
    """A copy of the checkout in ``folder`` without what is behind the doors and the tests that mirror it."""
    command = ["git", "ls-files", "-co", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    paths = [path for door in doors for path in door.paths]
    mirrors = [f"tests/{path}/" for path in paths]
    mirrors += [f"tests/{Path(path).parent}/test_{Path(path).name}" for path in paths]
    for name in listed.stdout.splitlines():
        behind = any(door.contains(name) for door in doors) or any(name.startswith(mirror) for mirror in mirrors)
        if not behind and (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name, follow_symlinks=False)
    return folder


def removed() -> list[str]:
    """What the errors of this checkout say where something needs a folder that was removed; [] for a full checkout."""
    messages = []
    for door in DOORS.values():
        if not present(door.paths[0]):
            module = door.paths[0].replace("/", ".")
            messages += [door.error, f"No module named 'gagpo.{module}"]
            if match := re.search(r"gagpo/(\w+)-v0", door.override):
                messages.append(f"Environment `{match[1]}` doesn't exist")
    return messages


def without(env_id: str) -> bool:
    """Whether the folder of an environment was removed."""
    return any(door.override == f"environment.id={env_id}" and not present(door.paths[0]) for door in DOORS.values())
