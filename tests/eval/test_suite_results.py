"""Results of suites: the mean over task sets, files with hashes, paired comparisons and the figure."""

import json

import numpy as np
import pytest

from gagpo.base.errors import GagpoError
from gagpo.data import Episode, Turn
from gagpo.eval.results import EvalResult, EvaluatedTaskSet
from gagpo.eval.statistics import Interval, wilson
from gagpo.eval.suite_figure import plot_suites
from gagpo.eval.suite_results import MEAN, SuiteResult, compare_suites, is_suite, mean_of
from tests.rejections import rejects

RATES = {"kitchen": (20, 0.3), "shop <b>$x$": (10, 0.6)}


def write_suite(folder, name, rise=0.0, task_sets=RATES):
    """A suite of made-up results: the first tasks of each set succeed."""
    results, files = {}, {}
    for task_set, (count, rate) in task_sets.items():
        wins = round(count * (rate + rise))
        episodes = [
            Episode(task=f"t{i:02}", turns=[Turn("o", "r", "a", float(i < wins))], success=i < wins, group=i)
            for i in range(count)
        ]
        panel = EvaluatedTaskSet("Walk-v0", "test", task_set[0] * 16, count)
        results[task_set] = EvalResult.from_episodes(episodes, panel, name, None)
        files[task_set] = folder / f"{name}.{len(files)}.json"
        results[task_set].save(files[task_set])
    suite = SuiteResult("mine", results)
    suite.save(folder / f"{name}.json", files)
    return suite


def test_every_task_set_counts_equally_in_the_mean(tmp_path):
    suite = write_suite(tmp_path, "low")
    assert suite.mean.value == pytest.approx(0.45)  # not (6 + 6) / 30
    segments = [wilson(6, 20), wilson(6, 10)]
    expected = np.hypot(*(segment.value - segment.low for segment in segments)) / 2
    assert suite.mean.low == pytest.approx(0.45 - expected)
    assert mean_of([Interval(0.5, 0.4, 0.7)]) == Interval(0.5, 0.4, 0.7)


def test_the_table_has_tokens_and_costs_where_there_are_any(tmp_path):
    suite = write_suite(tmp_path, "low")
    names = list(suite.results)
    assert suite.table(dict.fromkeys(names, 0)).header[-1] == "turns"
    table = suite.table(dict(zip(names, (1200, 34), strict=True)), dict(zip(names, (0.5, 1.25), strict=True)))
    assert table.header[-2:] == ["tokens", "cost"]
    assert [row[-2:] for row in table.rows] == [["1,200", "$0.50"], ["34", "$1.25"], ["1,234", "$1.75"]]


def test_the_interval_of_the_mean_covers_what_it_should():
    rng = np.random.default_rng(0)
    rates, counts = np.array([0.05, 0.4, 0.9]), [20, 20, 20]
    hits = 0
    for _ in range(400):
        interval = mean_of([wilson(float(rng.binomial(n, p)), n) for n, p in zip(counts, rates, strict=True)])
        hits += interval.low <= rates.mean() <= interval.high
    assert 0.93 <= hits / 400 <= 0.99


def test_a_suite_is_read_as_it_was_written(tmp_path):
    suite = write_suite(tmp_path, "low")
    assert is_suite(tmp_path / "low.json") and not is_suite(tmp_path / "low.0.json") and not is_suite(tmp_path)
    assert SuiteResult.load(tmp_path / "low.json") == suite


@pytest.mark.parametrize("file", ["../low.0.json", "a/low.0.json", "", "a\x00b", "none.json"])
def test_a_suite_names_no_file_elsewhere(tmp_path, file):
    write_suite(tmp_path, "low")
    record = json.loads((tmp_path / "low.json").read_text())
    record["results"]["kitchen"]["file"] = file
    (tmp_path / "low.json").write_text(json.dumps(record))
    with pytest.raises(GagpoError) as caught:
        SuiteResult.load(tmp_path / "low.json")
    assert "\n" not in str(caught.value)


def test_a_result_that_was_replaced_is_refused(tmp_path):
    write_suite(tmp_path, "low")
    other = tmp_path / "other"
    other.mkdir()
    write_suite(other, "low", rise=0.1)
    (other / "low.0.json").rename(tmp_path / "low.0.json")
    with rejects(GagpoError, "SHA-256", advice="evaluate again"):
        SuiteResult.load(tmp_path / "low.json")


def test_suites_are_compared_task_by_task_and_in_the_mean(tmp_path):
    write_suite(tmp_path, "low")
    write_suite(tmp_path, "high", rise=0.4)
    comparison = compare_suites([tmp_path / "low.json", tmp_path / "high.json"])
    (differences,) = comparison.differences.values()
    assert [row.label for row in differences] == [*RATES, MEAN]
    assert [row.rise.value for row in differences] == pytest.approx([0.4, 0.4, 0.4])
    assert [(row.gained, row.lost) for row in differences] == [(8, 0), (4, 0), (12, 0)]
    first, second, mean = (row.p_holm for row in differences)
    assert first == pytest.approx(2 * 2 / 2**8) and second == pytest.approx(2 / 2**4) and mean < first
    text = "\n".join(comparison.lines(80))
    assert "high minus low" in text and "+40.0" in text and max(map(len, text.splitlines())) <= 80
    assert "the mean shows a difference of" in text
    same = compare_suites([tmp_path / "low.json", write_copy(tmp_path)])
    assert [row.p_holm for row in same.differences["copy"]] == [1.0, 1.0, 1.0]


def write_copy(folder):
    write_suite(folder, "copy")
    return folder / "copy.json"


def test_different_suites_are_one_line(tmp_path):
    write_suite(tmp_path, "low")
    write_suite(tmp_path, "other", task_sets={"kitchen": (20, 0.3)})
    for paths, name in (
        (["low.json", "other.json"], "different task sets"),
        (["low.json", "low.0.json"], "low.0.json"),
        (["low.json", "low.json"], "named twice"),
    ):
        with rejects(GagpoError, name) as caught:
            compare_suites([tmp_path / path for path in paths])
        assert "\n" not in str(caught.value)


def test_equal_figures_are_equal_files_and_any_name_can_be_drawn(tmp_path):
    suites = {"a $b$ \x1b": write_suite(tmp_path, "low"), "high": write_suite(tmp_path, "high", rise=0.4)}
    images = [plot_suites(suites, tmp_path / f"{name}.svg").read_bytes() for name in ("first", "second")]
    assert images[0] == images[1] and b"success" in images[0]
