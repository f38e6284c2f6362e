"""Every environment and engine that can be removed is a folder that only the registry finds.

A copy of the repository without one of these folders imports, lists, checks and collects everything else.
``make test-doors`` runs the fast suite in a copy without all of them.
"""

import os
import re
import subprocess
import sys

import pytest

from tests.folders import DOORS, ROOT, copy_without, present

TOPS = ("envs", "agents", "eval", "gagpo")
REQUIREMENTS = {"gagpo/base/extras.py"}
"""Files that name extras and packages of ``pyproject.toml``, which are no folders."""


COLLECTED = ("program", "vllm")
"""Folders without which the fast suite is collected too: those that most of the rest once used."""

USE = """
import contextlib, importlib, io, sys
from pathlib import Path

root = Path.cwd()
missing = set()
for top in ("envs", "agents", "eval", "gagpo"):
    for path in sorted((root / top).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        is_linked = top == "gagpo" and parts[1:2] in [("envs",), ("agents",), ("eval",)]
        if is_linked or parts[-1] in ("__main__", "vllm_extension") or "templates" in parts:
            continue
        name = ".".join(parts if top == "gagpo" else ("gagpo", *parts)).removesuffix(".__init__")
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:  # an optional package
            assert not str(error.name).startswith("gagpo"), (name, error)

from gagpo.cli.main import app

assert Path(sys.modules["gagpo"].__file__).is_relative_to(root)
for words in (["--help"], ["list"], ["doctor", "--runs", "runs"], ["check", "gagpo/Math-v0", "--episodes", "2"]):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        status = app(words, standalone_mode=False)
    assert not status and out.getvalue(), (words, status, out.getvalue())
"""


def product() -> dict[str, str]:
    """The text of every module, by its path; ``gagpo`` links to the other folders."""
    paths = [path for top in TOPS for path in (ROOT / top).rglob("*.py") if "__pycache__" not in path.parts]
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in paths}


@pytest.mark.parametrize("name", DOORS)
def test_nothing_outside_imports_or_names_it(name):
    door = DOORS[name]
    if not present(door.paths[0]):
        pytest.skip("removed")
    modules = "|".join(re.escape(path.removesuffix(".py").replace("/", ".")) for path in door.paths)
    pattern = re.compile(rf"\b({modules})\b|{door.names}")
    outside = {path: text for path, text in product().items() if not door.contains(path)}
    assert len(outside) > 300 and pattern.search("".join(set(product().values()) - set(outside.values())))
    naming = {path: match[0] for path, text in outside.items() if (match := pattern.search(text))}
    assert {path: text for path, text in naming.items() if path not in REQUIREMENTS} == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", DOORS)
def test_everything_else_works_without_it(name, tmp_path):
    door = DOORS[name]
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout")
    copy = copy_without([door], tmp_path)

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        variables = {**os.environ, "PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
        return subprocess.run(
            [sys.executable, *words], cwd=copy, env=variables, capture_output=True, text=True, timeout=300
        )

    used = run("-c", USE)
    assert used.returncode == 0, used.stderr
    refused = run("-m", "gagpo", "train", "alfworld-quickstart", door.override)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1) and door.error in refused.stderr
    if name not in COLLECTED:
        return
    collected = run("-m", "pytest", "--collect-only", "-q", "-m", "not slow", "-p", "no:cacheprovider")
    assert collected.returncode == 0, collected.stdout[-3000:]
