"""Test tasks are evaluated before and after training; during it, those of a validation split are."""

import pytest

from gagpo.agents.setup import make_env
from gagpo.eval.runs import load_run
from gagpo.eval.study import row_of
from gagpo.runs.run_folder import RunFolder
from gagpo.settings import load
from gagpo.training.evaluation import panels_of
from gagpo.training.trainer import train

CHOSEN = "tests.gagpo.training.split_envs:gagpo-test/Chosen-v0"
EMPTY = "tests.gagpo.training.split_envs:gagpo-test/Empty-v0"
PLAIN = "gagpo.envs.testing:gagpo-test/Corridor-v0"


def chosen(settings):
    environments = {env.name: make_env(env.environment.id, env.environment.kwargs) for env in settings.all_environments}
    return {name: len(tasks) for name, (_, tasks) in panels_of(settings, environments).validation.items()}


@pytest.mark.parametrize(
    ("env", "overrides", "panels"),
    [
        (CHOSEN, [], {"validation": 2}),
        (CHOSEN, ["evaluation.splits=[test, validation]"], {"validation": 2}),
        (CHOSEN, ["evaluation.splits=[validation]"], {"validation": 2}),
        (CHOSEN, ["evaluation.tasks=1"], {"validation": 1}),
        (CHOSEN, ["environment.split=validation"], {"test": 4}),  # what is trained on shows nothing
        (CHOSEN, ["evaluation.every=0"], {}),
        (CHOSEN, ["evaluation.splits=[]"], {}),
        (EMPTY, [], {"test": 4}),
        (PLAIN, [], {"test": 4}),
        (PLAIN, ["evaluation.splits=[test, train]"], {"test": 4, "train": 8}),
    ],
)
def test_which_split_is_evaluated_during_training(corridor, env, overrides, panels):
    config = corridor(environment={"id": env}, evaluation={"every": 1})
    assert chosen(load(config, overrides)) == panels


def test_several_environments_each_choose_theirs(corridor):
    rows = [{"name": "a", "id": CHOSEN}, {"name": "b", "id": PLAIN}]
    config = corridor(environment=None, environments=rows, evaluation={"every": 1})
    assert chosen(load(config)) == {"a.validation": 2, "b.test": 4}


def test_shipped_configs_do_not_look_at_test_tasks_during_training():
    for name, split in (("alfworld-quickstart", "valid_seen"), ("math-small", "validation")):
        settings = load(name, ["evaluation.tasks=2"])
        assert chosen(settings) == {split: 2}


def test_a_run_has_its_test_result_from_its_ends_alone(corridor, tmp_path):
    config = corridor(environment={"id": CHOSEN}, evaluation={"every": 1}, training={"iterations": 3})
    folder = RunFolder.create(tmp_path / "run-seed1", load(config))
    train(folder, quiet=True)
    evals = folder.path / "evals"
    during = {"iteration-0001-validation", "iteration-0002-validation"}
    assert {path.stem for path in evals.iterdir()} == {"before-test", "after-test", "average-test"} | during
    assert folder.finished
    for number in (1, 2):  # a name that comes before that of the test split
        (evals / f"iteration-000{number}-validation.json").rename(evals / f"iteration-000{number}-dev.json")
    run = load_run(folder.path)
    assert run.splits() == ["test", "dev"] and run.last().label == "after-test"
    assert row_of("a", run).split == "test"
