"""Old names in a config are errors that give the new name; a stored run with old names is read as if it had the new."""

import json
import subprocess
import warnings
from pathlib import Path

import pytest
import yaml

from gagpo.agents.engines.registry import engine_options
from gagpo.algorithms import load as load_algorithm
from gagpo.base import renamed
from gagpo.base.errors import InvalidArgument
from gagpo.cli.main import main
from gagpo.credit import CREDITS
from gagpo.envs.arguments import require_arguments
from gagpo.eval.models import evaluate
from gagpo.runs.metrics import read_metrics
from gagpo.runs.run_folder import RunFolder, named
from gagpo.settings import RunSettings, SettingsError, dump, find_config, load, resolve
from gagpo.settings.keys import keys
from tests.folders import needs
from tests.rejections import rejects

MINIMAL = {"name": "x", "model": "m", "environment": {"id": "gagpo/ALFWorld-v0"}, "algorithm": "gagpo"}
ROOT = Path(__file__).parents[3]
NEW_TABLES = (renamed.KEYS, renamed.PRESETS, renamed.CONFIGS, renamed.METRICS)


def nested(key, value):
    *above, last = key.split(".")
    values = {last: value}
    for name in reversed(above):
        values = {name: [values] if name in ("environments", "credits") else values}
    return values


@pytest.fixture
def config(tmp_path):
    def write(**changes):
        path = tmp_path / "run.yaml"
        path.write_text(yaml.safe_dump({**MINIMAL, **changes}))
        return path

    return write


@pytest.mark.parametrize(("old", "new"), renamed.KEYS.items())
def test_an_old_key_is_an_error_that_gives_the_new_one(config, old, new):
    with rejects(SettingsError, repr(new), key=old, where="run.yaml"):
        load(config(**nested(old, 1)))
    if "environments" not in old and ".credits" not in old:
        with rejects(SettingsError, repr(new), key=old, where=f"override '{old}=1'"):
            load(config(), [f"{old}=1"])


def test_every_new_key_exists():
    recorded = set(keys(RunSettings)) | {
        "algorithm.credit.credits.state_key",
        "algorithm.credit.credits.episode_weight",
    }
    recorded |= {"environments.evaluation.episodes_per_task"}  # keys of a section that a row of environments repeats
    assert set(renamed.KEYS.values()) <= recorded


@pytest.mark.parametrize("value", ["ppo_token", {"preset": "ppo_token"}, {"credit": "ppo_token"}])
def test_an_old_preset_is_an_error(config, value):
    with rejects(SettingsError, "=ppo_token", "to ppo", where="run.yaml"):
        load(config(algorithm=value))
    with rejects(InvalidArgument, "'ppo_token'", "'ppo'"):
        load_algorithm("ppo_token")


@pytest.mark.parametrize(("old", "new"), renamed.CONFIGS.items())
def test_an_old_config_is_an_error(old, new):
    for name in (old, f"configs/{old}.yaml"):
        with rejects(SettingsError, repr(old), advice=repr(new)):
            find_config(name)
    assert find_config(new)


@pytest.mark.parametrize(
    ("section", "name"),
    [
        ({"environment": {"id": "gagpo/WebShop-v0", "kwargs": {"shopper": "browsing"}}}, "kwargs.expert_mode"),
        pytest.param(
            {"environment": {"id": "gagpo/MCP-v0", "kwargs": {"call_seconds": 3}}},
            "kwargs.call_timeout",
            marks=needs("envs/mcp"),
        ),
        pytest.param(
            {"environment": {"id": "gagpo/Program-v0", "kwargs": {"seconds": 3}}},
            "kwargs.timeout",
            marks=needs("envs/program"),
        ),
        ({"environment": {"id": "gagpo/ALFWorld-v0", "kwargs": {"expert": "hasty"}}}, "imperfect"),
        ({"engine": {"name": "vllm", "options": {"gpus_each": 2}}}, "engine.options.tensor_parallel_size"),
        ({"algorithm": {"preset": "grpo", "correction": "token"}}, "to tis"),
    ],
)
def test_old_arguments_and_values_are_errors(config, section, name):
    with rejects(SettingsError, "renamed", name, where="run.yaml"):
        load(config(**section))


def test_arguments_of_other_packages_keep_their_names():
    expected = {"environment": {"id": "theirs:Env-v0", "kwargs": {"seconds": 3, "shopper": "knowing", "tasks": [1]}}}
    expected["engine"] = {"name": "theirs:Engine", "options": {"deadline": 3}}
    assert renamed.old_names(expected) == [] and renamed.modernized(expected) == expected


def test_a_run_of_an_earlier_version_is_read_and_resumed(config, tmp_path):
    folder = RunFolder.create(tmp_path / "run", load(config(), ["algorithm=ppo", "rollout.ahead=1"]))
    path = tmp_path / "run" / "config.yaml"
    values = yaml.safe_load(path.read_text())
    for old, new in renamed.KEYS.items():
        section, _, name = new.rpartition(".")
        segment = values
        for step in filter(None, section.split(".")):
            segment = segment.get(step) if isinstance(segment, dict) else None
        if isinstance(segment, dict) and name in segment:
            segment[old.rpartition(".")[2]] = segment.pop(name)
    values["algorithm"] |= {"preset": "ppo_token", "correction": {"name": "token", "cap": 2.0}}
    values["algorithm"]["credit"]["name"] = "ppo_token"
    path.write_text(yaml.safe_dump(values))
    assert {"samples", "lockstep"} <= values["rollout"].keys() and "invalid_penalty" in values
    earlier = RunFolder.open(tmp_path / "run")
    assert earlier.settings == folder.settings == earlier.stored_settings()
    assert dump(resolve(earlier.settings)) == dump(folder.settings)
    earlier.change(["training.max_checkpoints=5"])
    assert RunFolder.open(tmp_path / "run").settings.training.max_checkpoints == 5
    with rejects(SettingsError, "training.max_checkpoints", key="training.keep"):
        earlier.change(["training.keep=5"])
    with rejects(SettingsError, "training.max_checkpoints", key="training.keep"):
        load(tmp_path / "run.yaml", ["training.keep=5"], earlier=True)


def test_old_metrics_are_read_by_their_new_names(tmp_path):
    row = {"iteration": 1, **dict.fromkeys(renamed.METRICS, 0.5), "zero_groups/shop": 0.25, "engine_gap_0": 1.0}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    ((read,), broken) = read_metrics(tmp_path / "metrics.jsonl")
    assert broken == 0 and read["zero_advantage_groups/shop"] == 0.25 and read["engine_gap_0"] == 1.0
    assert all(read[new] == 0.5 for new in renamed.METRICS.values()) and not renamed.METRICS.keys() & read.keys()


def test_an_old_checkpoint_name_is_an_error(tmp_path):
    assert named(tmp_path / "run@ema") == (tmp_path / "run", "ema")
    with rejects(SettingsError, "'ema'", where="run@average"):
        named(tmp_path / "run@average")


UNAMBIGUOUS = (
    *("rollout.samples", "rollout.lockstep", "step_deadline", "reset_deadline", "training.trust_region", "by_groups"),
    *("training.keep", "training.best", "training.turns", "training.average", "training.precision", "max_skipped"),
    *("optimizer.warmup", "optimizer.schedule", "lora.base", "gpus_each", "ranks.deadline", "invalid_penalty"),
    *("evaluation.tries", "credit.key", "trajectory_weight", "sft.base", "sft.mistakes", "sft.model.width"),
    *("ppo_token", "reinforce_baseline", "max_rl", *renamed.CONFIGS, "@average", "has_hasty", "start_seconds"),
    *(name for name in renamed.METRICS if name not in ("coverage", "engine_lost")),
)
HISTORY = (":!CHANGELOG.md", ":!lab/log.md", ":!lab/results", ":!lab/studies")


def test_no_old_name_is_left_in_the_repository():
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout")
    tokens = "|".join(name.replace(".", r"\.") for name in UNAMBIGUOUS)
    command = ["git", "grep", "-nIP", rf"(?<![\w-])({tokens})(?![\w-])", "--", ".", *HISTORY]
    command += [":!gagpo/base/renamed.py", ":!*/registration.py", ":!tests/gagpo/settings/test_renamed.py"]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert process.returncode in (0, 1), process.stderr
    lines = [line for line in process.stdout.splitlines() if "is renamed to" not in line]  # tests of these errors
    assert lines == []


def test_a_value_of_a_renamed_key_names_the_override_too(config):
    shop = {"id": "gagpo/WebShop-v0"}
    override = "override 'environment.kwargs.shopper=knowing'"
    with pytest.raises(SettingsError) as error:
        load(config(environment=shop), ["environment.kwargs.shopper=knowing"])
    assert str(error.value).count(override) == 2
    assert "environment.kwargs.expert_mode=knowing is renamed to oracle" in str(error.value)


@pytest.mark.parametrize(
    ("env_id", "old"),
    [(env_id, old) for env_id in renamed.ARGUMENTS if "/" in env_id for old in renamed.ARGUMENTS[env_id]],
)
def test_an_old_argument_of_an_environment_gives_the_new_one_without_settings(env_id, old):
    with rejects(InvalidArgument, repr(renamed.ARGUMENTS[env_id][old]), key=old, where=env_id):
        require_arguments(env_id, {old: 1})


@pytest.mark.parametrize(
    ("engine", "old"),
    [(name, old) for name in renamed.ARGUMENTS if "/" not in name for old in renamed.ARGUMENTS[name]],
)
def test_an_old_option_of_an_engine_gives_the_new_one_without_settings(engine, old):
    new = renamed.ARGUMENTS[engine][old]
    with rejects(InvalidArgument, repr(new), key=old, where=f"engine {engine}"):
        engine_options(engine, {old: 1})


@pytest.mark.parametrize(("old", "new"), renamed.PRESETS.items())
def test_an_old_credit_gives_the_new_one(old, new):
    with rejects(InvalidArgument, repr(old), repr(new)):
        CREDITS.find(old)


def test_an_old_option_of_evaluate_gives_the_new_one():
    with rejects(InvalidArgument, "episodes_per_task", key="tries"):
        evaluate("random", environment="gagpo/ALFWorld-v0", tries=2)


@pytest.mark.parametrize(
    ("command", "advice"),
    [
        (["sft", "alfworld-small", "--again"], "--again is renamed to --overwrite"),
        (["train", "alfworld-small", "--samples", "3"], "settings are given without dashes: rollout.group_size=3"),
        (["train", "alfworld-small", "--trust-region=3"], "settings are given without dashes: training.target_kl=3"),
    ],
)
def test_an_old_option_of_the_command_line_gives_the_new_name_alone(command, advice, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["gagpo", *command])
    with pytest.raises(SystemExit):
        main()
    assert [line for line in capsys.readouterr().err.splitlines() if line.startswith("gagpo:")] == [f"gagpo: {advice}"]


@pytest.mark.parametrize("key", renamed.REMOVED)
def test_a_removed_key_is_a_warning_in_a_config_and_silent_in_a_run(config, tmp_path, key):
    with pytest.warns(FutureWarning, match=f"training.{key} is removed and has no effect: 3 such steps"):
        settings = load(config(training={key: 5}))
    with pytest.warns(FutureWarning, match=f"training.{key} is removed"):
        assert load(config(), [f"training.{key}=5"]) == settings == load(config())
    folder = RunFolder.create(tmp_path / "run", settings)
    path = folder.path / "config.yaml"
    values = yaml.safe_load(path.read_text())
    values["training"][key] = 3
    path.write_text(yaml.safe_dump(values))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert RunFolder.open(folder.path).settings == settings
