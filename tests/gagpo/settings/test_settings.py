"""Settings: one YAML, typed; what is wrong is named with the nearest thing that is right."""

from pathlib import Path

import pytest
import yaml

from gagpo.settings import SettingsError, dump, load

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
        (["rollout.tasks=0"], "greater than or equal to 1"),
        (["context.history=some"], "context.history"),
        (["context.style=shouting"], "unknown style 'shouting'"),
        (["algorithm=gagop"], "nearest: gagpo"),
        (["algorithm.lmbda=1"], "unknown key 'algorithm.lmbda'"),
        (["rollout"], "looks like section.key=value"),
        (["name.first=3"], "holds a single value"),
        (["rollout.tasks=[1"], "not YAML"),
        (["name=../up"], "one plain folder name"),
        (["engine=ollama"], "engine"),
        (["lam=0.5"], "unknown key 'lam'; the nearest valid key is 'algorithm.credit.lam'"),
        (["credit.lamda=0.5"], "unknown key 'credit'; the nearest valid key is 'algorithm.credit'"),
        (["algorithm.credit.lamb=3"], "credit gagpo has no option 'lamb'; nearest: lam"),
        (["algorithm.gate.lo=1"], "unknown key 'algorithm.gate.lo'; the nearest valid key is 'algorithm.gate.low'"),
        (["environment.kwargs.x=.inf"], "the value inf of x is not a finite number"),
        (["environment.kwargs.x=[.nan]"], "the value nan of x is not a finite number"),
        (["environment.kwargs.x=2020-01-01"], "is of type date; quote it"),
        (["environment.kwargs={1: 2}"], "the key 1 is not text; quote it"),
        (["optimizer.learning_rate=.inf"], "finite number"),
        (["rollout.temperature=.inf"], "finite number"),
        (["threads=100000"], "threads"),
    ],
)
def test_wrong_overrides_are_explained(config, overrides, said):
    with pytest.raises(SettingsError) as caught:
        load(config(), overrides)
    assert said in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name: [", "not a YAML file"),
        ("- a list", "must hold keys and values"),
        ("name: x", "key 'model' is missing"),
        ("\x00\x01", "not a YAML file"),
        ("[" * 5000, "not a YAML file"),
    ],
)
def test_wrong_files_are_explained(tmp_path, text, said):
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with pytest.raises(SettingsError, match=said):
        load(path)


def test_a_missing_file_names_a_near_one():
    with pytest.raises(SettingsError, match=r"nearest: alfworld-small"):
        load(Path("configs/alfworld-smal.yaml"))
