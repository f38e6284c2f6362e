"""The script for a GPU runs through on a CPU, and says what failed and what had no time."""

import subprocess
import sys
import time

import pytest

from benchmarks import gpu


@pytest.mark.slow
def test_a_dry_run_passes_every_stage(tmp_path, capsys, monkeypatch):
    page = tmp_path / "gpu.md"
    monkeypatch.setattr(sys, "argv", ["gpu", "--dry", "--seconds", "1200", "--out", str(page)])
    assert gpu.main() == 0, capsys.readouterr().out
    text = page.read_text()
    assert text.count("| ok |") == len(gpu.STAGES) and "Not covered: several GPUs" in text


def test_failures_and_missing_time_are_results():
    report = gpu.Report(time.monotonic() + 30)

    def fail(seconds):
        raise gpu.StageFailed("the doctor found something")

    report.run("doctor", fail)
    report.run("SFT", lambda seconds: "fine")
    report.deadline = time.monotonic()
    report.run("LoRA", lambda seconds: "never")
    assert [(result.verdict, result.text) for result in report.results] == [
        ("failed", "the doctor found something"),
        ("ok", "fine"),
        ("skipped", "no time left"),
    ]


def test_a_command_that_fails_or_hangs_is_one_line():
    with pytest.raises(gpu.StageFailed, match="exit status 3: last words"):
        gpu.output_of([sys.executable, "-c", "print('last words'); raise SystemExit(3)"], 60.0)
    with pytest.raises(gpu.StageFailed, match=r"took more than 1 s"):
        gpu.output_of([sys.executable, "-c", "import time; time.sleep(60)"], 1.0)


def test_sections_are_added_on_top(tmp_path):
    page = tmp_path / "gpu.md"
    gpu.add_section(page, "## first\n\ntext\n")
    gpu.add_section(page, "## second\n\ntext\n")
    text = page.read_text()
    assert text.startswith("# Runs on a GPU") and text.index("## second") < text.index("## first")
    assert text.count("\n## ") == 2


def test_without_a_gpu_the_script_says_so(tmp_path):
    tokens = [sys.executable, "-m", "benchmarks.gpu", "--out", str(tmp_path / "gpu.md")]
    result = subprocess.run(tokens, capture_output=True, text=True, cwd=gpu.ROOT, timeout=300)
    assert result.returncode == 2 and "--dry" in result.stderr and not (tmp_path / "gpu.md").exists()
