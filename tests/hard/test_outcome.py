"""The judge of the hard tests: what is a fault is called one."""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path

import pytest

from gagpo.base.errors import GagpoError
from tests.hard.mutate import mutate
from tests.hard.outcome import FAULT, FINE, REFUSED, Outcome, Tally, attempt
from tests.hard.run import Part, report


def _raise(error: BaseException) -> None:
    raise error


def _status(code: int, *lines: str) -> None:
    print(*lines, sep="\n", file=sys.stderr)
    sys.exit(code)


def _spin() -> None:
    while True:
        pass


@pytest.mark.parametrize(
    ("act", "verdict", "words"),
    [
        (lambda: "seen", FINE, "seen"),
        (lambda: _status(0), FINE, ""),
        (lambda: _raise(GagpoError("row 3 of a.csv is empty")), REFUSED, "row 3 of a.csv is empty"),
        (lambda: _raise(FileNotFoundError(2, "No such file", "a.csv")), REFUSED, "a.csv"),
        (lambda: _status(2, "gagpo: row 3 of a.csv is empty"), REFUSED, "row 3"),
        (lambda: _raise(GagpoError("")), FAULT, "without a message"),
        (lambda: _raise(GagpoError("x" * 5000)), FAULT, "5000 characters"),
        (lambda: _raise(KeyError("a")), FAULT, "KeyError: 'a'"),
        (lambda: _raise(RecursionError("deep")), FAULT, "RecursionError"),
        (lambda: _raise(MemoryError()), FAULT, "MemoryError"),
        (lambda: _status(1, "Traceback (most recent call last):", "KeyError"), FAULT, "exit status 1"),
        (lambda: _status(2, "Traceback", "gagpo: KeyError"), FAULT, "exit status 2"),
        (lambda: os.abort(), FAULT, "exit status -6"),
        (lambda: time.sleep(1000), FAULT, "hangs for more than 1 s"),
        (lambda: _spin(), FAULT, "hangs for more than 1 s"),
    ],
)
def test_what_comes_of_an_attempt(act: object, verdict: str, words: str) -> None:
    outcome = attempt(act, seconds=1, patience=10)  # type: ignore[arg-type]
    assert outcome.verdict == verdict
    assert words in outcome.words


def test_a_mutation_is_repeated_by_its_number_and_changes_the_file(tmp_path: Path) -> None:
    sound = b'{"rows": [1, 2, {"name": "mug"}]}'
    seen = set()
    for case in range(60):
        made = []
        for name in ("one.json", "two.json"):
            (tmp_path / name).write_bytes(sound)
            how = mutate(tmp_path / name, random.Random(case))
            made.append((how, (tmp_path / name).read_bytes()))
        assert made[0] == made[1]
        seen.add(made[0][1])
    assert len(seen) > 40


def test_the_report_is_a_page_that_says_how_to_repeat_a_fault() -> None:
    tally = Tally("mutated: settings", seconds=3.0)
    for case in range(200):
        tally.add(f"mutations --only {case}", Outcome(FINE, "") if case < 1 else Outcome(FAULT, "KeyError: 'a'"))
    whole = Part("kills", 1.0, 9.4, [Tally("random kills")])
    page = report([Part("mutations", 0.02, 3.0, [tally]), whole], seed=7, command="python -m tests.hard.run kills")
    assert "| mutated: settings | 1 | 0 | 199 |" in page and "| random kills | 0 | 0 | 0 |" in page
    assert "| kills | 50 | all | 9 |" in page and "| mutations | 200 | 2 % | 3 |" in page
    assert "At full count: kills." in page and "At less than full count: mutations." in page
    assert "    python -m tests.hard.run kills\n" in page
    assert "`mutations --only 1`" in page and "and 174 more" in page
    assert len(page.splitlines()) < 90
