"""A run's default name says what differs from its config, so that two runs of one config need no names."""

import pytest

from gagpo.runs.run_folder import RunFolder
from gagpo.settings import SettingsError, load
from gagpo.settings.naming import LONGEST_NAME, join_words, with_run_name, word_of
from gagpo.training.launch import new_run
from tests.rejections import rejects

QUICK = "alfworld-quickstart"


def name_of(*overrides):
    return load(QUICK, with_run_name(QUICK, overrides)).name


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        ([], QUICK),
        (["seed=2"], f"{QUICK}-seed2"),
        (["seed=1"], QUICK),  # what the config says anyway
        (["seed=2", "seed=1"], QUICK),
        (["seed=2", "algorithm=grpo"], f"{QUICK}-grpo-seed2"),
        (["algorithm.credit.lam=0.5"], f"{QUICK}-lam0.5"),
        (["rollout.tasks=6"], f"{QUICK}-rollout-tasks6"),
        (["training.iterations=2", "threads=2", "rollout.workers=1"], QUICK),  # no other run is learned
        (["evaluation.tasks=6", "trackers=[]"], QUICK),
        (["model=runs/base/checkpoints/best"], f"{QUICK}-best"),
        (["reward=success"], f"{QUICK}-reward-success"),
        (["training.ema=false"], f"{QUICK}-ema-false"),
        (["environment.kwargs.task_types=[pick, look]"], f"{QUICK}-task_types-pick-look"),
        (["seed=2", "name=mine"], "mine"),
    ],
)
def test_a_run_is_named_by_what_differs_from_its_config(overrides, name):
    assert name_of(*overrides) == name


def test_long_and_odd_values_make_plain_names_that_differ():
    tokens = {word_of("environment.kwargs.path", f"/some/where/{'x' * 60}/{number}") for number in range(3)}
    assert len(tokens) == 3 and all("/" not in word and len(word) < 50 for word in tokens)
    odd = word_of("environment.kwargs.path", "../..\n\0日本")
    assert odd.isascii() and odd.isprintable() and "/" not in odd
    long = join_words("quickstart", {f"key{number}": "w" * 30 for number in range(9)} | {"seed": "seed7"})
    assert len(long) <= LONGEST_NAME and long.endswith("-seed7")


def test_a_config_that_needs_its_overrides_is_named_by_them(tmp_path):
    config = tmp_path / "half.yaml"
    text = "{name: half, model: to/come, algorithm: {preset: gagpo}, environment: {id: gagpo/Math-v0}, seed: bad}"
    config.write_text(text)
    assert with_run_name(config, ["seed=3"])[-1] == "name=half-seed3"
    with rejects(SettingsError, key="seed"):
        with_run_name(config, [])


def test_a_second_run_gets_another_folder_and_a_repeated_one_is_told_what_to_type(corridor, tmp_path):
    config, runs = corridor(), tmp_path / "runs"
    for overrides, name in (([], "corridor"), (["seed=2"], "corridor-seed2"), (["seed=3"], "corridor-seed3")):
        folder = new_run(config, overrides, runs)
        with folder.locked():
            folder.write()
        assert folder.path == runs / name and RunFolder.open(folder.path).settings.name == name
    (runs / "corridor-2").mkdir()
    with rejects(SettingsError, "name=corridor-3", where=runs / "corridor", advice=f"--resume {runs / 'corridor'}`"):
        new_run(config, [], runs)
    finished = RunFolder.create(runs / "done", load(config, ["training.iterations=4"]))
    for stage in ("after", "average"):
        finished.evaluation(f"{stage}-test").write_text("{}")
    with rejects(SettingsError, "4 iterations", where="done", advice="training.iterations=8`"):
        new_run(config, ["name=done"], runs)
