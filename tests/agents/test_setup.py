"""Environments are built from names and arguments, with a warning for arguments without effect."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest

from gagpo.agents.setup import make_env


def test_arguments_without_effect_are_warned_of(tmp_path: Path) -> None:
    rows = [{"problem": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(4)]
    path = tmp_path / "problems.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    with pytest.warns(UserWarning, match=r"gagpo/Math-v0: levels, size has no effect: the tasks are given"):
        make_env("gagpo/Math-v0", {"data": str(path), "size": 20, "levels": [1]})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_env("gagpo/Math-v0", {"data": str(path), "max_turns": 3})
        make_env("gagpo/Math-v0", {"size": 20, "levels": [1]})
        make_env("CartPole-v1", {"actions": ["left", "right"]})
