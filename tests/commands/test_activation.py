"""Commands in a shell that was never activated, as ``make`` leaves it."""

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from gagpo.cli import invocation
from tests.commands.pages import ROOT, blocks
from tests.gagpo.cli.test_view import write_run

BARE = "/usr/bin:/bin"


@pytest.fixture
def clone(tmp_path):
    """A folder with this environment as its ``.venv``, a ``make`` that does nothing, and the run that README trains."""
    (tmp_path / ".venv").symlink_to(sys.prefix)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "make").write_text("#!/bin/sh\n")
    (tmp_path / "bin" / "make").chmod(0o755)
    write_run(tmp_path / "runs" / "alfworld-quickstart")
    return tmp_path


def in_bare_shell(clone, script):
    path = f"{clone / 'bin'}:{BARE}"
    assert subprocess.run(["sh", "-c", "command -v gagpo"], env={"PATH": path}, check=False).returncode != 0
    return subprocess.run(
        ["bash", "-c", f"set -eu\n{script}"], cwd=clone, env={"PATH": path, "HOME": str(clone)}, text=True, timeout=120,
        capture_output=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("page", ["README.md", "docs/first-run.md"])
def test_the_first_commands_of_a_page_work_in_a_shell_that_was_never_activated(clone, page):
    first = next(block for block in blocks(ROOT / page) if "make train" in block.text)
    done = in_bare_shell(clone, f"{first.text}\ncommand -v gagpo")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("bin/gagpo")


def test_readme_names_the_command_that_tests():
    assert any("make test" in block.lines() for block in blocks(ROOT / "README.md"))


def test_a_hint_can_be_typed_as_it_is_printed(clone):
    done = in_bare_shell(clone, ".venv/bin/gagpo train alfworld-quickstrat")
    assert done.returncode == 2
    hint = re.search("`(.*? list)`", done.stderr)[1]
    assert in_bare_shell(clone, f"{hint} --runs runs").returncode == 0


@pytest.mark.parametrize(
    ("on_path", "inside", "name"),
    [("venv", True, "gagpo"), ("", True, ".venv/bin/gagpo"), ("other", True, ".venv/bin/gagpo"), ("", False, "PATH")],
)
def test_a_command_is_named_as_the_shell_finds_it(tmp_path, monkeypatch, on_path, inside, name):
    program = tmp_path / "my clone" / ".venv" / "bin" / "gagpo"
    other = tmp_path / "other" / "gagpo"
    for path in (program, other):
        path.parent.mkdir(parents=True)
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)
    folders = {"venv": program.parent, "other": other.parent, "": tmp_path}
    monkeypatch.setenv("PATH", os.fspath(folders[on_path]))
    monkeypatch.setattr(sysconfig, "get_path", lambda name: os.fspath(program.parent))
    monkeypatch.chdir(Path(program.parents[2] if inside else tmp_path / "other"))
    typed = invocation.typed("next: gagpo view runs/x; `gagpo list`; /opt/gagpo view; this is a bug in gagpo.")
    after_cd = invocation.typed("next: cd 'new'; gagpo check x")
    assert after_cd == f"next: cd 'new'; {name if name == 'gagpo' else repr(os.fspath(program))} check x"
    expected = name if name != "PATH" else f"'{program}'"
    assert typed == f"next: {expected} view runs/x; `{expected} list`; /opt/gagpo view; this is a bug in gagpo."
