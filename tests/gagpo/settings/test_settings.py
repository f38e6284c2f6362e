"""Settings: types, overrides, and errors with the nearest valid key."""

from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from gagpo.settings import SettingsError, dump, load, load_stored
from tests.rejections import rejects

BOMB = "".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 10)}]\n" for a, b in pairwise("abcdefg"))
MINIMAL = {"name": "x", "model": "m", "environment": {"id": "gagpo/ALFWorld-v0"}, "algorithm": "gagpo"}


@pytest.fixture
def config(tmp_path):
    def write(**changes):
        path = tmp_path / "run.yaml"
        path.write_text(yaml.safe_dump({**MINIMAL, **changes}))
        return path

    return write


def test_every_config_of_the_repository_is_valid():
    configs = list(Path("configs").glob("*.yaml"))
    assert configs
    for path in configs:
        load(path)


@pytest.mark.parametrize("read", [load, load_stored])
@pytest.mark.parametrize("override", ["rollout.taks=3", "rollout.tasks=few"])
def test_a_wrong_override_is_named_and_a_wrong_file_too(config, read, override):
    path = config()
    with rejects(SettingsError, key=override.partition("=")[0], where=f"override {override!r}"):
        read(path, ["seed=2", override])
    path = config(rollout={"tasks": "few"})
    with rejects(SettingsError, key="rollout.tasks", where=path.name):
        read(path, ["seed=2"])


def test_resolved_settings_are_read_back_as_they_were(config, tmp_path):
    settings = load(config(), ["algorithm.gate=sapo", "algorithm.credit.lam=0.5", "optimizer.learning_rate=1e-4"])
    again = tmp_path / "again.yaml"
    again.write_text(dump(settings))
    assert load(again) == settings
    assert settings.optimizer.learning_rate == 1e-4 and settings.algorithm.credit.lam == 0.5


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["rollout.taks=3"], "unknown key 'rollout.taks'; the nearest valid key is 'rollout.tasks'"),
        (["nmae=3"], "the nearest valid key is 'name'"),
        (["rollout.tasks=many"], "rollout.tasks"),
        (["rollout.tasks=0"], "rollout.tasks must be at least 1 (got 0)"),
        (["context.history=some"], "context.history"),
        (["context.prompt=shouting"], "unknown prompt 'shouting'"),
        (["context.style=tags"], "style is renamed to context.prompt; write prompt: tags"),
        (["algorithm=gagop"], "nearest: gagpo"),
        (["algorithm.gate=clipp"], "algorithm.gate: there is no 'clipp'; nearest: clip"),
        (["algorithm.lmbda=1"], "unknown key 'algorithm.lmbda'"),
        (["rollout"], "look like section.key=value"),
        (["rollout.workers=many"], "many': rollout.workers must be 'auto' or an integer (got 'many')"),
        (["context.prompt.action=[1]"], "[1]': context.prompt.action must be text or a mapping"),
        (
            ["lora.targets=[[1]]"],
            "lora.targets must be text; override 'lora.targets=[[1]]': lora.targets.0 must be text",
        ),
        (["context.template.date=[1]"], "[1]': context.template.date must be text or an integer or a number or true"),
        (["name.first=3"], "holds a single value"),
        (["rollout.tasks=[1"], "not YAML"),
        (["name=../up"], "one plain folder name"),
        (["engine=ollama"], "engine"),
        (["lam=0.5"], "unknown key 'lam'; the nearest valid key is 'algorithm.credit.lam'"),
        (["credit.lamda=0.5"], "unknown key 'credit'; the nearest valid key is 'algorithm.credit'"),
        (["algorithm.credit.lamb=3"], "credit gagpo: unknown option 'lamb'; nearest: lam"),
        (["algorithm.gate.negative=1"], "'algorithm.gate.negative' belongs to another choice than the one in 'algo"),
        (["algorithm.gate.lo=1"], "unknown key 'algorithm.gate.lo'; the nearest valid key is 'algorithm.gate.low'"),
        (["environment.kwargs.x=.inf"], "the value inf of x is not a finite number"),
        (["environment.kwargs.x=[.nan]"], "the value nan of x is not a finite number"),
        (["environment.kwargs.x=!!set {a}"], "is of type set"),
        (["environment.kwargs={1: 2}"], "the key 1 is not text; quote it"),
        (["optimizer.learning_rate=.inf"], "finite number"),
        (["rollout.temperature=.inf"], "finite number"),
        (["threads=100000"], "threads"),
        (["optimizer.betas=[1.5,-1]"], "optimizer.betas: each must be in [0, 1), got [1.5, -1.0]"),
        (["optimizer.learning_rate=1e38"], "optimizer.learning_rate must be at most 10 (got 1e+38)"),
        (["optimizer.learning_rate=fast"], "optimizer.learning_rate must be a number (got 'fast')"),
        (["training.ema=maybe"], "training.ema must be true or false (got 'maybe')"),
        (["reward=x"], "reward must be 'environment' or 'success' (got 'x')"),
        (["rollout=3"], "rollout must be a mapping (got 3)"),
        (["lora.rank=1e9"], "lora.rank must be at most 16384"),
        (["device=meta"], "device must be one of cpu, cuda"),
        (["context.history=-5"], "history must be full or a number of turns, got -5"),
        (["trackers=[wandbb]"], "there is no tracker 'wandbb'; nearest: wandb"),
        (["rollout.group_size=1e8"], "1,600,000,000 episodes, all held in memory"),
        (["engine.options={scale: .nan}"], "the value nan of scale is not a finite number"),
        (["seed=" + "9" * 5000], "a number that is too long"),
        (["seed=4294967296"], "seed"),
        (["name=" + "x" * 300], "one plain folder name"),
        (["rollout.tasks=1:30"], "rollout.tasks must be an integer (got '1:30')"),
        (["environment.kwargs={a: 1, a: 2}"], "the key a is written twice"),
    ],
)
def test_wrong_overrides_are_explained(config, overrides, said):
    with pytest.raises(SettingsError) as caught:
        load(config(), overrides)
    assert said in str(caught.value) and "\n" not in str(caught.value) and len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("override", "other"),
    [("rollout.taks=3", "seed=2"), ("rollout.ahead=9", "seed=2"), ("rollout={tasks: 0}", "rollout.group_size=3")],
)
def test_the_override_that_is_wrong_is_named_and_no_file(override, other):
    with pytest.raises(SettingsError) as caught:
        load("alfworld-quickstart", [override, other])
    assert str(caught.value).startswith(f"override '{override}': ") and ".yaml" not in str(caught.value)


def test_what_is_wrong_in_a_file_is_said_of_the_file(config):
    path = config(rollout={"taks": 3})
    with pytest.raises(SettingsError) as caught:
        load(path, ["rollout.group_size=3"])
    assert str(caught.value).startswith(f"{path}: unknown key 'rollout.taks'")


def test_values_mean_what_yaml_1_2_says(config):
    arguments = "environment.kwargs={a: yes, b: 010, c: 1:30, d: 2020-01-01, e: 1e-3, f: 0o17, g: Off}"
    plain = {"a": "yes", "b": 10, "c": "1:30", "d": "2020-01-01", "e": 0.001, "f": 15, "g": "Off"}
    settings = load(config(), [arguments])
    assert settings.environment.kwargs == plain
    again = config().with_name("again.yaml")
    again.write_text(dump(settings))
    assert load(again) == settings


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("name: [", ("YAML",)),
        ("- a list", ("keys", "list")),
        ("name: x", ("'model'", "missing")),
        ("rollout.tasks: 3", ("'rollout.tasks'", "rollout: {tasks: ...}")),
        ("model: m\na.b: 3", ("'a.b'",)),
        ("\x00\x01", ("YAML",)),
        ("[" * 5000 + "]" * 5000, ("YAML", "nested")),
        ("name: x\nmodel: m\nname: y", ("line 3", "name", "twice")),
        ("name: &a [*a]", ("alias",)),
        ("seed: " + "9" * 5000, ("number", "too long")),
        ('name: "\\ud800"', ("half a character",)),
        ('name: "\\U99999999"', ("escape",)),
        ("name: !!python/object/apply:os.abort []", ("constructor",)),
        ("a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + BOMB, ("100,000 values",)),
        ("1: x", ("key 1", "text")),
    ],
)
def test_wrong_files_are_explained(tmp_path, text, names):
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with rejects(SettingsError, "run.yaml", *names):
        load(path)


def test_a_missing_file_names_a_near_one():
    with rejects(SettingsError, advice="alfworld-small"):
        load(Path("configs/alfworld-smal.yaml"))


@pytest.mark.parametrize("controller", ["agpo: {}", "variance_filter: {}"])
def test_what_needs_the_whole_batch_is_refused_where_groups_come_one_by_one(controller):
    """A filter that is shown one group keeps it: it would filter nothing and say nothing."""
    algorithm = f"algorithm={{preset: grpo, controllers: {{{controller}}}}}"
    with rejects(SettingsError, key="rollout.ahead"):
        load("alfworld-quickstart", [algorithm, "rollout.ahead=1", "rollout.workers=1"])
    load("alfworld-quickstart", [algorithm])


def test_an_option_may_follow_an_engine_that_is_given_by_name(config):
    settings = load(config(), ["engine=vllm", "engine.options.health_timeout=9", "engine.dtype=bfloat16"])
    assert settings.engine.name == "vllm" and settings.engine.dtype == "bfloat16"
    assert settings.engine.options.health_timeout == 9


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("my_confg", "; nearest: FOLDER/my_config.yaml; `gagpo list` shows those that ship"),
        ("my_confg.yaml", "; nearest: FOLDER/my_config.yaml; `gagpo list`"),
        ("zzz.yaml", "zzz.yaml; `gagpo list` shows those that ship"),
    ],
)
def test_a_misspelt_config_names_the_users_own_files(tmp_path, name, message):
    (tmp_path / "my_config.yaml").write_text("")
    with pytest.raises(SettingsError) as error:
        load(tmp_path / name)
    assert message.replace("FOLDER", str(tmp_path)) in str(error.value)


def test_a_folder_is_no_config(tmp_path):
    """The error named the folder itself as the nearest file."""
    with rejects(SettingsError, "is a folder, not a settings file", where=tmp_path):
        load(tmp_path)


def test_a_misspelt_shipped_config_names_the_nearest():
    with rejects(SettingsError, advice="alfworld-quickstart") as error:
        load("alfworld-quikstart")
    assert "webshop-small" not in str(error.value)


@pytest.mark.parametrize("key", [".".join(["a"] * 1500), ".".join(["environment.kwargs", *"b" * 40])])
def test_a_key_of_too_many_parts_is_one_error(key):
    with rejects(SettingsError, "33 parts"):
        load("alfworld-quickstart", [f"{key}=1"])


def test_one_tracker_needs_no_brackets():
    """``trackers=wandb`` was refused for not being a list."""
    assert load("alfworld-quickstart", ["trackers=wandb"]).trackers == ["wandb"]
    with rejects(SettingsError, key="trackers", where="override 'trackers=wandbb'", advice="wandb"):
        load("alfworld-quickstart", ["trackers=wandbb"])
