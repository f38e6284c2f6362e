"""pass@k over seeds: t tests by hand, corrected for every k, from folders and from files of rows."""

import json

import pytest

from gagpo.base.errors import InvalidArgument
from gagpo.data import Episode, Turn
from gagpo.eval.results import EvalResult, EvaluatedTaskSet
from gagpo.eval.runs import group_runs
from gagpo.eval.statistics import holm, mean_over_seeds, paired_t
from gagpo.eval.study import read_rows, study_of
from gagpo.eval.study_at_k import measure_studies
from gagpo.runs.reading import BadResult
from tests.rejections import rejects

COUNTS = {"gagpo": ([0, 2, 4], [1, 3, 4], [4, 4, 0]), "grpo": ([0, 1, 2], [1, 2, 2], [3, 0, 0])}


def measured(counts, answers=True, tries=4):
    """Successes of each task in four episodes."""
    episodes = [
        Episode(f"t{task}", "", "test", sample=i, success=i < count, outcome="terminated", turns=[Turn("", "", "go")])
        for task, count in enumerate(counts)
        for i in range(tries)
    ]
    for episode in episodes:
        episode.info = {"answer": "7" if episode.success else "8"} if answers else {}
    return EvalResult.from_episodes(episodes, EvaluatedTaskSet("e", "test", "h", len(counts), tries), "m", 1.0)


@pytest.fixture
def runs(tmp_path):
    """Six runs: three seeds of two methods."""
    folders = []
    for label, seeds in COUNTS.items():
        for seed, counts in enumerate(seeds, 1):
            folders.append(tmp_path / f"{label}-seed{seed}")
            measured([0, 0, seed]).save(folders[-1] / "evals" / "before-test.json")
            measured(counts).save(folders[-1] / "evals" / "after-test.json")
    return folders


def rates(label, k):
    return [measured(counts).pass_at_k[k] for counts in COUNTS[label]]


def test_differences_are_paired_by_seed_and_corrected_for_every_k(runs):
    passed, majority, solutions = measure_studies(study_of(group_runs(runs)))
    assert [item.name for item in (passed, majority, solutions)] == ["pass@k", "majority@k", "solutions@k"]
    assert list(passed.methods) == [1, 2, 4]
    gaps = {k: [b - a for a, b in zip(rates("gagpo", k), rates("grpo", k), strict=True)] for k in (1, 2, 4)}
    corrected = holm([paired_t(gap) for gap in gaps.values()])
    for (k, gap), p_holm in zip(gaps.items(), corrected, strict=True):
        first, other = passed.methods[k]
        assert first.mean("after").value == pytest.approx(mean_over_seeds(rates("gagpo", k)).value)
        assert other.gap.value == pytest.approx(sum(gap) / 3) and first.gap is None
        assert (other.p, other.p_holm) == (pytest.approx(paired_t(gap)), pytest.approx(p_holm))
    assert solutions.methods[4][0].mean("after").value == pytest.approx(passed.methods[4][0].mean("after").value)


def test_one_method_against_its_start(runs):
    passed, *_ = measure_studies(study_of(group_runs(runs[:3])))
    rises = [after - measured([0, 0, seed]).pass_at_k[2] for seed, after in enumerate(rates("gagpo", 2), 1)]
    assert passed.methods[2][0].gap.value == pytest.approx(sum(rises) / 3)
    assert "minus before" in passed.table().header


@pytest.mark.parametrize("width", [30, 60, 100])
def test_the_tables_fit(runs, width):
    for measure_study in measure_studies(study_of(group_runs(runs))):
        lines = measure_study.lines(width)
        assert all(len(line) <= width and line.isascii() for line in lines)
        assert measure_study.name in " ".join(lines) and "difference" in " ".join(lines)
    assert all("±" in line for line in measure_study.table().markdown()[2:])
    json.dumps([measure_study.record() for measure_study in measure_studies(study_of(group_runs(runs)))])


def test_rows_of_files_keep_the_measures(runs, tmp_path):
    study = study_of(group_runs(runs))
    rows = [row for method in study.methods for row in method.rows]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row.model_dump(exclude_none=True)) + "\n" for row in rows))
    assert read_rows(path) == rows
    stored = study_of({}, [path])
    assert [measure_study.table() for measure_study in measure_studies(stored)] == [
        measure_study.table() for measure_study in measure_studies(study)
    ]
    assert list(measure_studies(stored, [2])[0].methods) == [2]
    with rejects(InvalidArgument, "gagpo, seed 1", "1, 2, 4", key="--pass-at"):
        measure_studies(stored, [3])
    older = {k: v for k, v in rows[0].model_dump(exclude_none=True).items() if not k.startswith("at_k")}
    path.write_text(json.dumps(older) + "\n")
    assert measure_studies(study_of({}, [path])) == []
    for wrong in ({"pass@k": {"0": 0.5}}, {"pass@k": {"1": "high"}}, {"pass@k": {"many": 0.5}}, {"pass@k": 1}):
        path.write_text(json.dumps(older | {"at_k": wrong}) + "\n")
        with rejects(BadResult, "at_k", where="rows.jsonl, line 1"):
            read_rows(path)


def test_a_measure_that_some_runs_lack_is_left_out(runs):
    measured([4, 4, 4], answers=False).save(runs[0] / "evals" / "after-test.json")
    assert [measure_study.name for measure_study in measure_studies(study_of(group_runs(runs)))] == [
        "pass@k",
        "solutions@k",
    ]
    measured([1, 0, 1], tries=1).save(runs[0] / "evals" / "after-test.json")
    assert measure_studies(study_of(group_runs(runs[:1]))) == []


def test_any_k_up_to_the_episodes_of_a_task(runs):
    (passed, *_) = measure_studies(study_of(group_runs(runs), pass_at=[3]), [3])
    assert list(passed.methods) == [3]
    with rejects(InvalidArgument, "gagpo", "4 episodes", key="--pass-at"):
        study_of(group_runs(runs), pass_at=[1, 5])
