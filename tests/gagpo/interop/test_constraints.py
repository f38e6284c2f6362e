"""`pip install -c constraints.txt '.[gateway]'` has a solution."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.interop
ROOT = Path(__file__).parents[3]
SECONDS = 900  # for the resolver, which fetches the metadata of 150 packages


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
    expected = [*pip, "install", "--dry-run", "-q", "-c", str(ROOT / "constraints.txt"), f"{ROOT}[gateway]"]
    process = subprocess.run(expected, capture_output=True, text=True, timeout=SECONDS)
    assert process.returncode == 0, process.stderr[-2000:]
