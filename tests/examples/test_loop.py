"""The loop in one file trains exactly as the trainer does."""

import importlib.util
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import gagpo

LOOP = Path(__file__).parents[2] / "examples" / "loop.py"


@pytest.fixture
def loop(monkeypatch):
    spec = importlib.util.spec_from_file_location("loop", LOOP)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "TASKS", {**module.TASKS, "counts": {"train": 24, "valid_seen": 6, "valid_unseen": 6}})
    monkeypatch.setattr(module, "GROUPS", 4)
    monkeypatch.setattr(module, "GROUP_SIZE", 4)
    return module


@pytest.mark.slow
def test_two_iterations_give_the_trainers_weights(loop, tmp_path, capsys):
    torch.set_num_threads(1)
    model = loop.main(iterations=2)
    printed = capsys.readouterr().out
    assert "iteration 2: success" in printed and "valid_unseen: " in printed
    run = gagpo.train(
        "alfworld-quickstart",
        "environment.kwargs.counts={train: 24, valid_seen: 6, valid_unseen: 6}",
        "rollout.tasks=4",
        "rollout.group_size=4",
        "training.iterations=2",
        "training.dtype=float32",
        "training.target_kl=null",
        "optimizer.scale_by_groups=false",
        "evaluation.splits=[]",
        "trackers=[]",
        runs=tmp_path,
        quiet=True,
    )
    weights = load_file(Path(run.folder) / "checkpoints" / "iteration-000002" / "model" / "model.safetensors")
    parameters = dict(model.named_parameters())
    assert weights and all(torch.equal(parameters[name], tensor) for name, tensor in weights.items())


def test_the_example_stays_short():
    assert len(LOOP.read_text(encoding="utf-8").splitlines()) <= 160
