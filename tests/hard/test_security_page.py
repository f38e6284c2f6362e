"""Every test that the page on security names is there, and every count is that of the last run of the hard tests."""

from __future__ import annotations

import re
from pathlib import Path

from tests.hard.run import PARTS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
ROWS = [line for line in PAGE.splitlines() if line.startswith("|") and "tests/" in line]


def test_every_test_that_stands_for_a_promise_exists() -> None:
    assert len(ROWS) >= 15
    named = 0
    for row in ROWS:
        cell = row.split("|")[2]
        for part in cell.split(";"):
            (path,) = re.findall(r"`(tests/[\w/]+\.py)`", part)
            source = (ROOT / path).read_text(encoding="utf-8")
            for name in re.findall(r"`(test_\w+)`", part):
                assert f"def {name}(" in source, f"{path} has no {name}"
                named += 1
    assert named >= 20


def test_both_pages_name_each_other() -> None:
    assert "SECURITY.md" in PAGE
    assert "docs/security.md" in (ROOT / "SECURITY.md").read_text(encoding="utf-8")


def test_the_counts_are_those_of_the_last_run() -> None:
    run = (ROOT / "lab" / "hard.md").read_text(encoding="utf-8")
    made = {
        part: int(count) for part, count in re.findall(r"^\| (\w+) \| (\d+) \| (?:all|[\d.]+ %) ", run, re.MULTILINE)
    }
    assert set(made) == set(PARTS)
    of_file: dict[str, int] = {}
    for part, (carried_out, _) in PARTS.items():
        file = carried_out.__module__.replace(".", "/") + ".py"
        of_file[file] = of_file.get(file, 0) + made[part]
    said = re.findall(r"([\d,]+) [^;|`]*in `(tests/hard/\w+\.py)`", PAGE)
    assert {file: int(count.replace(",", "")) for count, file in said} == of_file
    (whole,) = re.findall(r"^- At full count: (.+)\.$", run, re.MULTILINE)
    (words,) = re.findall(r"At full\s+count it made ([^.]+)\.", PAGE)
    assert set(re.findall(r"the (\w+)", words)) == set(whole.split(", "))
    assert ("without a fault" in PAGE) == run.count("No fault.")
