"""What the installation asks for before it starts, and which build of torch it takes."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CALLS = """#!/bin/sh
# Stands in for an interpreter without torch. $OFFERED: what pip would install. $UV: the status of uv.
case "$*" in
  *"importlib.metadata"*) exit 1 ;;
  *--dry-run*) echo "Would install $OFFERED" ;;
  *"-m uv"*) echo "uv ${*#*pip }" >> "$LOG"; exit "$UV" ;;
  *) echo "pip ${*#*constraints.txt }" >> "$LOG" ;;
esac
"""


@pytest.fixture
def install(tmp_path):
    """Run ``.ci/torch``; returns the calls it makes and what it prints."""
    python = tmp_path / "python"
    python.write_text(CALLS)
    python.chmod(0o755)

    def run(offered, gpu=False, uv_status=0, **environment):
        log = tmp_path / "log"
        log.write_text("")
        programs = tmp_path / "bin"
        programs.mkdir(exist_ok=True)
        (programs / "nvidia-smi").write_text(f"#!/bin/sh\n{'echo GPU 0: H100' if gpu else 'exit 9'}\n")
        (programs / "nvidia-smi").chmod(0o755)
        (programs / "df").write_text("#!/bin/sh\necho head\necho / 9 9 99999999 9 /\n")
        (programs / "df").chmod(0o755)
        variables = {"OFFERED": offered, "UV": str(uv_status), "LOG": str(log), **environment}
        variables["PATH"] = f"{programs}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            ["sh", ".ci/torch", str(python), "2.13.0"],
            cwd=ROOT,
            env=variables,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        calls = [
            line.replace(line.split("--target ")[1].split()[0], "FOLDER") if "--target" in line else line
            for line in log.read_text().splitlines()
        ]
        return [call.replace(str(python), "PYTHON") for call in calls], done.stdout

    return run


FROM_CPU_INDEX = "uv install -q --python PYTHON --no-deps --torch-backend cpu torch==2.13.0"


def test_without_a_gpu_the_build_of_the_cpu_index_is_taken(install):
    calls, tokens = install("torch-2.13.0")
    assert calls == ["pip --target FOLDER uv", FROM_CPU_INDEX, "pip torch==2.13.0"]
    assert "200 MB" in tokens and "CUDA" not in tokens


def test_where_the_cpu_index_cannot_be_reached_the_build_with_cuda_is_taken(install):
    calls, tokens = install("torch-2.13.0", uv_status=2)
    assert calls == ["pip --target FOLDER uv", FROM_CPU_INDEX, "pip torch==2.13.0"]
    assert "could not be reached" in tokens and "3 GB" in tokens


def test_a_cpu_wheel_at_hand_is_taken(install):
    calls, tokens = install("torch-2.13.0+cpu")
    assert calls == ["pip torch==2.13.0"] and "200 MB" in tokens


def test_with_a_gpu_the_package_index_decides(install):
    calls, tokens = install("torch-2.13.0", gpu=True)
    assert calls == ["pip torch==2.13.0"] and "3 GB" in tokens and "H100" in tokens


def test_an_index_that_is_named_comes_first(install):
    calls, _ = install("torch-2.13.0", gpu=True, TORCH_INDEX_URL="file:///wheels")
    assert calls == ["pip --index-url file:///wheels torch==2.13.0"]


def preflight(python):
    done = subprocess.run(
        ["sh", ".ci/preflight", str(python)], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    return done.stderr


def test_a_wrapper_that_fails_is_not_called_old(tmp_path):
    wrapper = tmp_path / "python3"
    wrapper.write_text("#!/bin/sh\necho 'no version is set for command python3' >&2\nexit 126\n")
    wrapper.chmod(0o755)
    assert f"{wrapper} does not run: no version is set" in preflight(wrapper)


def test_an_old_python_is_named_with_its_version(tmp_path):
    old = tmp_path / "python3"
    old.write_text('#!/bin/sh\ncase "$2" in *print*) echo 3.9 ;; *) exit 1 ;; esac\n')
    old.chmod(0o755)
    assert f"{old} is Python 3.9, and 3.11 or newer is needed" in preflight(old)
