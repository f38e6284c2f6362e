"""The judge of the hard tests recognises every fault."""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path

import pytest

from gagpo.base.errors import GagpoError
from tests.hard.mutate import mutate
from tests.hard.outcome import FAULT, FINE, REFUSED, attempt


def _raise(error: BaseException) -> None:
    raise error


def _status(code: int, *lines: str) -> None:
    print(*lines, sep="\n", file=sys.stderr)
    sys.exit(code)


@pytest.mark.parametrize(
    ("act", "verdict", "words"),
    [
        (lambda: "seen", FINE, "seen"),
        (lambda: _raise(GagpoError("row 3 of a.csv is empty")), REFUSED, "row 3 of a.csv is empty"),
        (lambda: _raise(FileNotFoundError(2, "No such file", "a.csv")), REFUSED, "a.csv"),
        (lambda: _status(2, "gagpo: row 3 of a.csv is empty"), REFUSED, "row 3"),
        (lambda: _raise(GagpoError("")), FAULT, "without a message"),
        (lambda: _raise(GagpoError("x" * 5000)), FAULT, "5000 characters"),
        (lambda: _raise(KeyError("a")), FAULT, "KeyError: 'a'"),
        (lambda: _status(1, "Traceback (most recent call last):", "KeyError"), FAULT, "exit status 1"),
        (lambda: os.abort(), FAULT, "exit status -6"),
    ],
)
def test_what_comes_of_an_attempt(act: object, verdict: str, words: str) -> None:
    outcome = attempt(act, seconds=1, patience=10)  # type: ignore[arg-type]
    assert outcome.verdict == verdict
    assert words in outcome.words


def test_an_attempt_that_hangs_is_ended() -> None:
    outcome = attempt(lambda: time.sleep(1000), seconds=1, patience=0.5)  # type: ignore[arg-type, return-value]
    assert outcome.verdict == FAULT and "hangs for more than 1 s" in outcome.words


def test_a_mutation_is_repeated_by_its_number_and_changes_the_file(tmp_path: Path) -> None:
    sound = b'{"rows": [1, 2, {"name": "mug"}]}'
    observed = set()
    for case in range(60):
        result = []
        for name in ("one.json", "two.json"):
            (tmp_path / name).write_bytes(sound)
            how = mutate(tmp_path / name, random.Random(case))
            result.append((how, (tmp_path / name).read_bytes()))
        assert result[0] == result[1]
        observed.add(result[0][1])
    assert len(observed) > 40
