"""`pip install -c constraints.txt '.[inspect]'` has a solution: no pin is refused by what the extra brings along."""

import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

pytestmark = pytest.mark.interop
ROOT = Path(__file__).parents[3]
SECONDS = 900  # for the resolver, which fetches the metadata of 150 packages


def pins(path):
    """The version of each package that a file of constraints admits."""
    lines = (line.partition("#")[0].strip() for line in path.read_text().splitlines())
    found = [Requirement(line) for line in lines if line]
    assert all(str(one.specifier).startswith("==") for one in found)
    return {canonicalize_name(one.name): str(one.specifier)[2:] for one in found}


def refused(first, pinned):
    """What packages that are here, from ``first`` on, say against a pin; and how many were asked."""
    found, seen, ahead = [], set(), [(Requirement(first), "the user")]
    while ahead:
        wanted, by = ahead.pop()
        name = canonicalize_name(wanted.name)
        if name in pinned and not wanted.specifier.contains(pinned[name], prereleases=True):
            found.append(f"{by} wants {wanted}, the pin is {pinned[name]}")
        for extra in {"", *wanted.extras} - {extra for known, extra in seen if known == name}:
            seen.add((name, extra))
            try:
                package = distribution(name)
            except PackageNotFoundError:
                continue
            needs = [Requirement(line) for line in package.requires or []]
            named = [one for one in needs if one.marker is None or one.marker.evaluate({"extra": extra})]
            ahead += [(one, f"{name} {package.version}") for one in named]
    return found, len(seen)


def test_no_package_that_inspect_needs_refuses_a_pin():
    """By the requirements of the packages themselves, as they lie here; those of Inspect stand for base and extra."""
    pytest.importorskip("inspect_ai")
    pinned = pins(ROOT / "constraints.txt")
    for first in ("inspect-ai", "gagpo[inspect]"):
        against, asked = refused(first, pinned)
        assert against == [] and asked > 50


def test_a_pin_that_cannot_be_is_found():
    pytest.importorskip("inspect_ai")
    against, _ = refused("inspect-ai", pins(ROOT / "constraints.txt") | {"fsspec": "2099.1.0"})
    assert any("fsspec" in one for one in against)


@pytest.mark.slow
def test_pips_own_resolver_finds_a_solution(tmp_path):
    """Where an index can be reached. Nothing is installed, and nothing that is here counts."""
    venv = tmp_path / "empty"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True, timeout=120)
    pip = [sys.executable, "-m", "pip", "--python", str(venv / "bin/python"), "--disable-pip-version-check"]
    reached = subprocess.run(
        [*pip, "download", "--no-deps", "-q", "-d", str(tmp_path), "six"], capture_output=True, timeout=120
    )
    if reached.returncode:
        pytest.skip("no index of packages can be reached from here")
    wanted = [*pip, "install", "--dry-run", "-q", "-c", str(ROOT / "constraints.txt"), f"{ROOT}[inspect]"]
    found = subprocess.run(wanted, capture_output=True, text=True, timeout=SECONDS)
    assert found.returncode == 0, found.stderr[-2000:]
