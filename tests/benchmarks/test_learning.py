"""The command of the learning studies."""

from pathlib import Path

import pytest

from benchmarks import learning
from benchmarks.studies.compared import STUDIES
from benchmarks.studies.papers import PAPERS
from gagpo.eval.study import read_rows
from gagpo.settings import load


def test_an_unknown_variant_is_refused_with_those_that_exist(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["learning.py", "smollm2-maths", "--only", "gagpo", "lora"])
    with pytest.raises(SystemExit):
        learning.main()
    assert "smollm2-maths has no variant 'lora'; choose from 'gagpo', 'grpo', 'gagpo, LoRA'" in capsys.readouterr().err


RESULTS = Path(__file__).parents[2] / "lab" / "results"


STORED = [path for path in sorted([*RESULTS.glob("*.jsonl"), *RESULTS.glob("swept/*.jsonl")]) if path.stem in STUDIES]


@pytest.mark.parametrize("path", STORED, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_stored_rows_are_of_methods_that_the_code_has(path):
    """A removed method is not printed, and Holm's correction does not count it."""
    labels = {row.label.removesuffix(", averaged") for row in read_rows(path)}
    assert labels <= STUDIES[path.stem].variants.keys()


@pytest.mark.parametrize("name", PAPERS)
def test_every_ablation_is_a_run_that_can_be_started(name):
    study = PAPERS[name]
    runs = {label: load(study.config, [*study.common, *study.variants[label]]) for label in study.variants}
    assert len({settings.model_dump_json() for settings in runs.values()}) == len(runs)  # no two are the same


def test_every_study_starts_from_a_config_that_exists():
    root = RESULTS.parents[1]
    assert {study.config for study in STUDIES.values() if not (root / study.config).is_file()} == set()
