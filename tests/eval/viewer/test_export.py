"""The viewer's folder: everything in it, nothing executable in its data, and plain words for what cannot be read."""

import json

import pytest

from gagpo.credit.episode import Grpo
from gagpo.credit.gagpo import Gagpo
from gagpo.eval.reading import BadResult
from gagpo.eval.viewer.export import Exporter, export
from gagpo.eval.viewer.records import read_episode_file
from gagpo.evaluation.recredit import Recredit, for_run

EXPLAIN = Recredit({"gagpo": Gagpo(), "grpo": Grpo()})


def read(path):
    """The arguments of the one call in a data file."""
    text = path.read_text(encoding="ascii")
    call, _, rest = text.partition("(")
    assert call in ("viewer.load", "viewer.shard") and rest.endswith(");\n")
    return json.loads(f"[{rest[:-3]}]")


def test_the_index_counts_what_was_written(tmp_path, make_groups):
    run = make_groups(tmp_path / "run")
    page = export([run], tmp_path / "out", EXPLAIN)
    assert page == tmp_path / "out" / "index.html" and page.is_file()
    (index,) = read(tmp_path / "out" / "data" / "index.js")
    assert [one["label"] for one in index["sources"]] == [
        "before-test",
        "train-0001",
        "train-0002",
        "train-0003",
        "after-test",
    ]
    assert sum(index["groups"]["size"]) == len(index["episodes"]["flags"]) == 3 * 16 + 4
    assert index["runs"][0]["metrics"]["iteration"] == [1, 2, 3]
    lost = [g for g, task in enumerate(index["groups"]["task"]) if index["tasks"][task] == "task 2"]
    assert {index["groups"]["differ"][g] for g in lost} == {0}  # nobody succeeds: no credit of either kind
    assert max(index["groups"]["differ"]) > 0


def test_shards_hold_credit_of_both_algorithms_and_what_training_gave(tmp_path, make_groups):
    run = make_groups(tmp_path / "run", iterations=1)
    export([run], tmp_path / "out", EXPLAIN)
    (path,) = (tmp_path / "out" / "data").glob("0-train-*.js")
    name, groups = read(path)
    assert name == path.name and len(groups) == 4
    episodes = groups[0]["episodes"]
    assert episodes[0]["credit"]["grpo"][0] == pytest.approx(0.866, abs=1e-3)  # 1 of (1, 0, 1, 0), sample deviation
    assert episodes[0]["states"] == episodes[2]["states"] and episodes[0]["turns"][0]["advantage"] == 0.5
    assert episodes[0]["credit"]["gagpo"][1] > episodes[1]["credit"]["gagpo"][1]


def test_the_data_are_ascii_that_ends_no_script(tmp_path, make_groups, hostile):
    run = make_groups(tmp_path / "run", iterations=1, text=hostile + "\u2028\ud800")
    export([run], tmp_path / "out", EXPLAIN)
    for path in (tmp_path / "out" / "data").glob("*.js"):
        read(path)
    (index,) = read(tmp_path / "out" / "data" / "index.js")
    assert index["tasks"][0].endswith(hostile + "\u2028\ud800")


def test_what_has_not_changed_is_not_read_again(tmp_path, make_groups):
    run = make_groups(tmp_path / "run", iterations=2)
    seen = []

    def explain(episodes):
        seen.append(len(episodes))
        return EXPLAIN(episodes)

    exporter = Exporter([run], tmp_path / "out", explain, live=True)
    exporter.write()
    first = len(seen)
    (run / "episodes" / "train-0003.jsonl").write_text((run / "episodes" / "train-0001.jsonl").read_text())
    exporter.write()
    assert len(seen) == first + 1
    (index,) = read(tmp_path / "out" / "data" / "index.js")
    assert len(index["sources"]) == 5 and index["live"] is True


@pytest.mark.parametrize("lines", ["[1]\n", '{"task": "t"}\n', "no json\n", '{"loss": 1, "turns": 5, "task": "x"}\n'])
def test_foreign_lines_are_refused_in_one_line_with_file_and_number(tmp_path, make_groups, lines):
    run = make_groups(tmp_path / "run")
    (run / "episodes" / "train-0002.jsonl").write_text(lines)
    with pytest.raises(BadResult) as caught:
        export([run], tmp_path / "out", EXPLAIN)
    message = str(caught.value)
    assert "train-0002.jsonl" in message and "line 1" in message and "\n" not in message


def test_a_torn_last_line_is_told_and_the_rest_shown(tmp_path, make_groups):
    run = make_groups(tmp_path / "run", iterations=1)
    path = run / "episodes" / "train-0001.jsonl"
    path.write_text(path.read_text()[:-40])
    episodes, problems = read_episode_file(path)
    assert len(episodes) == 15 and "line 16: not JSON" in problems[0]
    export([run], tmp_path / "out", EXPLAIN)
    (index,) = read(tmp_path / "out" / "data" / "index.js")
    assert index["problems"] == problems


def test_no_run_no_episodes_and_a_folder_of_somebody_elses(tmp_path, make_groups):
    with pytest.raises(BadResult, match="no such folder"):
        export([tmp_path / "none"], tmp_path / "out", EXPLAIN)
    run = make_groups(tmp_path / "run")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("all of it")
    with pytest.raises(BadResult, match="is not empty and no viewer's folder"):
        export([run], tmp_path / "mine", EXPLAIN)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "all of it"
    for path in (run / "episodes").iterdir():
        path.unlink()
    with pytest.raises(BadResult, match="holds no episodes to look at"):
        export([run], tmp_path / "out", EXPLAIN)


def test_a_run_without_settings_of_ours_gets_the_usual_credit(tmp_path, make_groups):
    assert list(for_run(make_groups(tmp_path / "run")).credits) == ["gagpo", "grpo"]
