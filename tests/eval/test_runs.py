"""Run folders: what a kill or a resume leaves behind, and what is no run at all."""

import json
import os

import pytest

from gagpo.eval.report.report import write_report
from gagpo.eval.runs import group_runs, load_run, trailing_mean
from gagpo.runs.metrics import metric_rows, read_metrics
from gagpo.runs.reading import BadResult
from gagpo.runs.run_folder import RunFolder
from gagpo.settings import dump
from gagpo.settings.files import parse
from tests.rejections import rejects

GRPO_CREDIT = "gagpo, credit=grpo, kl.coefficient=0.0"


def lines(path, *rows):
    path.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows))
    return path


def test_a_line_torn_in_the_middle_of_a_character(tmp_path):
    (tmp_path / "metrics.jsonl").write_bytes(b'{"iteration": 1}\n{"iteration": 2, "note": "\xe6\xbc')
    assert read_metrics(tmp_path / "metrics.jsonl") == ([{"iteration": 1}], 1)


def test_iterations_done_again_after_a_resume_replace_the_old_ones(tmp_path):
    rows = [{"iteration": i, "loss": 1.0} for i in (1, 2, 3, 4, 5)] + [{"iteration": i, "loss": 2.0} for i in (3, 4)]
    rows, broken = read_metrics(lines(tmp_path / "metrics.jsonl", *rows))
    assert [(row["iteration"], row["loss"]) for row in rows] == [(1, 1), (2, 1), (3, 2), (4, 2)] and broken == 0


def test_only_finite_numbers_are_kept(tmp_path):
    path = lines(
        tmp_path / "metrics.jsonl",
        '{"iteration": 1, "a": NaN, "b": Infinity, "c": "x", "d": true, "e": null, "f": 1e999, "g": [1], "h": 7}\n',
        "[1]\n",
        '{"loss": 1}\n',
        "[" * 100_000 + "\n",
    )
    assert read_metrics(path) == ([{"iteration": 1, "h": 7}], 3)


def test_the_trainer_and_the_report_read_the_same_lines(tmp_path):
    """A line torn in the middle of the file, as a kill and a resume leave it, hides nothing that follows."""
    torn = ['{"iteration": 1, "note": "x"}\n', '{"iteration": 2, "k', "\n[1]\n7\n", '{"a":' * 3000 + "\n", "null\n"]
    path = lines(tmp_path / "metrics.jsonl", *torn, {"iteration": 2, "loss": 0.5}, '{"iteration": true}\n')
    rows = [{"iteration": 1, "note": "x"}, {"iteration": 2, "loss": 0.5}]
    assert metric_rows(path) == (rows, 6)
    assert RunFolder(tmp_path).metrics() == rows
    assert read_metrics(path)[0] == [{"iteration": 1}, rows[1]]
    (tmp_path / "evals").mkdir()
    RunFolder(tmp_path).rewind(1)
    assert metric_rows(path) == (rows[:1], 0)


def test_a_whole_run(tmp_path, make_run):
    run = load_run(make_run(tmp_path / "gagpo-seed1", iterations=10))
    assert run.name == "gagpo-seed1" and len(run.metrics) == 10 and run.splits() == ["valid_unseen", "valid_seen"]
    stages = [
        (evaluation.stage, evaluation.iteration) for evaluation in run.evaluations if evaluation.split == "valid_unseen"
    ]
    assert stages == [("before", 0), ("iteration", 5), ("after", 10)]
    assert run.series("kl")[0] == list(range(1, 11))
    assert run.at(10, "turns_total") == run.metrics[-1]["turns_total"] and run.at(0, "turns_total") == 0
    assert run.at(99, "turns_total") is None
    assert run.series("no such metric") == ([], [])


def test_what_is_no_run_is_refused_by_name(tmp_path, make_run):
    with rejects(BadResult, "no such folder", where="nowhere"):
        load_run(tmp_path / "nowhere")
    with rejects(BadResult, "metrics"):
        load_run(tmp_path)
    folder = make_run(tmp_path / "run", iterations=3)
    (folder / "evals" / "after-valid_seen.json").write_text("{")
    with rejects(BadResult, "JSON", where="after-valid_seen.json"):
        load_run(folder)


def test_runs_are_grouped_by_name_without_seed_or_by_label(tmp_path, make_run):
    folders = [make_run(tmp_path / name, iterations=2) for name in ("gagpo-seed1", "gagpo-seed2", "grpo_s3", "plain")]
    assert {label: len(runs) for label, runs in group_runs(folders).items()} == {"gagpo": 2, "grpo": 1, "plain": 1}
    named = group_runs([f"ours={folders[0]}", f"ours={folders[2]}"])
    assert {label: len(runs) for label, runs in named.items()} == {"ours": 2}
    with rejects(ValueError, advice="LABEL=FOLDER"):
        group_runs([f"={folders[0]}"])


def test_trailing_mean_by_hand():
    assert trailing_mean([4.0, 2.0, 0.0, 6.0], 3) == [4.0, 3.0, 2.0, pytest.approx(8 / 3)]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["metrics.jsonl", "evals/after-test.json"])
def test_a_pipe_in_the_place_of_a_file_is_refused_and_not_waited_for(tmp_path, make_run, name):
    path = make_run(tmp_path / "run", iterations=2) / name
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    with rejects(BadResult, "regular file", where=path):
        write_report(tmp_path / "run")


@pytest.mark.timeout(60)
def test_a_report_goes_without_settings_that_are_a_pipe(tmp_path, make_run):
    run = make_run(tmp_path / "run", iterations=2)
    for name in ("config.yaml", "versions.json"):
        (run / name).unlink(missing_ok=True)
        os.mkfifo(run / name)
    assert write_report(run).is_file()


def test_a_device_in_the_place_of_the_metrics_is_refused(tmp_path):
    (tmp_path / "metrics.jsonl").symlink_to("/dev/null")
    with rejects(BadResult, "regular file", where="metrics.jsonl"):
        load_run(tmp_path)


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["algorithm=gagpo"], "gagpo"),
        (["algorithm.preset=gagpo", "algorithm.credit.lam=0.5"], "gagpo, credit.lam=0.5"),
        (["algorithm.preset=gagpo", "algorithm.kl.coefficient=0", "algorithm.credit=grpo"], GRPO_CREDIT),
        (["algorithm.preset=gigpo", "algorithm.gate=sapo"], "gigpo, gate=sapo"),
    ],
)
def test_an_algorithm_is_named_with_what_differs_from_its_preset(tmp_path, overrides, told):
    values = {"name": "run", "environment": {"id": "gagpo/Math-v0"}, "model": "starter:maths"}
    settings = parse(values, "test", overrides)
    (tmp_path / "config.yaml").write_text(dump(settings))
    lines(tmp_path / "metrics.jsonl", {"iteration": 1})
    assert load_run(tmp_path).algorithm == told


def test_a_credit_of_ones_own_is_named_without_importing_it(tmp_path):
    (tmp_path / "config.yaml").write_text("algorithm: {preset: gagpo, credit: {name: 'loo:LooState', weight: 2}}\n")
    lines(tmp_path / "metrics.jsonl", {"iteration": 1})
    assert load_run(tmp_path).algorithm == "gagpo, credit=loo:LooState"
