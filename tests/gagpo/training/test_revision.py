"""A run keeps the commit of its hub model from the first iteration to the last; the hub is a local folder."""

import json
import shutil

import pytest
from huggingface_hub import constants

from gagpo.eval.models import evaluate
from gagpo.model.loading import ModelError, commit_of, load_model, load_tokenizer
from gagpo.runs import checkpoint as checkpoints
from gagpo.runs.run_folder import RunFolder
from gagpo.settings import load
from gagpo.training.trainer import Trainer, train
from tests.rejections import rejects

OLD, NEW = "a" * 40, "b" * 40
NAME = "somebody/corridor-model"


@pytest.fixture
def hub(tmp_path, warm_model, monkeypatch):
    """A local cache with two commits of a model, ``main`` at the older; what moves ``main`` to the newer."""
    repository = tmp_path / "hub" / f"models--{NAME.replace('/', '--')}"
    for commit in (OLD, NEW):
        shutil.copytree(warm_model, repository / "snapshots" / commit)
        (repository / "snapshots" / commit / "manifest.json").unlink(missing_ok=True)
    config = repository / "snapshots" / NEW / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "rms_norm_eps": 0.5}))
    (repository / "refs").mkdir()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)

    def move(commit):
        (repository / "refs" / "main").write_text(commit)

    move(OLD)
    return move


def test_a_name_stands_for_a_commit(hub, warm_model):
    assert commit_of(NAME) == OLD and commit_of(NAME, NEW) == NEW
    assert load_model(NAME).config.rms_norm_eps != 0.5 == load_model(NAME, revision=NEW).config.rms_norm_eps
    assert load_tokenizer(NAME, NEW).chat_template
    assert commit_of(warm_model) is None
    with rejects(ModelError, "'v2'", key="revision"):
        commit_of(warm_model, "v2")
    with rejects(ModelError, "somebody/corridor-model"):
        commit_of(NAME, "c" * 40)


def test_a_run_goes_on_with_the_commit_it_began_with(hub, corridor, tmp_path):
    config = corridor(
        model=NAME,
        algorithm={"preset": "gagpo", "kl": {"coefficient": 0.01}},
        training={"iterations": 2},
        evaluation={"before": False, "tasks": 1},
    )
    folder = RunFolder.new(tmp_path / "run", load(config, ["training.iterations=1"]))
    train(folder, quiet=True)
    recorded = json.loads((folder.path / "versions.json").read_text())
    assert recorded["model_commit"] == OLD and recorded["torch"]
    hub(NEW)
    again = RunFolder.open(folder.path)
    again.change(["training.iterations=2"])
    trainer = Trainer(again, quiet=True)
    assert trainer.learner.updater.networks.reference.config.rms_norm_eps != 0.5
    assert RunFolder.open(folder.path).commit == OLD
    other = RunFolder.create(tmp_path / "other", load(config, [f"revision={NEW}"]))
    assert Trainer(other, quiet=True).learner.model.config.rms_norm_eps == 0.5
    assert json.loads((other.path / "versions.json").read_text())["model_commit"] == NEW


def test_an_adapter_names_the_commit_of_its_base(hub, corridor, tmp_path):
    config = corridor(
        model=NAME, lora={"rank": 2}, training={"iterations": 1}, evaluation={"before": False, "tasks": 1}
    )
    folder = RunFolder.create(tmp_path / "run", load(config))
    train(folder, quiet=True)
    base = checkpoints.latest(folder.path / "checkpoints").path / "model" / "base.json"
    assert json.loads(base.read_text())["revision"] == OLD


def test_an_evaluation_names_the_commit(hub, corridor):
    config = corridor(model=NAME, revision=NEW)
    assert evaluate(NAME, like=config, tasks=1, workers=0, quiet=True).model == f"{NAME}@{NEW[:12]}"
    assert evaluate(NAME, like=config, revision=OLD, tasks=1, workers=0, quiet=True).model == f"{NAME}@{OLD[:12]}"


def test_code_of_a_models_own_is_refused_by_a_run_unless_asked_for(corridor, warm_model, tmp_path):
    folder = tmp_path / "own"
    shutil.copytree(warm_model, folder)
    (folder / "manifest.json").unlink(missing_ok=True)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "auto_map": {"AutoModelForCausalLM": "own.Model"}}))
    (folder / "own.py").write_text(
        f"from pathlib import Path\nfrom transformers import LlamaForCausalLM\nPath({str(folder / 'ran')!r}).touch()\n"
        "class Model(LlamaForCausalLM):\n    pass\n"
    )
    settings = corridor(model=str(folder))
    with rejects(ModelError, key="trust_remote_code", advice="trust_remote_code=true") as caught:
        Trainer(RunFolder.new(tmp_path / "run", load(settings)), quiet=True)
    assert "\n" not in str(caught.value) and not (folder / "ran").exists()
    trainer = Trainer(RunFolder.new(tmp_path / "run", load(settings, ["trust_remote_code=true"])), quiet=True)
    assert type(trainer.learner.model).__name__ == "Model" and (folder / "ran").exists()
