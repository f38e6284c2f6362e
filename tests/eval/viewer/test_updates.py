"""Pages that follow runs: what is written again, what stays, and how it ends."""

import json
import shutil
import threading

import pytest

from gagpo.eval.viewer import updates
from gagpo.eval.viewer.updates import UpdatedPages, follow
from gagpo.runs.reading import BadResult
from tests.rejections import rejects


def index_of(out):
    text = (out / "data" / "index.js").read_text(encoding="ascii")
    return json.loads(text.removeprefix("viewer.load(").removesuffix(");\n"))


def note_of(out):
    text = (out / "data" / "live.js").read_text(encoding="ascii")
    return json.loads(text.removeprefix("viewer.live(").removesuffix(");\n"))


def begin_run(folder):
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("name: begun\ntraining: {iterations: 30}\n")
    return folder


def add_iterations(run, source):
    """Copy the iterations of another run into one that has just begun."""
    for path in sorted((source / "episodes").glob("train-*")):
        (run / "episodes").mkdir(exist_ok=True)
        shutil.copy(path, run / "episodes")
    shutil.copy(source / "metrics.jsonl", run)


def test_a_run_without_an_iteration_has_a_page(tmp_path):
    pages = UpdatedPages([begin_run(tmp_path / "run")], tmp_path / "out")
    assert pages.update() and not pages.finished
    index = index_of(tmp_path / "out")
    assert index["live"] and index["problems"] == [] and index["runs"][0]["iterations"] == "30"


def test_only_what_has_changed_is_written_again(tmp_path, make_groups):
    run = begin_run(tmp_path / "run")
    pages = UpdatedPages([run], tmp_path / "out")
    pages.update()
    add_iterations(run, make_groups(tmp_path / "first", iterations=1))
    assert pages.update() and not pages.update()
    (shard,) = (tmp_path / "out" / "data").glob("0-train-0001-*.js")
    written = shard.stat().st_mtime_ns
    add_iterations(run, make_groups(tmp_path / "more", iterations=2, groups=2))
    assert pages.update() and index_of(tmp_path / "out")["version"] == 3
    assert shard.stat().st_mtime_ns == written  # stays for one version: a page may still use it
    index = index_of(tmp_path / "out")
    assert [source["label"] for source in index["sources"]] == ["train-0001", "train-0002"]
    assert shard.name not in index["sources"][0]["shards"]
    (run / "episodes" / "train-0001.jsonl").unlink()
    assert pages.update() and not shard.exists()


def test_a_killed_and_resumed_run_replaces_what_it_repeats(tmp_path, make_groups):
    run = begin_run(tmp_path / "run")
    add_iterations(run, make_groups(tmp_path / "first", iterations=3))
    pages = UpdatedPages([run], tmp_path / "out")
    pages.update()
    rows = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(rows[:1]) + rows[1][: len(rows[1]) // 2])  # killed while it wrote
    assert pages.update() and index_of(tmp_path / "out")["runs"][0]["metrics"]["iteration"] == [1]
    (run / "metrics.jsonl").write_text("".join(rows))
    assert pages.update() and index_of(tmp_path / "out")["runs"][0]["metrics"]["iteration"] == [1, 2, 3]


@pytest.mark.parametrize("folder", ["runs", "runs/walk-by-seed"])
def test_runs_that_begin_later_get_later_numbers(tmp_path, make_groups, folder):
    logs = tmp_path / "runs" / "walk-by-seed" / "logs"
    logs.mkdir(parents=True)
    make_groups(tmp_path / "runs" / "walk-seed2", iterations=1)
    (logs / "walk-seed2.log").write_text("")
    pages = UpdatedPages([tmp_path / folder], tmp_path / "out")
    pages.update()
    begin_run(tmp_path / "runs" / "walk-seed1")
    (logs / "walk-seed1.log").write_text("")
    (logs / "..log").write_text("")  # a name that leads to the folder itself
    assert pages.update()
    assert [run["name"] for run in index_of(tmp_path / "out")["runs"]] == ["walk-seed2", "walk-seed1"]


def test_a_file_that_cannot_be_read_is_named_and_the_rest_goes_on(tmp_path, make_groups):
    run = make_groups(tmp_path / "run", iterations=1)
    (run / "episodes" / "train-0002.jsonl").write_text("no episodes\n")
    (run / "evals").mkdir()
    (run / "evals" / "after-test.json").write_text("{")
    pages = UpdatedPages([run], tmp_path / "out")
    pages.update()
    problems = index_of(tmp_path / "out")["problems"]
    assert any("train-0002" in problem for problem in problems) and any("after-test" in problem for problem in problems)
    assert "train-0001" in [source["label"] for source in index_of(tmp_path / "out")["sources"]]


def test_other_files_are_never_replaced(tmp_path, make_groups):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("")
    with rejects(BadResult, "viewer", advice="--out"):
        UpdatedPages([make_groups(tmp_path / "run")], tmp_path / "mine")


def test_following_ends_when_nothing_changes_and_tells_the_page(tmp_path, make_groups, monkeypatch):
    monkeypatch.setattr(updates, "POLL", 0.01)
    texts, opened = [], []
    follow([make_groups(tmp_path / "run")], tmp_path / "out", opened.append, texts.append, idle=0.2)
    assert opened == [tmp_path / "out" / "index.html"] and "nothing has changed" in texts[-1]
    assert note_of(tmp_path / "out")["ended"] and index_of(tmp_path / "out")["live"] is False


def test_following_waits_for_a_run_and_not_for_ever(tmp_path, make_groups, monkeypatch):
    monkeypatch.setattr(updates, "POLL", 0.01)
    begin = threading.Timer(0.3, make_groups, [tmp_path / "run"])
    begin.start()
    texts = []
    follow([tmp_path / "run"], tmp_path / "out", lambda page: None, texts.append, idle=0.1)
    begin.join()
    assert texts[0].startswith("waiting for") and len(texts) == 2
    monkeypatch.setattr(updates, "START", 0.05)
    with rejects(BadResult, "run folder", where="none"):
        follow([tmp_path / "none"], tmp_path / "other", lambda page: None, texts.append)
    assert not (tmp_path / "other").exists()
