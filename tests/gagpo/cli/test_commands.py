"""The command line as a user meets it: what works, and one clear line for what does not."""

import errno
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from gagpo.model.loading import ModelError
from gagpo.runs.run_folder import RunFolder
from gagpo.settings import load

CORRIDOR = "gagpo.envs.testing:gagpo-test/Corridor-v0"

RAISES = """
import gymnasium
from gagpo.envs.testing import CorridorEnv

class RaisesEnv(CorridorEnv):
    def step(self, action):
        raise RuntimeError("locked")

gymnasium.register("Raises-v0", "raises:RaisesEnv", disable_env_checker=True, order_enforce=False)
"""


def test_training_ends_with_a_table_curves_a_page_and_json(inside, corridor, tmp_path):
    config = corridor(training={"iterations": 1})
    done = inside("train", config, "--runs", tmp_path / "runs", "--json", "-q", "--auto")
    assert done.returncode == 0, done.stderr
    run = tmp_path / "runs" / "corridor"
    assert (run / "curves.png").exists() and (run / "report.html").exists()
    assert "before" in done.stdout and "after" in done.stdout
    assert re.search(r"first point of the curve after \d+:\d\d, report after \d+:\d\d", done.stdout)
    assert json.loads(done.stdout.splitlines()[-1])["test"]["episodes"] == 4
    # A model that was measured already is not measured again, and --auto numbers a run after a finished one.
    changes = ["training.iterations=0", "evaluation.before=false"]
    done = inside("train", config, *changes, "--auto", "--runs", tmp_path / "runs", "-q")
    assert done.returncode == 0, done.stderr
    measured = {path.name for path in (tmp_path / "runs" / "corridor-2" / "evals").iterdir()}
    assert "before-test.json" not in measured and "after-test.json" in measured


def test_a_finished_run_without_checkpoints_is_not_trained_again(inside, finished, tmp_path):
    """It said that it was finished, and then began at the first iteration and replaced what it had."""
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    shutil.rmtree(run / "checkpoints")
    metrics = (run / "metrics.jsonl").read_bytes()
    done = inside("train", "--resume", run, "-q")
    assert done.returncode == 2 and "is finished, and its checkpoints are gone" in done.stderr
    assert (run / "metrics.jsonl").read_bytes() == metrics


def test_a_model_of_sft_is_made_once_and_never_mistaken_for_another(inside, corridor, tmp_path):
    config = corridor()
    again = inside("sft", config, "-q")
    assert again.returncode == 0 and "exists" in again.stdout
    other = inside("sft", config, "sft.noise=0.25", "-q")
    assert other.returncode == 2 and "sft.noise: 0.5 then, 0.25 now" in other.stderr
    assert len(other.stderr.splitlines()) == 1


def test_training_begins_with_sft_where_the_model_is_missing(inside, corridor, tmp_path):
    changes = [f"model={tmp_path / 'new'}", "sft.steps=2", "training.iterations=0", "evaluation.before=false"]
    changes.append("name=corridor")
    done = inside("train", corridor(), *changes, "--runs", tmp_path / "runs", "-q")
    assert done.returncode == 0, done.stderr
    assert "new does not exist: training it on demonstrations first" in done.stdout
    assert (tmp_path / "new" / "sft.json").exists() and (tmp_path / "runs" / "corridor" / "report.html").exists()
    wrong = ["sft.data=none.jsonl", f"model={tmp_path / 'other'}", "name=other"]
    assert inside("train", corridor(), *wrong, "--runs", tmp_path / "runs", "-q").returncode == 2
    assert not (tmp_path / "runs" / "other").exists()


def test_training_takes_arguments_of_the_environment_as_evaluation_does(inside, tmp_path):
    """A model trains on the released games with one command."""
    done = inside("train", "alfworld-quickstart", "-k", f"games={tmp_path / 'json'}", "--runs", tmp_path)
    assert done.returncode == 2 and f"there is no folder {tmp_path / 'json'}/train" in done.stderr


@pytest.mark.parametrize("model", ["random", "expert"])
def test_evaluating_agents_without_a_model(inside, model, tmp_path):
    out = tmp_path / "result.json"
    command = [
        "--env",
        CORRIDOR,
        "--split",
        "test",
        "--episodes-per-task",
        3,
        "--json",
        "--out",
        out,
        "-q",
        "--workers",
        0,
        "--concurrency",
        2,
    ]
    done = inside("eval", model, *command)
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["episodes"] == 12 and (summary["success_rate"] == 1.0 if model == "expert" else True)
    assert "temperature" not in done.stdout and json.loads(out.read_text())["temperature"] is None


def test_evaluating_a_run_and_comparing_it(inside, finished, tmp_path):
    files = []
    for model in (finished, "random"):
        files.append(tmp_path / f"{len(files)}.json")
        arguments = ["--env", CORRIDOR, "--split", "test", "-k", "max_turns=16", "--workers", 0]
        done = inside("eval", model, *arguments, "--out", files[-1], "-q")
        assert done.returncode == 0, done.stderr
    compared = inside("compare", *files)
    assert compared.returncode == 0 and "McNemar" in compared.stdout, compared.stderr


def test_one_run_has_a_page_and_its_curves_where_they_are_asked_for(inside, finished, tmp_path):
    done = inside("report", f"GAGPO={finished}", "--curves", tmp_path / "c.png", "--x", "turns", "--smooth", "2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [str(finished / "report.html"), str(tmp_path / "c.png")]
    assert (tmp_path / "c.png").stat().st_size > 5000


def test_text_heeds_a_narrow_terminal(inside, finished, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    lines = inside("eval", "random", "--env", CORRIDOR, "--split", "test", "--workers", 0, "-q").stdout.splitlines()
    assert max(map(len, lines)) <= 40


def test_an_environment_that_always_fails_is_not_measured(inside, tmp_path, monkeypatch):
    """Nothing was measured, so there is no success rate, and the reason is what the environment raised."""
    (tmp_path / "raises.py").write_text(RAISES)
    monkeypatch.syspath_prepend(tmp_path)
    command = ["eval", "random", "--env", "raises:Raises-v0", "--split", "test", "--workers", 0, "-q"]
    for _ in range(2):  # nothing of it is kept for the next time
        done = inside(*command, "--out", tmp_path / "r.json")
        assert done.returncode == 2 and "all 4 episodes failed in the environment: RuntimeError: locked" in done.stderr
        assert "%" not in done.stdout and not (tmp_path / "r.json").exists()


WRONG = {  # more mistakes are in test_startup
    "no command's file": (["train"], "name a settings file or a shipped config"),
    "an unknown argument": (["eval", "random", "--env", CORRIDOR, "-k", "colour=1"], "colour"),
    "no environment": (["eval", "random"], "name the environment with --env"),
    "no model": (["eval", "/nowhere/model", "--env", CORRIDOR], "the folder does not exist"),
    "an unknown command": (["trian"], "trian"),
    "an unknown prompt": (["eval", "random", "--env", CORRIDOR, "--prompt", "fancy"], "unknown prompt 'fancy'"),
    "no tasks": (["eval", "random", "--env", CORRIDOR, "--tasks", "0"], "must be at least 1"),
    "an unknown history": (["eval", "random", "--env", CORRIDOR, "--history", "some"], "history"),
}


@pytest.mark.parametrize(("arguments", "said"), WRONG.values(), ids=WRONG)
def test_wrong_use_is_one_clear_line(inside, arguments, said):
    done = inside(*arguments)
    assert done.returncode == 2, done.stdout + done.stderr
    assert said in done.stderr and "Traceback" not in done.stderr + done.stdout


@pytest.mark.parametrize(
    ("folder", "said"), [("runs/x", "with --runs"), ("data/alfworld", "set GAGPO_DATA to a folder")]
)
def test_a_folder_that_cannot_be_written_to_names_what_to_change(inside, corridor, tmp_path, monkeypatch, folder, said):
    def refused(self):
        raise PermissionError(errno.EROFS, "Read-only file system", str(tmp_path / folder))

    monkeypatch.setenv("GAGPO_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(RunFolder, "write", refused)
    done = inside("train", corridor(), "--runs", tmp_path / "runs", "-q")
    assert done.returncode == 2 and said in done.stderr and done.stderr.count("\n") == 1, done.stderr


def test_interrupted_sft_says_how_to_continue(inside, corridor, tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("gagpo.sft.run.sft", interrupted)
    config = corridor(model=str(tmp_path / "made model"))
    done = inside("sft", config, "-q")
    assert done.returncode == 130 and done.stdout == f"interrupted; continue with: gagpo sft {config} -q\n"
    monkeypatch.setenv("RANK", "1")
    assert inside("sft", config, "-q").stdout == ""


def test_ctrl_c_during_the_imports_is_one_line(tmp_path):
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt")
    done = subprocess.run(
        [sys.executable, "-m", "gagpo", "list"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[3]}"},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (130, "interrupted before the command began\n", "")


def test_an_interrupted_report_is_no_lost_run(inside, corridor, tmp_path, monkeypatch):
    def interrupted(run):
        raise KeyboardInterrupt

    monkeypatch.setattr("gagpo.eval.report.report.write_report", interrupted)
    done = inside("train", corridor(training={"iterations": 1}), "--runs", tmp_path / "runs", "-q")
    assert done.returncode == 130 and f"gagpo report {tmp_path / 'runs' / 'corridor'}" in done.stdout
    monkeypatch.undo()
    assert inside("report", tmp_path / "runs" / "corridor").returncode == 0


def test_a_fault_of_ours_shows_its_traceback_and_where_to_report_it(inside, monkeypatch):
    monkeypatch.setattr("gagpo.training.launch.load", lambda *_: {}["weights"])
    done = inside("train", "alfworld-quickstart")
    assert done.returncode == 1 and "Traceback" in done.stderr and "KeyError: 'weights'" in done.stderr
    assert "CONTRIBUTING.md" in done.stderr.splitlines()[-1]


def test_a_checkpoint_of_a_run_is_evaluated_by_its_iteration(inside, finished):
    done = inside("eval", f"{finished}@2", "--tasks", 2, "--json", "-q")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["episodes"] == 2
    done = inside("eval", f"{finished}@7", "-q")
    assert done.returncode == 2 and "no checkpoint of iteration 7; choose one of [1, 2]" in done.stderr


def test_a_run_of_somebody_else_never_grants_itself_trust(inside, finished, tmp_path, monkeypatch):
    """A model's own code runs only with the user's flag, whatever the run's settings say."""
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    settings = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(settings.replace("trust_remote_code: false", "trust_remote_code: true"))
    assert load(run / "config.yaml").trust_remote_code
    trusted = []

    def refused(*arguments, trust_remote_code, **options):
        trusted.append(trust_remote_code)
        raise ModelError("not loaded")

    monkeypatch.setattr("gagpo.model.loading.load_model", refused)
    model = next((run / "checkpoints").glob("*/model"))
    export = ["export", run, tmp_path / "out"]
    for tokens in (["eval", run, "-q"], ["eval", model, "--like", run, "-q"], export):
        assert inside(*tokens).returncode == 2
    assert trusted == [False, False, False]
    for tokens in (["eval", run, "-q"], export):
        assert inside(*tokens, "--trust-remote-code").returncode == 2
    assert trusted == [False, False, False, True, True] and not (tmp_path / "out").exists()


def test_random_plays_the_panel_of_a_run_and_folders_compare_with_files(inside, finished, tmp_path):
    chance = tmp_path / "chance.json"
    done = inside("eval", "random", "--like", finished, "--out", chance, "--episodes", tmp_path / "all.jsonl", "-q")
    assert done.returncode == 0, done.stderr
    assert len((tmp_path / "all.jsonl").read_text().splitlines()) == 4
    done = inside("compare", chance, finished, "--json")
    assert done.returncode == 0 and json.loads(done.stdout.splitlines()[-1])["baseline"] == str(tmp_path / "chance"), (
        done.stderr
    )
    done = inside("compare", chance, finished, "--split", "moon")
    assert done.returncode == 2 and "evaluated on: test" in done.stderr


def test_arguments_of_a_recorded_config_are_not_warned_of(inside, tmp_path, recwarn):
    (tmp_path / "problems.jsonl").write_text('{"problem": "What is 1 + 1?", "answer": "2"}')
    config = tmp_path / "recorded.yaml"
    config.write_text(
        "{name: x, model: m, environment: {id: gagpo/Math-v0, kwargs: {size: 20}}, algorithm: {preset: gagpo}}"
    )
    tokens = ["eval", "random", "--like", config, "--split", "train", "-k", f"data={tmp_path}/problems.jsonl", "-q"]
    assert inside(*tokens).returncode == 0 and not [item for item in recwarn if "no effect" in str(item.message)]
    assert inside(*tokens, "-k", "size=30").returncode == 0
    assert "size has no effect" in str(recwarn.pop(UserWarning).message)


def test_an_evaluation_that_was_cut_off_goes_on(inside, finished, tmp_path, monkeypatch):
    from gagpo.eval.journal import Journal

    out = tmp_path / "result.json"
    retained, append = [], Journal.append

    def killed(journal, episode):
        append(journal, episode)
        retained.append((episode.task, episode.sample))
        if len(retained) == 5:
            raise KeyboardInterrupt

    monkeypatch.setattr(Journal, "append", killed)
    command = ["eval", finished, "--episodes-per-task", 3, "--out", out, "-q"]
    assert inside(*command).returncode == 130 and not out.exists()
    done = inside(*command, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["episodes"] == 12
    assert len(retained) == len(set(retained)) == 12 and [path.name for path in tmp_path.iterdir()] == ["result.json"]


def test_a_result_that_could_not_be_written_is_refused_before_playing(inside, finished, tmp_path):
    done = inside("eval", finished, "--out", tmp_path, "-q")
    assert done.returncode == 2 and "is a folder" in done.stderr


def test_a_env_without_an_expert_is_not_scored_as_one(inside):
    done = inside("eval", "expert", "--env", "tests.envs.faulty:gagpo-test/Faulty-v0", "--split", "test", "-q")
    assert done.returncode == 2 and "has no expert" in done.stderr


def test_shipped_configs_are_listed_and_copied(inside, tmp_path):
    done = inside("list", "--json")
    about = {
        item["name"]: item["about"] for item in json.loads(done.stdout.splitlines()[-1]) if item["kind"] == "config"
    }
    assert done.returncode == 0 and "alfworld-small" in about and all(about.values())
    result = inside("new", "mine.yaml", "--like", "alfworld-small", "--folder", tmp_path)
    assert result.returncode == 0 and load(tmp_path / "mine.yaml") == load("alfworld-small")
    again = inside("new", "mine.yaml", "--folder", tmp_path)
    assert again.returncode == 2 and "mine.yaml: exists" in again.stderr
    assert inside("--version").stdout.startswith("gagpo ") and "--version <" not in inside("--help").stdout


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


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("words", ["list", "check gagpo/Storeroom-v0 --episodes 1"])
def test_closed_standard_streams_are_no_error(words, closed):
    command = f"{sys.executable} -m gagpo {words} {closed}"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0 and done.stderr == ""


def test_checking_an_environment(inside):
    done = inside("check", CORRIDOR, "--episodes", 2, "--json")
    report = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == 0 and report["ok"] and report["warnings"] == [] and len(report["findings"]) > 8
    assert "warning: " not in done.stdout


def test_checking_an_environment_shows_warnings_and_failures_below_the_table(inside, monkeypatch):
    from gagpo.envs.check.check import CheckResult

    findings = [
        CheckResult("tasks", True, "", 0.0, warning=True),
        CheckResult("info", False, "", 0.0),
        CheckResult("a", True, "", 0),
    ]
    monkeypatch.setattr("gagpo.envs.check.check.check", lambda *_, **__: findings)
    done = inside("check", CORRIDOR)
    assert done.returncode == 1 and "warning: tasks\nfailed: info\n" in done.stdout


def test_checking_the_environments_of_a_config(inside, tmp_path, monkeypatch):
    """Each with its own arguments, which the command line changes for all."""
    called = []
    monkeypatch.setattr("gagpo.envs.check.check.check", lambda *arguments, **_: called.append(arguments) or [])
    done = inside("check", "alfworld-quickstart", "-k", "max_turns=7", "--json")
    assert done.returncode == 0 and json.loads(done.stdout.splitlines()[-1])["ok"]
    assert inside("check", "mixture").returncode == 0
    assert called[0][0] == "gagpo/ALFWorld-v0" and called[0][1]["max_turns"] == 7 and "size" in called[0][1]
    assert len(called) == 4 and len({env_id for env_id, _ in called[1:]}) == 3


def test_continuing_a_finished_run_says_how_to_extend_it(inside, finished):
    done = inside("train", "--resume", finished, "-q")
    assert done.returncode == 0, done.stderr
    assert f"To extend it: gagpo train --resume {finished} training.iterations=4" in done.stdout
    assert re.search(r"^report \d+:\d\d after the run was resumed", done.stdout, re.MULTILINE)
    assert "first point of the curve" not in done.stdout


def test_two_runs_are_one_table_with_a_paired_test(inside, finished, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(finished, other)
    done = inside("report", f"one={finished}", f"two={other}")
    assert done.returncode == 0, done.stderr
    (head,) = [line for line in done.stdout.splitlines() if "after %" in line]
    assert "difference" in head and "McNemar" in done.stdout
    assert max(len(line) for line in done.stdout.splitlines() if not line.startswith("/")) <= 100
    done = inside("report", f"one={finished}", f"two={other}", "--latex")
    printed = [line for line in done.stdout.splitlines() if not line.startswith("/")]
    assert printed[0] == r"\begin{table}" and printed[-1] == r"\end{table}", done.stdout
    assert any(line.startswith(r"\begin{tabular}{lrrr") for line in printed) and "hash" in printed[2]


WITHOUT_JSON = {"openenv", "serve", "view"}
"""What prints no results: a file, or what goes on until it is ended."""


def test_every_command_that_prints_results_has_json():
    from gagpo.cli.examples import EXAMPLES
    from gagpo.cli.main import app

    command = typer.main.get_command(app)
    for name in EXAMPLES.keys() - WITHOUT_JSON:
        results = command
        for segment in name.split():
            results = results.commands[segment]
        assert "as_json" in {param.name for param in results.params}, name
