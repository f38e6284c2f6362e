"""Every command that opens a run of somebody else: nothing that the run names is imported or started."""

import json
import shutil
import sys

import pytest
import yaml

from gagpo.eval.trust import module_in

MODULE = "import pathlib; pathlib.Path({mark!r}).touch(); raise SystemExit('code of the run was imported')\n"
CREDITS = {"options": {"name": "evil:Credit", "weight": 2}, "a name": "evil:Credit"}
EVERYTHING = {"engine": {"name": "evil:Engine"}, "trackers": ["evil:Tracker"], "name": "evil:run"}
ENVIRONMENT = {"id": "evil:Env-v0", "kwargs": {"agent": "evil:play", "spec": "evil:Env"}}


@pytest.fixture
def foreign(finished, tmp_path, monkeypatch):
    """A function that copies a finished run with changed settings into the working directory, where `evil` lies."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.py").write_text(MODULE.format(mark=str(tmp_path / "imported")))
    path = list(sys.path)

    def copied(folder="run", credit=None, **changes):
        run = tmp_path / folder
        shutil.copytree(finished, run)
        settings = yaml.safe_load((run / "config.yaml").read_text()) | changes
        if credit is not None:
            settings["algorithm"] |= {"preset": "", "credit": credit}
        (run / "config.yaml").write_text(yaml.safe_dump(settings))
        for result in (run / "evals").glob("*.json"):
            record = json.loads(result.read_text())
            record["panel"]["environment"] = settings["environment"]["id"]
            result.write_text(json.dumps(record))
        return run

    yield copied
    sys.path[:] = path
    sys.modules.pop("evil", None)
    assert not (tmp_path / "imported").exists()


READING = {
    "view": ["view", "run"],
    "view runs": ["view", "run", "other"],
    "view a folder of runs": ["view", "."],
    "view a file of episodes": ["view", "run/episodes/after-test.jsonl"],
    "view a result": ["view", "run/evals/after-test.json"],
    "report": ["report", "run"],
    "report runs": ["report", "A=run", "B=other", "--curves", "curves.png"],
    "compare": ["compare", "run", "other"],
    "compare results": ["compare", "run/evals/before-test.json", "run/evals/after-test.json"],
    "export": ["export", "run", "exported"],
    "plan": ["plan", "alfworld-quickstart", "--gpu-memory", "80", "--run", "run"],
    "list": ["list", "--runs", "."],
}


@pytest.mark.parametrize("command", READING.values(), ids=READING.keys())
def test_commands_that_read_a_run_import_nothing_of_it(command, inside, foreign):
    for name, credit in (("run", CREDITS["options"]), ("other", CREDITS["a name"])):
        foreign(name, credit, environment=ENVIRONMENT, **EVERYTHING)
    done = inside(*command)
    assert done.returncode == 0, done.stderr


MODELS = {"the run": ["run"], "random": ["random", "--like", "run"], "a server": ["openai:m", "--like", "run"]}


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())
@pytest.mark.parametrize(
    ("environment", "named"),
    [
        (ENVIRONMENT, "the environment 'evil:Env-v0'"),
        ({"id": "evil:Env"}, "the environment 'evil:Env'"),
        ({"id": "gagpo/Program-v0", "kwargs": {"agent": "evil:play", "tasks": "t"}}, "environment.kwargs.agent"),
        (
            {"id": "gagpo/Program-v0", "kwargs": {"command": "python evil.py", "tasks": "t"}},
            "environment.kwargs.command",
        ),
        ({"id": "gagpo/MCP-v0", "kwargs": {"command": "python evil.py", "tasks": "t"}}, "environment.kwargs.command"),
        ({"id": "CartPole-v1", "kwargs": {"spec": "evil:Env"}}, "environment.kwargs.spec"),
        ({"id": "gagpo/Web-v0", "kwargs": {"source": "evil:Source"}}, "environment.kwargs.source"),
        ({"id": "gagpo/Math-v0", "kwargs": {"data": {"hub": ["evil:Rows"]}}}, "environment.kwargs.data"),
    ],
)
def test_eval_asks_for_consent_before_it_runs_code_that_the_run_names(model, environment, named, inside, foreign):
    foreign(environment=environment)
    done = inside("eval", *model, "-q")
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert named in done.stderr and "--trust-remote-code" in done.stderr


def test_eval_asks_for_consent_before_it_loads_an_engine_that_the_run_names(inside, foreign):
    run = foreign(credit=CREDITS["options"], engine={"name": "evil:Engine"})
    for model in (["run"], [next(run.glob("checkpoints/*/model")), "--like", "run"]):
        done = inside("eval", *model, "-q")
        assert done.returncode == 2 and "the engine 'evil:Engine'" in done.stderr
    assert inside("eval", "random", "--like", "run", "-q").returncode == 0  # needs no engine


def test_export_asks_for_consent_before_it_imports_the_environment_of_episodes(inside, foreign):
    foreign(environment=ENVIRONMENT)
    done = inside("export", "run/episodes/after-test.jsonl", "talk.jsonl")
    assert done.returncode == 2 and "the environment 'evil:Env-v0'" in done.stderr
    assert "add --trust-remote-code" in done.stderr and "--env" not in done.stderr


def test_what_the_user_names_is_run(inside, finished, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(finished, tmp_path / "run")
    (tmp_path / "mine.py").write_text(
        "import gymnasium\nfrom gagpo.envs.testing import CorridorEnv\n"
        "gymnasium.register('Mine-v0', 'mine:CorridorEnv', disable_env_checker=True, order_enforce=False)\n"
    )
    settings = (tmp_path / "run" / "config.yaml").read_text()
    (tmp_path / "run" / "config.yaml").write_text(
        settings.replace("gagpo.envs.testing:gagpo-test/Corridor-v0", "mine:Mine-v0")
    )
    monkeypatch.syspath_prepend(tmp_path)
    command = ["eval", "random", "--like", "run", "-q"]
    assert inside(*command).returncode == 2
    for consent in (["--trust-remote-code"], ["--env", "mine:Mine-v0"]):
        done = inside(*command, *consent)
        assert done.returncode == 0, done.stderr
    assert inside("eval", "random", "--like", "run/config.yaml", "-q").returncode == 0  # a config is the user's own


@pytest.mark.parametrize("command", [["train"], ["sft"], ["profile"], ["plan"], ["prompts", "preview"]])
def test_commands_that_take_a_config_take_no_run(command, inside, foreign):
    foreign(credit=CREDITS["a name"])
    done = inside(*command, "run")
    assert done.returncode == 2 and "run: is a run folder" in done.stderr


def test_a_module_is_that_of_a_colon():
    names = (
        "evil:Env-v0",
        "evil.deep:Env",
        "gagpo:evil:Env",
        "gagpo.envs.testing:gagpo-test/Corridor-v0",
        "textarena:X",
    )
    assert [*map(module_in, names)] == ["evil", "evil.deep", "gagpo:evil", "", ""]
