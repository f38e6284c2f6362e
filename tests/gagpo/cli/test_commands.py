"""The command line as a user meets it: what works, and one clear line for what does not."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer

from gagpo.runs.run_folder import RunFolder
from gagpo.settings import load
from gagpo.training.trainer import train

CORRIDOR = "gagpo.envs.testing:gagpo-test/Corridor-v0"


def gagpo(*arguments, **kwargs):
    command = [sys.executable, "-m", "gagpo", *map(str, arguments)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment, **kwargs)


@pytest.fixture(scope="module")
def finished(tmp_path_factory, warm_model):
    """A finished run of two iterations."""
    import yaml

    from tests.gagpo.conftest import CORRIDOR as settings

    folder = tmp_path_factory.mktemp("finished")
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump({**settings, "model": warm_model}))
    created = RunFolder.create(folder / "run", load(path))
    train(created, quiet=True)
    return created.path


def test_training_ends_with_a_table_curves_a_page_and_json(corridor, tmp_path):
    done = gagpo("train", corridor(training={"iterations": 1}), "--runs", tmp_path / "runs", "--json", "-q")
    assert done.returncode == 0, done.stderr
    run = tmp_path / "runs" / "corridor"
    assert (run / "curves.png").exists() and (run / "report.html").exists()
    assert "before" in done.stdout and "after" in done.stdout
    assert re.search(r"first point of the curve after \d+:\d\d, report after \d+:\d\d", done.stdout)
    assert json.loads(done.stdout.splitlines()[-1])["test"]["episodes"] == 4


def test_a_model_that_was_measured_before_need_not_be_again(corridor, tmp_path):
    config = corridor(training={"iterations": 1}, evaluation={"before": False})
    done = gagpo("train", config, "--runs", tmp_path / "runs", "-q")
    assert done.returncode == 0, done.stderr
    run = tmp_path / "runs" / "corridor"
    measured = {path.name for path in (run / "evals").iterdir()}
    assert measured == {"after-test.json", "average-test.json"} and (run / "report.html").exists()


def test_a_warm_start_is_made_once_and_never_mistaken_for_another(corridor, tmp_path):
    config = corridor()
    again = gagpo("warm-start", config, "-q")
    assert again.returncode == 0 and "exists" in again.stdout
    other = gagpo("warm-start", config, "warm_start.noise=0.25", "-q")
    assert other.returncode == 2 and "warm_start.noise: 0.5 then, 0.25 now" in other.stderr
    assert len(other.stderr.splitlines()) == 1


def test_training_takes_arguments_of_the_world_as_evaluation_does(inside, tmp_path):
    """The household player trains on the released games in one command, for whoever has them."""
    done = inside("train", "alfworld-agent", "-k", f"games={tmp_path / 'json'}", "--runs", tmp_path)
    assert done.returncode == 2 and f"there is no folder {tmp_path / 'json'}/train" in done.stderr


def test_auto_numbers_the_next_run_when_one_is_finished(corridor, tmp_path):
    config = corridor(training={"iterations": 0}, evaluation={"tasks": 1})
    for _ in range(2):
        assert gagpo("train", config, "--auto", "--runs", tmp_path / "runs", "-q").returncode == 0
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"corridor", "corridor-2"}


@pytest.mark.parametrize("model", ["random", "expert"])
def test_evaluating_agents_without_a_model(model, tmp_path):
    out = tmp_path / "result.json"
    done = gagpo("eval", model, "--env", CORRIDOR, "--split", "test", "--tries", 3, "--json", "--out", out, "-q")
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["episodes"] == 12 and (summary["success_rate"] == 1.0 if model == "expert" else True)
    assert out.exists()
    assert "temperature" not in done.stdout and json.loads(out.read_text())["temperature"] is None


def test_evaluating_a_run_and_comparing_it(finished, tmp_path):
    files = []
    for model in (finished, "random"):
        files.append(tmp_path / f"{len(files)}.json")
        arguments = ["--env", CORRIDOR, "--split", "test", "-k", "max_turns=16", "--out", files[-1], "-q"]
        done = gagpo("eval", model, *arguments)
        assert done.returncode == 0, done.stderr
    compared = gagpo("compare", *files)
    assert compared.returncode == 0 and "McNemar" in compared.stdout, compared.stderr


def test_reports_and_curves_are_made_again(finished, tmp_path):
    assert gagpo("report", finished).returncode == 0
    drawn = gagpo("curves", f"GAGPO={finished}", "-o", tmp_path / "c.png")
    assert drawn.returncode == 0 and (tmp_path / "c.png").stat().st_size > 5000, drawn.stderr


def test_text_heeds_a_narrow_terminal(inside, finished, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    drawn = inside("curves", finished, "-o", tmp_path / "c.png")
    _, *lines = drawn.stdout.splitlines()
    assert drawn.returncode == 0 and len(lines) > 4 and max(map(len, lines)) <= 40
    shown = inside("eval", "random", "--env", CORRIDOR, "--split", "test", "-q").stdout.splitlines()
    assert max(map(len, shown)) <= 40


WRONG = {
    "no command's file": (["train"], "name a settings file or a shipped config"),
    "a missing file": (["train", "configs/alfworld-smal.yaml"], "nearest: alfworld-small"),
    "an unknown key": (["train", "configs/alfworld-small.yaml", "rolout.tasks=1"], "nearest valid key is 'rollout'"),
    "no run": (["train", "--resume", "tests"], "is not a run"),
    "an unknown environment": (["eval", "random", "--env", "gagpo/Nowhere-v0"], "known here: gagpo/ALFWorld-v0"),
    "an unknown argument": (["eval", "random", "--env", CORRIDOR, "-k", "colour=1"], "colour"),
    "an argument without value": (["eval", "random", "--env", CORRIDOR, "-k", "colour"], "name=value"),
    "an unknown split": (["eval", "random", "--env", CORRIDOR, "--split", "moon"], "moon"),
    "no environment": (["eval", "random"], "name the environment with --env"),
    "no model": (["eval", "/nowhere/model", "--env", CORRIDOR], "the folder does not exist"),
    "a hub name without network": (["eval", "nobody/nothing", "--env", CORRIDOR], "cached or can be downloaded"),
    "no result": (["compare", "/nowhere.json", "/nowhere2.json"], "/nowhere.json"),
    "an unknown option": (["train", "--speed", "9"], "No such option"),
    "an unknown command": (["trian"], "trian"),
    "an unknown style": (["eval", "random", "--env", CORRIDOR, "--style", "fancy"], "unknown style 'fancy'"),
    "no tasks": (["eval", "random", "--env", CORRIDOR, "--tasks", "0"], "greater than or equal to 1"),
    "a run that is not there": (["eval", "runs/nope", "--env", CORRIDOR], "the folder does not exist"),
    "a metric that is not there": (["curves", "tests", "--metric", "sucess"], "tests"),
    "an unknown history": (["eval", "random", "--env", CORRIDOR, "--history", "some"], "history"),
}


@pytest.fixture
def inside(monkeypatch, capsys):
    """The command line in this process: its status and what it printed."""
    from gagpo.cli.main import main

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["gagpo", *map(str, arguments)])
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        handler = signal.getsignal(signal.SIGTERM)
        try:
            with pytest.raises(SystemExit) as ended:
                main()
        finally:
            signal.signal(signal.SIGTERM, handler)
        printed = capsys.readouterr()
        return SimpleNamespace(returncode=ended.value.code, stdout=printed.out, stderr=printed.err)

    return call


@pytest.mark.parametrize(("arguments", "said"), WRONG.values(), ids=WRONG)
def test_wrong_use_is_one_clear_line(inside, arguments, said):
    done = inside(*arguments)
    assert done.returncode == 2, done.stdout + done.stderr
    assert said in done.stderr and "Traceback" not in done.stderr + done.stdout


def test_an_interrupted_report_is_no_lost_run(inside, corridor, tmp_path, monkeypatch):
    def interrupted(run):
        raise KeyboardInterrupt

    monkeypatch.setattr("gagpo.eval.report.report.write_report", interrupted)
    done = inside("train", corridor(training={"iterations": 1}), "--runs", tmp_path / "runs", "-q")
    assert done.returncode == 130 and f"gagpo report {tmp_path / 'runs' / 'corridor'}" in done.stdout
    monkeypatch.undo()
    assert gagpo("report", tmp_path / "runs" / "corridor").returncode == 0


def test_a_fault_of_ours_shows_its_traceback_and_where_to_report_it(inside, monkeypatch):
    monkeypatch.setattr("gagpo.training.launch.load", lambda *_: {}["weights"])
    done = inside("train", "alfworld-small")
    assert done.returncode == 1 and "Traceback" in done.stderr and "KeyError: 'weights'" in done.stderr
    assert "CONTRIBUTING.md" in done.stderr.splitlines()[-1]


def test_a_checkpoint_of_a_run_is_evaluated_by_its_iteration(inside, finished):
    done = inside("eval", f"{finished}@2", "--tasks", 2, "--json", "-q")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["episodes"] == 2
    done = inside("eval", f"{finished}@7", "-q")
    assert done.returncode == 2 and "no checkpoint of iteration 7; it has [1, 2]" in done.stderr


def test_random_plays_the_panel_of_a_run_and_folders_compare_with_files(inside, finished, tmp_path):
    chance = tmp_path / "chance.json"
    done = inside("eval", "random", "--like", finished, "--out", chance, "--episodes", tmp_path / "all.jsonl", "-q")
    assert done.returncode == 0, done.stderr
    assert len((tmp_path / "all.jsonl").read_text().splitlines()) == 4
    done = inside("compare", chance, finished, "--json")
    assert done.returncode == 0 and json.loads(done.stdout.splitlines()[-1])["baseline"] == "chance", done.stderr
    done = inside("compare", chance, finished, "--split", "moon")
    assert done.returncode == 2 and "evaluated on: test" in done.stderr


def test_an_evaluation_that_was_cut_off_goes_on(inside, finished, tmp_path, monkeypatch):
    from gagpo.eval.journal import Journal

    out = tmp_path / "result.json"
    kept, append = [], Journal.append

    def killed(journal, episode):
        append(journal, episode)
        kept.append((episode.task, episode.sample))
        if len(kept) == 5:
            raise KeyboardInterrupt

    monkeypatch.setattr(Journal, "append", killed)
    command = ["eval", finished, "--tries", 3, "--out", out, "-q"]
    assert inside(*command).returncode == 130 and not out.exists()
    done = inside(*command, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["episodes"] == 12
    assert len(kept) == len(set(kept)) == 12 and [path.name for path in tmp_path.iterdir()] == ["result.json"]


def test_a_result_that_could_not_be_written_is_refused_before_playing(inside, finished, tmp_path):
    done = inside("eval", finished, "--out", tmp_path, "-q")
    assert done.returncode == 2 and "is a folder" in done.stderr


def test_a_world_without_an_expert_is_not_scored_as_one(inside):
    done = inside("eval", "expert", "--env", "gagpo.envs.testing:gagpo-test/Faulty-v0", "--split", "test", "-q")
    assert done.returncode == 2 and "has no expert" in done.stderr


def test_shipped_configs_are_listed_and_printed(inside):
    done = inside("configs", "--json")
    names = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == 0 and "alfworld-small" in names and all(names.values())
    shown = inside("configs", "show", "alfworld-small")
    assert shown.stdout.startswith("# ") and "environment:" in shown.stdout
    assert inside("--version").stdout.startswith("gagpo ")


def test_a_working_directory_replaces_nothing(tmp_path):
    for name in ("agents", "envs", "matplotlib", "gagpo"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('shadowed')\n")
    script = Path(sys.executable).with_name("gagpo")
    command = [script] if script.exists() else [sys.executable, "-P", "-m", "gagpo"]
    done = subprocess.run(
        [*command, "eval", "random", "--env", CORRIDOR, "--split", "test", "-q"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_closed_pipe_is_no_error():
    command = f"{sys.executable} -m gagpo --help | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0 and "Traceback" not in done.stderr


def test_checking_an_environment():
    done = gagpo("check", CORRIDOR, "--episodes", 2, "--json")
    report = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == 0 and report["ok"] and len(report["findings"]) > 8


def test_continuing_a_finished_run_says_how_to_extend_it(inside, finished):
    done = inside("train", "--resume", finished, "-q")
    assert done.returncode == 0, done.stderr
    assert f"To extend it: gagpo train --resume {finished} training.iterations=4" in done.stdout


def test_two_runs_are_one_table_with_a_paired_test(inside, finished, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(finished, other)
    done = inside("report", f"one={finished}", f"two={other}")
    assert done.returncode == 0, done.stderr
    (head,) = [line for line in done.stdout.splitlines() if "after %" in line]
    assert "difference" in head and "McNemar" in done.stdout
    assert max(len(line) for line in done.stdout.splitlines() if not line.startswith("/")) <= 100


WITHOUT_JSON = {"configs show", "play", "serve", "view", "watch", "configs", "bench"}
"""What prints no results: a file, or what goes on until it is ended."""


def test_every_command_that_prints_results_has_json():
    from gagpo.cli.examples import EXAMPLES
    from gagpo.cli.main import app

    command = typer.main.get_command(app)
    for name in EXAMPLES.keys() - WITHOUT_JSON:
        found = command
        for part in name.split():
            found = found.commands[part]
        assert "as_json" in {one.name for one in found.params}, name
