"""``gagpo view`` as people call it: what it prints, and one line for what is no run."""

import json
import os
from pathlib import Path

import pytest

EPISODES = "episodes/train-0001.jsonl"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def write_run(folder):
    (folder / "episodes").mkdir(parents=True)
    (folder / "metrics.jsonl").write_text(
        json.dumps({"iteration": 1, "success_rate": 0.5, "zero_advantage_groups": 0.9}) + "\n"
    )
    turn = {"observation": "o", "response": "r", "action": "a", "reward": 1.0}
    episode = {"task": "t", "group": 0, "success": True, "reward": 1.0, "turns": [turn]}
    (folder / "episodes" / "train-0001.jsonl").write_text(json.dumps(episode) + "\n")
    return folder


def test_view_writes_next_to_the_run(inside, tmp_path):
    write_run(tmp_path / "run")
    for _ in range(2):  # written again
        done = inside("view", "run")
        assert done.returncode == 0 and done.stdout == "wrote run/view; open run/view/index.html\n"
        assert (tmp_path / "run" / "view" / "index.html").is_file()


def test_a_folder_of_runs_is_shown_as_one_and_another_folder_is_left_alone(inside, tmp_path):
    for name in ("one", "two"):
        write_run(tmp_path / "runs" / name)
    done = inside("view", "runs")
    assert done.returncode == 0 and done.stdout == "wrote runs/view; open runs/view/index.html\n"
    assert inside("view", "runs/").returncode == 0  # its own folder in it is no run
    (tmp_path / "site" / "data").mkdir(parents=True)
    (tmp_path / "site" / "data" / "index.js").write_text("mine")
    done = inside("view", "runs/one", "--out", "site")
    assert done.returncode == 2 and "site: is not empty and was not written by the viewer" in done.stderr
    assert [path.name for path in (tmp_path / "site").rglob("*.*")] == ["index.js"]


def test_view_opens_a_file_and_writes_next_to_it(inside, tmp_path):
    episodes = write_run(tmp_path / "run") / "episodes" / "train-0001.jsonl"
    episodes.rename(tmp_path / "mine.jsonl")
    done = inside("view", "mine.jsonl")
    assert done.returncode == 0 and done.stdout == "wrote mine-view; open mine-view/index.html\n"
    assert (tmp_path / "mine-view" / "index.html").is_file()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("view", "nowhere"), "nowhere: no such run folder or file"),
        (
            ("view", "foreign/metrics.jsonl"),
            "foreign/metrics.jsonl: holds no episodes of this project: metrics",
        ),
        (("view", "picture.png"), "picture.png: holds no episodes of this project: picture.png, line 1: not JSON"),
        (("view", "nothing.jsonl"), "nothing.jsonl: holds no finished episode"),
        (("view", "broken.json"), "broken.json: key 'summary' is missing"),
        (("view", "foreign"), "train-0001.jsonl: holds no episodes of this project"),
        (("view", "empty"), "empty: neither a run folder nor a folder of runs (no metrics.jsonl, no evals/*.json)"),
    ],
)
def test_wrong_input_is_one_line(inside, tmp_path, arguments, told):
    write_run(tmp_path / "foreign")
    (tmp_path / "foreign" / "episodes" / "train-0001.jsonl").write_text('{"messages": []}\n')
    (tmp_path / "empty").mkdir()
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n" * 100_000)
    (tmp_path / "nothing.jsonl").write_text("")
    (tmp_path / "broken.json").write_text('{\n "format": "gagpo evaluation 1"\n}')
    done = inside(*arguments)
    assert done.returncode == 2 and done.stdout == ""
    assert told in done.stderr and done.stderr.count("\n") == 1
    assert not (tmp_path / "nowhere").exists() and not list(tmp_path.glob("*-view"))


LINKS = {
    "a link to nothing": lambda path: path.symlink_to("nowhere"),
    "a link to itself": lambda path: path.symlink_to(path),
    "a link to a folder": lambda path: path.symlink_to("/"),
    "a link to an endless file": lambda path: path.symlink_to("/dev/zero"),
    "a link out of the run": lambda path: path.symlink_to(path.parents[2] / "secret.jsonl"),
    "a pipe": os.mkfifo,
    "a folder": Path.mkdir,
}


@pytest.mark.parametrize("make", LINKS.values(), ids=LINKS.keys())
@pytest.mark.parametrize("command", ["view", "report"])
def test_an_episode_file_that_must_not_be_read_is_skipped(command, make, inside, tmp_path, caplog):
    (tmp_path / "secret.jsonl").write_text(write_run(tmp_path / "secret").joinpath(EPISODES).read_text())
    run = write_run(tmp_path / "run")
    make(run / "episodes" / "hostile.jsonl")
    done = inside(command, "run")
    assert done.returncode == 0, done.stderr
    if command == "view":
        (warning,) = [record.getMessage() for record in caplog.records if record.name == "gagpo"]
        assert "episodes/hostile.jsonl" in warning
        text = (run / "view" / "data" / "index.js").read_text()
        assert "hostile.jsonl" in text and text.count('"label":') == 1


def test_a_broken_row_is_told_in_the_terminal_too(inside, tmp_path, caplog):
    episodes = write_run(tmp_path / "run") / EPISODES
    with episodes.open("a") as file:
        file.write("{broken\n" * 9)
    assert inside("view", "run").returncode == 0
    *rows, last = [record.getMessage() for record in caplog.records if record.name == "gagpo"]
    assert len(rows) == 3 and all("not JSON" in row for row in rows) and last.startswith("6 more rows")


def test_a_run_of_links_alone_says_so(inside, tmp_path, caplog):
    run = write_run(tmp_path / "run")
    (run / EPISODES).rename(tmp_path / "elsewhere.jsonl")
    (run / EPISODES).symlink_to(tmp_path / "elsewhere.jsonl")
    done = inside("view", "run")
    assert done.returncode == 2 and "run: holds no episodes to look at" in done.stderr
    assert "skipped, because it is a link; copy the file to show its episodes" in caplog.text
