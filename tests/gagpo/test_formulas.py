"""The formula index: its YAML says and does what stands above it."""

import re
import runpy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml

from gagpo.algorithms import PRESETS, Algorithm, load
from gagpo.runs.run_folder import RunFolder
from gagpo.settings import load as load_run
from gagpo.settings import parse
from gagpo.training.trainer import train

formulas = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[2] / ".ci" / "formulas_page.py")))
RUN = {"name": "a-run", "model": "a-model", "environment": {"id": "an-environment"}}


def blocks(text: str) -> dict[str, Algorithm]:
    """Every block of YAML by its heading, read as a run reads it."""
    found = re.findall(r"^### (.*)\n\n(?: {4}.*\n)+\n```yaml\n((?:.*\n)*?)```", text, re.MULTILINE)
    return {title: parse({**RUN, **yaml.safe_load(block)}, title).algorithm for title, block in found}


def test_every_row_has_a_formula_and_its_yaml_is_the_row():
    assert formulas.ROWS.keys() == PRESETS.keys()
    read = blocks(formulas.page())
    assert len(read) == len(PRESETS) + len(formulas.VARIANTS)
    for name in PRESETS:
        (found,) = (algorithm for title, algorithm in read.items() if f"`{name}`" in title)
        assert found.model_copy(update={"preset": name}) == load(name)


@pytest.mark.slow
@pytest.mark.parametrize("formula", formulas.VARIANTS, ids=lambda formula: formula.title)
def test_a_variant_changes_its_row_and_trains_an_iteration(formula, corridor, tmp_path):
    algorithm = load_run(corridor(algorithm=formula.cells)).algorithm
    assert algorithm != load(formula.cells["preset"])
    config = corridor(algorithm=formula.cells, training={"iterations": 1}, evaluation={"splits": []})
    folder = RunFolder.create(tmp_path / "run", load_run(config))
    train(folder, quiet=True)
    (row,) = folder.metrics()
    if row["updates"] == 0:  # a success is what some are taught by
        assert row["success_rate"] == 0 and formula.title == "On-policy distillation"
        return
    assert np.isfinite(row["loss"]) and np.isfinite(row["grad_norm"])
