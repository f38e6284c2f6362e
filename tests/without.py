"""The fast suite in a copy of the repository without removable folders: python -m tests.without [NAME ...]

Without a name, all of ``tests.folders.DOORS`` are removed. Tests that need one of them are skipped.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.folders import DOORS, copy_without


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the fast suite without removable folders.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of {', '.join(DOORS)}; all by default")
    parser.add_argument("--jobs", default="2", help="processes of pytest")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in DOORS]
    if unknown:
        parser.error(f"unknown folder {unknown[0]!r}; choose from {', '.join(DOORS)}")
    with tempfile.TemporaryDirectory() as scratch:
        doors = [DOORS[name] for name in options.names or DOORS]
        copy = copy_without(doors, Path(scratch) / "gagpo")
        command = [sys.executable, "-m", "pytest", "-m", "not slow", "-n", options.jobs, "--dist", "worksteal", "-q"]
        return subprocess.run(command, cwd=copy, env={**os.environ, "PYTHONPATH": str(copy)}).returncode


if __name__ == "__main__":
    raise SystemExit(main())
