"""Held-out training tasks are refused where the model was trained on them."""

import pytest

from gagpo.agents.setup import make_env
from gagpo.base.errors import InvalidArgument
from gagpo.envs.alfworld.games.generate import default_root, generate
from gagpo.eval.held_out import require_held_out
from gagpo.eval.models import evaluate
from gagpo.runs.run_folder import RunFolder
from gagpo.settings import RunSettings
from gagpo.training.evaluation import panels_of
from tests.rejections import rejects

ALFWORLD = "gagpo/ALFWorld-v0"
COUNTS = {"train": 8, "valid_seen": 0, "valid_unseen": 0}


@pytest.fixture(scope="module", autouse=True)
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GAGPO_DATA", str(folder))
        generate(counts=COUNTS, root=default_root("small", 0))
        yield folder


def settings(*environments):
    segments = [
        {
            "name": f"part{number}",
            "id": ALFWORLD,
            "kwargs": {"counts": COUNTS, **kwargs},
            "evaluation": {"splits": splits},
        }
        for number, (kwargs, splits) in enumerate(environments)
    ]
    values = {"name": "run", "model": "starter:alfworld", "algorithm": {"preset": "gagpo"}}
    if len(segments) > 1:
        return RunSettings.model_validate({**values, "environments": segments})
    environment = {key: segments[0][key] for key in ("id", "kwargs")}
    return RunSettings.model_validate({**values, "environment": environment, "evaluation": segments[0]["evaluation"]})


def held_out(fraction):
    return make_env(ALFWORLD, {"counts": COUNTS, "held_out": fraction}).tasks("train_dev")


def test_the_fraction_of_the_run_is_fine_and_another_is_not():
    require_held_out(held_out(0.3), ALFWORLD, settings(({"held_out": 0.3}, [])))
    require_held_out(held_out(0.2), ALFWORLD, settings(({"held_out": 0.3}, [])))  # a part of what is held out
    for fraction in (0, 0.3):
        with rejects(InvalidArgument, "'run'", f"held_out={fraction}", advice="held_out"):
            require_held_out(held_out(0.8), ALFWORLD, settings(({"held_out": fraction}, [])))


def test_other_games_and_other_splits_are_fine():
    require_held_out(held_out(0.8), ALFWORLD, settings(({"size": "full", "seed": 3, "counts": {"train": 2}}, [])))
    require_held_out(held_out(0.8), "gagpo/Math-v0", settings(({}, [])))
    require_held_out(make_env(ALFWORLD, {"counts": COUNTS}).tasks("train"), ALFWORLD, settings(({}, [])))


def test_a_run_is_not_measured_on_what_another_of_its_environments_trains_on():
    environments = {
        "part0": make_env(ALFWORLD, {"counts": COUNTS, "held_out": 0.4}),
        "part1": make_env(ALFWORLD, {"counts": COUNTS}),
    }
    divided = settings(({"held_out": 0.4}, ["train_dev"]), ({"held_out": 0.4}, []))
    assert list(panels_of(divided, environments | {"part1": environments["part0"]}).final) == ["part0.train_dev"]
    with rejects(InvalidArgument, "train_dev", "held_out=0", "'run'"):
        panels_of(settings(({"held_out": 0.4}, ["train_dev"]), ({}, [])), environments)


def test_a_run_is_not_evaluated_on_games_it_was_trained_on(tmp_path):
    RunFolder.create(tmp_path / "run", settings(({}, ["train"])))
    with rejects(InvalidArgument, "'run'"):
        evaluate(str(tmp_path / "run"), split="train_dev", kwargs={"held_out": 0.5}, quiet=True, workers=0)
