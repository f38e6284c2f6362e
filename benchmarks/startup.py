"""Seconds of processor time until help or a mistake is answered, a process each.

python -m benchmarks.startup
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile

from gagpo.base.tables import Table, text_width

COMMANDS = (
    "--help",
    "train --help",
    "train alfworld-frist",
    "train alfworld-quickstart rollout.sampels=3",
    "train alfworld-quickstart device=cuda",
    "train --resume none",
    "eval runs/none",
    "eval none",
    "compare none none2",
    "report none",
    "export none out",
    "check gagpo/No-v0",
    "plan alfworld-quickstart lamda=1",
)
ROUNDS = 5


def seconds(words: str, folder: str) -> float:
    """User and system time of one process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "PYTHONPATH": os.getcwd(), "GAGPO_DATA": folder}
    subprocess.run(
        [sys.executable, "-P", "-m", "gagpo", *words.split()],
        cwd=folder,
        env=environment,
        capture_output=True,
        check=False,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for words in COMMANDS:
            seconds(words, folder)  # compiles and fills the disk's cache
            found = [seconds(words, folder) for _ in range(ROUNDS)]
            rows.append([f"gagpo {words}", f"{statistics.median(found):.2f}", f"{max(found):.2f}"])
    print(*Table(["command", "median, s", "most, s"], rows).lines(text_width()), sep="\n")


if __name__ == "__main__":
    main()
