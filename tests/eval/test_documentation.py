"""The examples of the package: those in docstrings, and those in docs/evaluation.md."""

import doctest
import importlib
import re
from pathlib import Path

import pytest

MODULES = ("at_k", "report.page", "runs", "summary", "units")
GUIDE = Path(__file__).parents[2] / "docs" / "evaluation.md"


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_are_true(name):
    outcome = doctest.testmod(importlib.import_module(f"gagpo.eval.{name}"))
    assert outcome.attempted > 0 and outcome.failed == 0


def test_the_guide_runs_as_printed(tmp_path, make_run, monkeypatch):
    for method, rise in (("gagpo", 0.5), ("grpo", 0.2)):
        for seed in (1, 2):
            make_run(tmp_path / "runs" / f"{method}-seed{seed}", seed=seed, rise=rise, iterations=6)
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    assert blocks
    names = {}
    for block in blocks:
        exec(compile(block, str(GUIDE), "exec"), names)
