"""The command of the learning studies."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import learning
from benchmarks.studies.compared import STUDIES
from benchmarks.studies.papers import PAPERS
from gagpo.eval.study import read_rows
from gagpo.runs import checkpoint as checkpoints
from gagpo.runs.run_folder import RunFolder
from gagpo.settings import load
from gagpo.training.trainer import train
from tests.gagpo.training.test_trainer import wait_for_rows

RESULTS = Path(__file__).parents[2] / "lab" / "results"


def test_an_unknown_variant_is_refused_with_those_that_exist(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["learning.py", "smollm2-maths", "--only", "gagpo", "lora"])
    with pytest.raises(SystemExit):
        learning.main()
    assert "smollm2-maths has no variant 'lora'; choose from 'gagpo', 'grpo', 'gagpo, LoRA'" in capsys.readouterr().err


def test_the_table_of_committed_rows_is_printed_without_any_run(monkeypatch, capsys, tmp_path):
    rows = (RESULTS / "credits-full.jsonl").read_bytes()
    monkeypatch.setattr("sys.argv", ["learning.py", "credits-full", "--table", "--runs", str(tmp_path)])
    learning.main()
    printed = capsys.readouterr().out
    assert "| gagpo | 5 | 37.6 ± 2.9 | 53.6 ± 4.2 |" in printed and "5 seeds show a difference of" in printed
    assert (RESULTS / "credits-full.jsonl").read_bytes() == rows


def test_every_split_that_one_run_measured_before_training_starts_the_curves_of_all(tmp_path):
    for run, name, text in [("a-1", "test", "a"), ("a-1", "unseen_kinds", "a"), ("b-1", "test", "b")]:
        evals = tmp_path / run / "evals"
        evals.mkdir(parents=True, exist_ok=True)
        (evals / f"before-{name}.json").write_text(text)
    evals = tmp_path / "b-1" / "evals"
    learning.copy_start(evals)
    assert {path.name: path.read_text() for path in evals.iterdir()} == {
        "before-test.json": "b",
        "before-unseen_kinds.json": "a",
    }


CORRIDOR_STUDY = """
import sys
from benchmarks import learning
from benchmarks.studies.designs import Study, preset
config, runs = sys.argv[1:]
variants = {name: preset(name) for name in ("gagpo", "grpo")}
learning.STUDIES["corridor"] = Study(config, variants, split="test")
sys.argv = ["learning", "corridor", "--runs", runs, "--jobs", "1"]
learning.main()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_signal_ends_the_run_after_a_checkpoint_and_no_other_starts(corridor, tmp_path, number):
    config = corridor(training={"iterations": 100_000, "save_every": 100_000, "save_episodes_every": 0})
    runs = tmp_path / "runs" / "corridor"
    command = [sys.executable, "-c", CORRIDOR_STUDY, str(config), str(tmp_path / "runs")]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    study = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    wait_for_rows(runs / "gagpo-1" / "metrics.jsonl", 2, study)
    study.send_signal(number)
    out, _ = study.communicate(timeout=60)
    assert study.returncode == 128 + number
    assert "the same command goes on" in out and "failed" not in out
    assert [folder.name for folder in runs.iterdir() if folder.is_dir()] == ["gagpo-1"]
    reached = checkpoints.latest(runs / "gagpo-1" / "checkpoints").iteration
    assert reached >= 2  # written at the signal: none was due
    folder = RunFolder.open(runs / "gagpo-1")
    folder.change([f"training.iterations={reached}"])
    train(folder, quiet=True)  # no other process is writing it


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
