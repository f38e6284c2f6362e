"""A benchmark that cannot run says so before it measures."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import gateway, step
from benchmarks.requirements import require_package

ROOT = Path(__file__).parents[2]


def test_a_missing_package_is_named_with_the_extra_that_brings_it():
    require_package("numpy", "dev")
    with pytest.raises(SystemExit, match=r"needs no_such_module: pip install .*'\.\[gateway\]'"):
        require_package("no_such_module", "gateway")


@pytest.mark.parametrize("benchmark", [gateway, step], ids=["gateway", "step"])
def test_it_asks_for_its_packages(benchmark, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["benchmark"])
    monkeypatch.setattr("benchmarks.requirements.find_spec", lambda module: None)
    with pytest.raises(SystemExit, match="this benchmark needs"):
        benchmark.main()


def test_an_iteration_that_is_left_out_cannot_be_the_only_one(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["step", "--iterations", "1"])
    with pytest.raises(SystemExit):
        step.main()
    assert "--iterations must be at least 2" in capsys.readouterr().err


def test_pages_run_benchmarks_as_modules():
    """``python benchmarks/NAME.py`` does not find the others of its package in a fresh clone."""
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "lab").glob("*.md")]
    for page in [*pages, *(ROOT / "benchmarks").rglob("*.py")]:
        text = page.read_text(encoding="utf-8")
        assert "python benchmarks/" not in text, page
        for module in re.findall(r"python -m (benchmarks(?:\.\w+)+)", text):
            path = ROOT.joinpath(*module.split("."))
            assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file(), f"{page}: {module}"


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks").glob("[a-z]*.py")), ids=lambda path: path.stem)
def test_a_benchmark_is_imported_from_a_fresh_clone(path):
    done = subprocess.run(
        [sys.executable, "-c", f"import benchmarks.{path.stem}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
