"""The report of a sweep: seeds paired by seed, single runs by task."""

import pytest

from gagpo.data import Episode
from gagpo.eval.results import EvalResult, EvaluatedTaskSet
from gagpo.runs.run_folder import RunFolder
from gagpo.settings import load
from gagpo.sweeps.grid import make_sweep
from gagpo.sweeps.report import make_report, write_missing_reports, write_report
from gagpo.sweeps.status import status_of

TASKS = 12


@pytest.fixture
def finished(corridor, tmp_path):
    """The runs of a sweep, finished with as many tasks solved as ``solved`` says of a run."""

    def make(overrides, solved):
        sweep = make_sweep(str(corridor()), overrides, tmp_path / "runs")
        for number, run in enumerate(sweep.runs):
            folder = RunFolder.create(run.folder, run.settings)
            for iteration in (1, 2):
                folder.log({"iteration": iteration, "success_rate": 0.1 * iteration, "turns_total": 10.0 * iteration})
            for stage, count in (("before", 2), ("after", solved[number]), ("average", 3)):
                episodes = [Episode(f"t{i:02}", "", "test", success=i < count) for i in range(TASKS)]
                task_set = EvaluatedTaskSet("Corridor", "test", "0" * 16, TASKS, 1)
                EvalResult.from_episodes(episodes, task_set, "m", 1.0).save(folder.evaluation(f"{stage}-test"))
        sweep.folder.mkdir(parents=True)
        return sweep, [status_of(run, sweep.folder) for run in sweep.runs]

    return make


def test_seeds_are_paired_against_the_first_value(finished):
    sweep, statuses = finished(["seed=1,2,3", "algorithm.credit=gagpo,grpo"], [9, 5, 10, 5, 11, 5])
    report = make_report(statuses)
    assert report.study.baseline == "gagpo" and report.tasks is None
    grpo = report.study.methods[1]
    assert [row.seed for row in grpo.rows] == [1, 2, 3]
    assert grpo.gap.value == pytest.approx(-5 / TASKS) and grpo.p < 0.05
    paths = write_report(sweep, statuses, report)
    assert [path.name for path in paths] == ["report.md", "curves.png"] and all(path.exists() for path in paths)
    page = paths[0].read_text()
    assert "| gagpo | 3 |" in page and page.count("| finished | 2 |") == 6


def test_single_runs_are_paired_by_task(finished):
    _, statuses = finished(["algorithm.credit.lam=0.5,0.9"], [9, 3])
    report = make_report(statuses)
    assert list(report.tasks.results) == ["lam0.5", "lam0.9"] and report.tasks.differences[0].lost == 6
    assert "exact McNemar" in "\n".join(report.lines(100, 60))
    assert "lam0.9" in report.record()["study"]


def test_seeds_of_one_method_are_compared_with_their_start(finished):
    _, statuses = finished(["seed=1,2"], [9, 10])
    report = make_report(statuses)
    assert report.study.baseline == "before" and report.study.methods[0].label == "corridor"


def test_unfinished_runs_are_left_out(finished, corridor):
    _, statuses = finished(["seed=1,2", "algorithm.credit=gagpo,grpo"], [9, 5, 10, 5])
    for status in statuses[1:]:
        status.state = "failed"
    assert [method.label for method in make_report(statuses).study.methods] == ["gagpo"]
    statuses[0].state = "stopped"
    assert make_report(statuses) is None
    assert load(corridor()).name == "corridor"


def test_a_report_that_a_killed_run_left_undrawn_is_drawn(finished):
    _, statuses = finished(["seed=1,2"], [9, 10])
    statuses[1].state = "failed"
    pages = [status.run.folder / "report.html" for status in statuses]
    write_missing_reports(statuses)
    assert [page.exists() for page in pages] == [True, False]
    before = pages[0].stat().st_mtime_ns
    write_missing_reports(statuses)
    assert pages[0].stat().st_mtime_ns == before
