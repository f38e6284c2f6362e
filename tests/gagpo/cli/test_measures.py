"""pass@k and the curves of any metric from the command line."""

import json
import re
from pathlib import Path

import pytest

from gagpo.data import Episode, Turn
from gagpo.eval.results import EvalResult, EvaluatedTaskSet

ROOT = Path(__file__).parents[3]


def write_result(path: Path, counts, tries=4):
    """Successes of each task among its episodes; a success answers 7 and others 8."""
    episodes = [
        Episode(
            f"t{task}",
            "",
            "test",
            sample=i,
            success=i < count,
            outcome="terminated",
            turns=[Turn("", "", f"go {i % 2}")],
            info={"answer": "7" if i < count else "8"},
        )
        for task, count in enumerate(counts)
        for i in range(tries)
    ]
    EvalResult.from_episodes(episodes, EvaluatedTaskSet("e", "test", "h", len(counts), tries), "m", 1.0).save(path)
    return path


@pytest.fixture
def runs(tmp_path):
    """Two methods with one seed each."""
    for label, counts in (("a", [0, 1, 4, 2, 0]), ("b", [1, 2, 4, 4, 3])):
        write_result(tmp_path / label / "evals" / "before-test.json", [0, 0, 1, 0, 0])
        write_result(tmp_path / label / "evals" / "after-test.json", counts)
        rows = [{"iteration": i, "success_rate": 0.1 * i, "entropy": 1 / i, "turns_total": 9 * i} for i in (1, 2, 3)]
        (tmp_path / label / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [tmp_path / label for label in "ab"]


@pytest.mark.parametrize("columns", ["40", "60"])
def test_comparing_at_any_k(inside, tmp_path, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    first = write_result(tmp_path / "a.json", [0, 1, 4, 2, 0])
    other = write_result(tmp_path / "b.json", [1, 2, 4, 4, 3])
    done = inside("compare", first, other, "--pass-at", "3,1", "--json")
    assert done.returncode == 0, done.stderr
    *lines, record = done.stdout.splitlines()
    assert max(map(len, lines)) <= int(columns)
    text = " ".join(lines)
    assert all(name in text for name in ("pass@k %", "majority@k %", "solutions@k", "p (Holm)"))
    record = json.loads(record)
    values = record["at_k"][str(first).removesuffix(".json")]["pass@k"]
    assert values["3"]["value"] == pytest.approx((0 + 3 / 4 + 1 + 1 + 0) / 5) and list(values) == ["1", "3"]
    assert {at_k_difference["k"] for at_k_difference in record["at_k_differences"]} == {1, 3}


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ("8", "has 4 episodes per task; evaluate it with --episodes-per-task 8, or choose at most 4"),
        ("two", "such as 1,8,64"),
    ],
)
@pytest.mark.parametrize("command", ["compare", "report"])
def test_wrong_k_is_one_line(inside, runs, command, value, complaint):
    done = inside(command, *runs, "--pass-at", value)
    assert done.returncode == 2 and complaint in done.stderr and len(done.stderr.splitlines()) == 1


def test_reports_show_the_measures(inside, runs):
    done = inside("report", *runs, "--json")
    assert done.returncode == 0, done.stderr
    *lines, record = done.stdout.splitlines()
    tables = " ".join(line for line in lines if not line.startswith("/"))
    assert tables.count("difference, pass@k") == 1 and "majority@k %" in tables  # one seed each: paired by task
    assert json.loads(record)["at_k"]["pass@k"]["4"]["b"]["mean"]["value"] == 1
    page = (runs[0] / "report.html").read_text(encoding="utf-8")
    assert len(re.findall(r"<th[^>]*>pass@k %", page)) == 1 and "difference, solutions@k" in page
    done = inside("report", *runs, "--markdown", "--pass-at", "2")
    assert "pass@k % | minus a |" in done.stdout and "| b | 2 |" in done.stdout


def test_curves_need_no_evaluation(inside, tmp_path):
    """Of runs in progress, of runs that are never evaluated, and of committed rows."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        rows = [{"iteration": i, "success_rate": 0.1 * i, "entropy": 1.0, "turns_total": 9.0 * i} for i in (1, 2)]
        (tmp_path / name / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    folders = [tmp_path / "a", tmp_path / "b"]
    done = inside("report", *folders, "--curves", tmp_path / "c.png", "--y", "entropy")
    assert done.returncode == 0 and (tmp_path / "c.png").stat().st_size > 5000, done.stderr
    assert "no table: no run has been evaluated after training" in done.stdout
    done = inside("report", *folders)
    assert done.returncode == 2 and "there is no finished run" in done.stderr
    rows = ROOT / "lab/results/credits.jsonl"
    done = inside("report", rows, "--curves", tmp_path / "f.pdf", "--x", "turns")
    assert done.returncode == 0 and (tmp_path / "f.pdf").exists() and "graph_value" in done.stdout, done.stderr


def test_curves_of_a_metric(inside, runs, tmp_path):
    done = inside("report", *runs, "--curves", tmp_path / "c.png", "--y", "entropy", "--x", "turns")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "c.png").stat().st_size > 5000
    for wrong, complaint in (
        (["--curves", tmp_path / "d.png", "--y", "entrpy"], "nearest: entropy"),
        (["--y", "entropy"], "add --curves FILE.png"),
        (["--curves", tmp_path / "d.jpg"], "end its name in .pdf, .svg or .png"),
    ):
        done = inside("report", *runs, *wrong)
        assert done.returncode == 2 and complaint in done.stderr and len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "d.png").exists() and not (tmp_path / "d.jpg").exists()


def test_a_wrong_name_of_a_figure_is_an_error_before_any_work(inside, runs, tmp_path):
    pages = [run / "report.html" for run in runs]
    for page in pages:
        page.unlink(missing_ok=True)
    assert inside("report", *runs, "--curves", tmp_path / "fig").returncode == 2
    assert not any(page.exists() for page in pages)


def test_a_suite_prints_one_table_and_writes_a_result_for_each_task_set(inside, tmp_path):
    suite = tmp_path / "mine.yaml"
    corridor = "gagpo.envs.testing:gagpo-test/Corridor-v0"
    suite.write_text(f"near: {{environment: '{corridor}', tasks: 2}}\nfar: {{environment: '{corridor}', tasks: 3}}\n")
    done = inside("eval", "expert", "--suite", suite, "--out", tmp_path / "out.json", "-q", "--json")
    assert done.returncode == 0, done.stderr
    assert "mean" in done.stdout and "near" in done.stdout and "100.0 [" in done.stdout
    names = {"out.json", "out.png", "out.near.json", "out.far.json"}
    assert {path.name for path in tmp_path.glob("out.*")} == names
    assert inside("eval", "random", "--suite", suite, "--out", tmp_path / "low.json", "-q").returncode == 0
    files = [tmp_path / "low.json", tmp_path / "out.json"]
    done = inside("compare", *files, "--figure", tmp_path / "both.png", "--json")
    assert done.returncode == 0, done.stderr
    assert "out minus low" in done.stdout and (tmp_path / "both.png").stat().st_size > 1000
    mean = json.loads(done.stdout.splitlines()[-1])["differences"]["out"]["mean"]
    assert mean["low"] < mean["value"] < mean["high"]
    for arguments, message in (
        ((files[0], tmp_path / "out.near.json"), "out.near.json: has no results of a suite"),
        ((*files, "--split", "test"), "--split is not for results of suites"),
        ((tmp_path / "out.near.json", tmp_path / "low.near.json", "--figure", "f.png"), "--figure is for"),
    ):
        done = inside("compare", *arguments)
        assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1, done.stderr
