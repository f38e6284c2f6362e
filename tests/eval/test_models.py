"""Measuring whatever can act, on whatever somebody has."""

import shutil
from pathlib import Path

import pytest
import yaml

from gagpo.base.errors import InvalidArgument
from gagpo.envs.alfworld.games.folder import NoGames
from gagpo.envs.alfworld.games.generate import generate
from gagpo.eval.models import evaluate
from gagpo.eval.trust import UntrustedCode
from gagpo.settings import SettingsError
from tests.gagpo.conftest import CORRIDOR
from tests.rejections import rejects


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of two iterations, sampled in float32."""
    from gagpo.runs.run_folder import RunFolder
    from gagpo.settings import load
    from gagpo.sft.run import sft
    from gagpo.training.trainer import train

    folder = tmp_path_factory.mktemp("finished")
    config = folder / "run.yaml"
    engine = {"engine": {"dtype": "float32"}, "training": {**CORRIDOR["training"], "dtype": "float32"}}
    config.write_text(yaml.safe_dump({**CORRIDOR, **engine, "model": str(folder / "warm")}))
    sft(load(config), quiet=True)
    created = RunFolder.create(folder / "run", load(config))
    train(created, quiet=True)
    return created.path


def test_whoever_has_one_split_can_be_measured_on_it(tmp_path: Path) -> None:
    """The released training games are many: to be measured on another split nobody needs them, or waits for them."""
    generate(counts={"train": 0, "valid_unseen": 2}, root=tmp_path, splits=("valid_unseen",))
    played = {"environment": "gagpo/ALFWorld-v0", "kwargs": {"games": str(tmp_path)}, "workers": 1, "quiet": True}
    for split in ("valid_unseen", None):
        result = evaluate("expert", split=split, **played)
        assert (result.successes, result.task_set.split) == (2, "valid_unseen")
    with rejects(NoGames, "valid_seen", key="games"):
        evaluate("expert", split="valid_seen", **played)
    with rejects(InvalidArgument, "'tset'", key="split"):
        evaluate("expert", split="tset", **{**played, "kwargs": {"counts": {"train": 1}}})


def test_an_evaluation_takes_the_overrides_of_a_run(finished_run: Path, tmp_path: Path) -> None:
    usual = {"workers": 0, "quiet": True, "temperature": 0.0}
    results = [
        evaluate(str(finished_run), **usual),
        evaluate(str(finished_run), overrides=["engine.dtype=bfloat16", "environment.kwargs.max_turns=3"], **usual),
    ]
    assert [result.task_set.conditions["dtype"] for result in results] == ["float32", "bfloat16"]
    assert [result.task_set.kwargs["max_turns"] for result in results] == [16, 3]
    model = str(finished_run / "checkpoints" / "iteration-000002" / "model")
    environment = {"environment": CORRIDOR["environment"]["id"], "tasks": 1, "max_tokens": 3}
    plain = evaluate(model, overrides=["engine.dtype=bfloat16"], **environment, **usual)
    assert plain.task_set.conditions["dtype"] == "bfloat16"
    for name, override, advice in (
        (model, "evaluation.tasks=3", "--like CONFIG"),
        ("random", "engine.dtype=bfloat16", "--like CONFIG"),
        (model, "engine.dtyp=bfloat16", "engine.dtype"),
        (str(finished_run), "engine.dtyp=bfloat16", "engine.dtype"),
    ):
        with rejects(SettingsError, override.partition("=")[0], advice=advice):
            evaluate(name, overrides=[override], **environment, **usual)


def test_the_engine_of_a_config_counts_more_than_that_of_the_run(finished_run: Path, tmp_path: Path) -> None:
    """It was dropped without a word."""
    usual = {"workers": 0, "quiet": True, "tasks": 1}
    config = tmp_path / "mine.yaml"
    for engine, dtype in (({"engine": {"dtype": "bfloat16"}}, "bfloat16"), ({}, "float32")):
        config.write_text(yaml.safe_dump({**CORRIDOR, "model": "unused", **engine}))
        result = evaluate(str(finished_run), like=config, **usual)
        assert result.task_set.conditions["dtype"] == dtype
    with rejects(UntrustedCode, "evil:Engine", advice="--trust-remote-code"):
        values = yaml.safe_load((finished_run / "config.yaml").read_text())
        run = tmp_path / "run"
        shutil.copytree(finished_run, run)
        (run / "config.yaml").write_text(yaml.safe_dump({**values, "engine": {"name": "evil:Engine"}}))
        evaluate(str(run), overrides=["engine.dtype=float32"], **usual)
