"""The published variants in docs/algorithms.md: each differs from its preset and trains an iteration."""

import re
from pathlib import Path

import numpy as np
import pytest
import yaml

from gagpo.algorithms import load
from gagpo.base.options import Options
from gagpo.controllers import Agpo, Apmpo, ControllerSettings
from gagpo.runs.run_folder import RunFolder
from gagpo.settings import load as load_run
from gagpo.training.trainer import train

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "algorithms.md"
TABLE = PAGE.read_text(encoding="utf-8").split("## Published variants")[1].split("\n## ")[0]
VARIANTS = re.findall(r"^\| (.*?) \|.*\| `(preset: .*)` \|$", TABLE, re.MULTILINE)


def test_the_table_is_read():
    assert len(VARIANTS) == 14


@pytest.mark.parametrize("place", ["apmpo", "agpo", "agpo.temperature", "agpo.radius"])
def test_the_tables_of_controllers_have_all_options_with_their_defaults(place):
    section = re.split(
        rf"^\| option of `controllers\.{re.escape(place)}`.*$", (DOCS / "objectives.md").read_text(), flags=re.MULTILINE
    )[1]
    rows = dict(re.findall(r"^\| `(\w+)` \| ([\w.-]+) \|", section.split("\n\n")[0], re.MULTILINE))
    settings = ControllerSettings(apmpo=Apmpo(), agpo=Agpo())
    for segment in place.split("."):
        settings = getattr(settings, segment)
    options = {name: value for name, value in settings if not isinstance(value, Options)}
    assert rows.keys() == options.keys()
    for name, default in rows.items():
        value = options[name]
        assert float(default) == value if type(value) in (int, float) else default == str(value).lower(), name


@pytest.mark.slow
@pytest.mark.parametrize("text", [text for _, text in VARIANTS], ids=[title for title, _ in VARIANTS])
def test_a_variant_changes_its_preset_and_trains_an_iteration(text, corridor, tmp_path):
    cells = yaml.safe_load(f"{{{text}}}")
    # The KL gives a gradient where no group of the only iteration has both outcomes.
    algorithm = {"kl": {"coefficient": 0.001}, **cells}
    config = corridor(algorithm=algorithm, training={"iterations": 1}, evaluation={"splits": []})
    changes = {name: cell for name, cell in cells.items() if name != "preset"}
    assert load(cells["preset"], changes) != load(cells["preset"])
    folder = RunFolder.create(tmp_path / "run", load_run(config))
    train(folder, quiet=True)
    (row,) = folder.metrics()
    assert np.isfinite(row["loss"]) and np.isfinite(row["grad_norm"])
