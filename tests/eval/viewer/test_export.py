"""The viewer's folder: everything in it, nothing executable in its data, and plain words for what cannot be read."""

import json
import os
import shutil
from dataclasses import replace
from statistics import pstdev

import pytest
import yaml

from gagpo.data import episodes_in
from gagpo.eval.episode_files import read_episode_file
from gagpo.eval.journal import Journal
from gagpo.eval.results import EvalResult
from gagpo.eval.runs import load_run
from gagpo.eval.viewer.credit import CreditCalculator, credit_of_run
from gagpo.eval.viewer.export import export
from gagpo.eval.viewer.opening import runs_in
from gagpo.runs.reading import BadResult
from tests.rejections import rejects


def read(path):
    """The arguments of the one call in a data file."""
    text = path.read_text(encoding="ascii")
    call, _, remaining = text.partition("(")
    assert call in ("viewer.load", "viewer.shard") and remaining.endswith(");\n")
    return json.loads(f"[{remaining[:-3]}]")


def test_the_index_counts_what_was_written(tmp_path, make_groups):
    run = make_groups(tmp_path / "run")
    page = export([run], tmp_path / "out")
    assert page == tmp_path / "out" / "index.html" and page.is_file()
    (index,) = read(tmp_path / "out" / "data" / "index.js")
    assert [source["label"] for source in index["sources"]] == [
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
    export([run], tmp_path / "out")
    (path,) = (tmp_path / "out" / "data").glob("0-train-*.js")
    name, groups = read(path)
    assert name == path.name and len(groups) == 4
    episodes = groups[0]["episodes"]
    assert episodes[0]["credit"]["grpo"][0] == pytest.approx(0.866, abs=1e-3)  # 1 of (1, 0, 1, 0), sample deviation
    assert episodes[0]["states"] == episodes[2]["states"] and episodes[0]["turns"][0]["advantage"] == 0.5
    assert episodes[0]["turns"][0]["tokens"]["gate_weight"] == [1, 0]
    assert episodes[0]["credit"]["gagpo"][1] > episodes[1]["credit"]["gagpo"][1]


def test_the_data_are_ascii_that_ends_no_script(tmp_path, make_groups, hostile):
    run = make_groups(tmp_path / "run", iterations=1, text=hostile + "\u2028\ud800")
    export([run], tmp_path / "out")
    for path in (tmp_path / "out" / "data").glob("*.js"):
        read(path)
    (index,) = read(tmp_path / "out" / "data" / "index.js")
    assert index["tasks"][0].endswith(hostile + "\u2028\ud800")


FOREIGN = [
    *("[1]\n", '{"task": "t"}\n', "no json\n", '{"loss": 1, "turns": 5, "task": "x"}\n'),
    '{"task": "t", "turns": [{"observation": "o", "response": "r", "reward": 1e308}]}\n',
    '{"task": "t", "turns": [], "info": {"score": [NaN]}}\n',
]


@pytest.mark.parametrize("lines", FOREIGN)
def test_foreign_lines_are_refused_in_one_line_with_file_and_number(tmp_path, make_groups, lines):
    run = make_groups(tmp_path / "run")
    (run / "episodes" / "train-0002.jsonl").write_text(lines)
    with pytest.raises(BadResult) as caught:
        export([run], tmp_path / "out")
    message = str(caught.value)
    assert "train-0002.jsonl" in message and "line 1" in message and "\n" not in message


def test_a_torn_last_line_is_told_and_the_rest_shown(tmp_path, make_groups):
    run = make_groups(tmp_path / "run", iterations=1)
    path = run / "episodes" / "train-0001.jsonl"
    path.write_text(path.read_text()[:-40])
    episodes, problems = read_episode_file(path)
    assert len(episodes) == 15 and "line 16: not JSON" in problems[0]
    export([run], tmp_path / "out")
    (index,) = read(tmp_path / "out" / "data" / "index.js")
    assert index["problems"] == problems


def test_no_run_no_episodes_and_a_folder_of_somebody_elses(tmp_path, make_groups):
    with rejects(BadResult, "folder", where="none"):
        export([tmp_path / "none"], tmp_path / "out")
    run = make_groups(tmp_path / "run")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("all of it")
    with rejects(BadResult, "empty", advice="--out"):
        export([run], tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "all of it"
    for path in (run / "episodes").iterdir():
        path.unlink()
    with rejects(BadResult, "episodes", advice="save_episodes_every=1"):
        export([run], tmp_path / "out")


def test_a_run_without_settings_of_ours_gets_the_usual_credit(tmp_path, make_groups):
    assert credit_of_run(make_groups(tmp_path / "run")) == CreditCalculator()


def test_a_file_whose_name_is_not_utf_8_is_shown(tmp_path, make_groups):
    run = make_groups(tmp_path / "run", iterations=1)
    folder = os.fsencode(run / "episodes")
    try:
        os.rename(folder + b"/train-0001.jsonl", folder + b"/train-\xff.jsonl")
    except OSError:
        pytest.skip("this file system has no such names")
    export([run], tmp_path / "out")
    (index,) = read(tmp_path / "out" / "data" / "index.js")
    assert any("train-" in str(source) for source in index["sources"])


def test_only_a_folder_of_its_own_is_replaced(tmp_path, make_groups):
    run = make_groups(tmp_path / "run", iterations=1)
    site = tmp_path / "site"
    (site / "data").mkdir(parents=True)
    (site / "data" / "index.js").write_text("export default 1\n")
    (site / "thesis.txt").write_text("all of it")
    with rejects(BadResult, "viewer", advice="--out"):
        export([run], site)
    assert (site / "thesis.txt").read_text() == "all of it"
    assert (site / "data" / "index.js").read_text() == "export default 1\n"
    (tmp_path / "file").write_text("mine")
    with rejects(BadResult, "folder", advice="--out"):
        export([run], tmp_path / "file")
    out = tmp_path / "out"
    out.mkdir()  # an empty one is as good as none
    export([run], out)
    (out / "data" / "old.js").write_text("")
    export([run], out)
    assert not (out / "data" / "old.js").exists() and (out / "index.html").is_file()


def test_a_view_that_fails_half_way_leaves_the_old_one_and_can_be_repeated(tmp_path, make_groups, monkeypatch):
    run = make_groups(tmp_path / "run", iterations=2)
    out = tmp_path / "out"
    files = len(list((run / "episodes").iterdir()))

    def breaking(path, calls=[]):  # noqa: B006
        calls.append(path)
        if len(calls) % files == 0:
            raise KeyboardInterrupt
        return read_episode_file(path)

    for _ in range(2):  # where there was nothing, and where there was a view
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr("gagpo.eval.viewer.export.read_episode_file", breaking)
            export([run], out)
        export([run], out)
        (index,) = read(out / "data" / "index.js")
        assert len(index["sources"]) == files
        assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "run"]


def test_single_tries_are_in_no_dispute_and_the_list_counts_what_the_frames_show(tmp_path, make_groups):
    run = make_groups(tmp_path / "run", iterations=1)
    export([run], tmp_path / "out")
    (index,) = read(tmp_path / "out" / "data" / "index.js")
    groups = index["groups"]
    assert all(share == 0 for size, share in zip(groups["size"], groups["differ"], strict=True) if size == 1)
    for g, source in enumerate(groups["source"]):
        _, shard = read(tmp_path / "out" / "data" / index["sources"][source]["shards"][groups["shard"][g]])
        episodes = shard[groups["place"][g]]["episodes"]
        framed = [differs for episode in episodes for differs in episode["differs"]]
        assert groups["differ"][g] == round(sum(framed) / len(framed) if framed else 0, 4)
        if groups["size"][g] == 1:  # nothing to compare it with: no credit, and no difference of two
            assert "credit" not in episodes[0] and groups["gap"][g] is None
            continue
        pairs = [
            pair
            for episode in episodes
            for pair in zip(episode["credit"]["gagpo"], episode["credit"]["grpo"], strict=True)
        ]
        assert groups["gap"][g] == pytest.approx(sum(abs(a - b) for a, b in pairs) / len(pairs), abs=1e-4)
        large = {
            name: index["large"] * pstdev(a for episode in episodes for a in episode["credit"][name])
            for name in ("gagpo", "grpo")
        }
        for episode in episodes:
            gagpo, grpo = episode["credit"]["gagpo"], episode["credit"]["grpo"]
            for a, b, differs in zip(gagpo, grpo, episode["differs"], strict=False):  # none in a single try
                assert differs == (a * b < 0 and abs(a) > large["gagpo"] and abs(b) > large["grpo"])
    assert max(groups["differ"]) == round(1 / 12, 4)  # of the group in dispute one turn, not all those near zero


def settings(run, **values):
    (run / "config.yaml").write_text(yaml.safe_dump({"name": run.name, **values}))
    return run


def test_a_folder_of_runs_is_a_table_of_them(tmp_path, make_groups, make_run):
    runs = tmp_path / "runs"
    for seed in (1, 2):
        make_run(runs / f"walk-seed{seed}", seed=seed)
        settings(runs / f"walk-seed{seed}", seed=seed, environment={"id": "Walk-v0"}, training={"learning_rate": 1e-3})
    settings(make_groups(runs / "other"), seed=1, environment={"id": "Walk-v0"}, api_key="abc")
    (runs / "notes").mkdir()
    (runs / "broken" / "evals").mkdir(parents=True)
    (runs / "broken" / "evals" / "after-test.json").write_text("{")
    folders, problems = runs_in([runs])
    assert [folder.name for folder in folders] == ["other", "walk-seed1", "walk-seed2"]
    assert len(problems) == 1 and "after-test.json" in problems[0]
    export(folders, tmp_path / "out", problems)
    (index,) = read(tmp_path / "out" / "data" / "index.js")
    assert [folder["name"] for folder in index["runs"]] == ["other", "walk-seed1", "walk-seed2"]
    assert [(folder["seed"], folder["environment"]) for folder in index["runs"][1:]] == [
        ("1", "Walk-v0"),
        ("2", "Walk-v0"),
    ]
    assert index["settings"]["training.learning_rate"] == [None, "0.001", "0.001"]
    assert "abc" not in (tmp_path / "out" / "data" / "index.js").read_text()
    assert index["problems"] == problems
    with rejects(BadResult, "run folder", where="notes"):
        runs_in([runs / "notes"])


def test_a_runs_result_is_that_of_its_last_weights_and_the_average_stands_next_to_it(tmp_path, make_groups, make_run):
    """The runs' table, the overview, the report and ``gagpo compare`` say one number."""
    folder = make_run(tmp_path / "run", average=True)
    (folder / "episodes" / "train-0001.jsonl").write_text("")
    export([folder, make_groups(tmp_path / "two")], tmp_path / "out")
    (index,) = read(tmp_path / "out" / "data" / "index.js")
    run = load_run(folder)
    results = index["runs"][0]["results"]["valid_unseen"]
    assert results["trained"][-1]["success"] == run.last("valid_unseen").result.success.record()
    assert [item["stage"] for item in results["trained"]] == ["before", "iteration", "after"]
    assert results["average"]["success"] != results["trained"][-1]["success"]
    pages = "".join(path.read_text() for path in (tmp_path / "out").glob("*.js"))
    assert "averaged weights" in pages and "run.evaluations" not in pages


@pytest.mark.parametrize("text", ["a: &a [*a]", "a: &a {b: *a}", "- 1", "{", "x: 1\n" * 5, "a: 2024-01-01"])
def test_settings_that_make_no_sense_cost_nothing_but_themselves(tmp_path, make_groups, text):
    run = make_groups(tmp_path / "run", iterations=1)
    (run / "config.yaml").write_text(text)
    export([run, make_groups(tmp_path / "two", iterations=1)], tmp_path / "out")
    (index,) = read(tmp_path / "out" / "data" / "index.js")
    assert len(index["runs"]) == 2


@pytest.fixture
def played(tmp_path, make_run):
    """A run whose evaluation is also a file of its own, away from any run."""
    run = make_run(tmp_path / "run")
    (tmp_path / "away").mkdir()
    for type_name, suffix in (("evals", "json"), ("episodes", "jsonl")):
        shutil.copy(run / type_name / f"after-valid_unseen.{suffix}", tmp_path / "away" / f"mine.{suffix}")
    with Journal(tmp_path / "away", {"model": "openai:m"}) as journal:
        for episode in episodes_in(tmp_path / "away" / "mine.jsonl"):
            episode.turns[0] = replace(episode.turns[0], sent="[user]\nGo.")
            journal.append(episode)
    return tmp_path


def written(out):
    """The index and the episodes of a folder of the viewer."""
    (index,) = read(out / "data" / "index.js")
    shards = [read(out / "data" / name)[1] for source in index["sources"] for name in source["shards"]]
    return index, [episode for shard in shards for group in shard for episode in group["episodes"]]


def test_a_file_of_episodes_needs_no_run(played):
    export([played / "away" / "mine.jsonl"], played / "out")
    index, episodes = written(played / "out")
    assert [run["name"] for run in index["runs"]] == ["mine.jsonl"] and index["runs"][0]["results"] == {}
    assert len(episodes) == 60 and all(len(run["turns"]) == 3 for run in episodes)


def test_a_journal_is_shown_with_the_messages_that_were_sent(played):
    (journal,) = (played / "away").glob("openai-m-*.jsonl")
    export([journal], played / "out")
    index, episodes = written(played / "out")
    assert len(episodes) == 60 and sum(index["groups"]["wins"]) == sum(episode["success"] for episode in episodes)
    assert {episode["turns"][0]["sent"] for episode in episodes} == {"[user]\nGo."}


def test_a_result_is_shown_with_its_interval_and_tries_and_in_a_run_with_its_turns(played):
    result = EvalResult.load(played / "away" / "mine.json")
    export([played / "away" / "mine.json"], played / "out")
    index, episodes = written(played / "out")
    (run,) = index["runs"]
    assert run["results"]["valid_unseen"]["trained"][-1]["success"] == result.success.record()
    assert index["runs"][0]["environment"] == "gagpo/ALFWorld-v0"
    assert sum(index["groups"]["wins"]) == result.successes and index["episodes"]["turns"] == [3] * 60
    assert all(episode["turns"] == [] and "credit" not in episode for episode in episodes)
    export([played / "run" / "evals" / "after-valid_unseen.json"], played / "out")
    assert all(len(episode["turns"]) == 3 for episode in written(played / "out")[1])


def test_several_files_are_compared_like_runs(played):
    files = [played / "away" / "mine.jsonl", played / "away" / "mine.json", played / "run"]
    export(files, played / "out")
    index, _ = written(played / "out")
    assert [run["name"] for run in index["runs"]] == ["mine.jsonl", "mine.json", "run"]


def test_new_tokens_of_older_files_are_the_prompt(tmp_path, make_groups):
    run = make_groups(tmp_path / "run", iterations=1)
    path = run / "episodes" / "train-0001.jsonl"
    first = json.loads(path.read_text().splitlines()[0])
    del first["turns"][0]["sent"]
    first["turns"][0]["tokens"]["read"] = ["<|user|>", "start"]
    path.write_text(json.dumps(first) + "\n")
    export([path], tmp_path / "out")
    assert written(tmp_path / "out")[1][0]["turns"][0]["tokens"]["read"] == ["<|user|>", "start"]
