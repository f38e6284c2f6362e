"""Every test that the page on security names is there."""

from __future__ import annotations

import re
from pathlib import Path

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
