"""What is no matrix does not decay, and moments of eight bits do as well as those of 32."""

import copy

import pytest
import torch

from gagpo.learning import optimizer as optimizers
from gagpo.learning.optimizer import make_optimizer, moment_bytes, parameter_groups, require_optimizer
from gagpo.settings import OptimizerSettings, SettingsError, load
from gagpo.training import checkpoint as checkpoints
from gagpo.training.run_folder import RunFolder
from gagpo.training.trainer import Trainer, train


def test_gains_and_biases_do_not_decay(tiny):
    model, _ = tiny
    decayed, spared = parameter_groups(model, OptimizerSettings(weight_decay=0.1))
    assert spared["weight_decay"] == 0.0 and "weight_decay" not in decayed
    assert {p.ndim for p in spared["params"]} == {1} and min(p.ndim for p in decayed["params"]) == 2
    assert len(decayed["params"]) + len(spared["params"]) == len(list(model.parameters()))
    (alone,) = parameter_groups(model, OptimizerSettings())
    assert len(alone["params"]) == len(list(model.parameters()))


class Wide(torch.nn.Module):
    """An embedding, a matrix of 8,192 numbers and one too small for 8 bits."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed = torch.nn.Embedding(100, 64)
        self.wide, self.small = torch.nn.Linear(64, 128), torch.nn.Linear(128, 4)

    def forward(self, ids):
        return self.small(torch.tanh(self.wide(self.embed(ids))))


def steps(model, settings, count=20):
    made = make_optimizer([model], parameter_groups(model, settings), settings)
    for seed in range(count):
        ids = torch.randint(0, 100, (32,), generator=torch.Generator().manual_seed(seed))
        (model(ids) - ids[:, None] / 50).square().mean().backward()
        made.step()
        made.zero_grad()
    return made


def test_eight_bits_hold_moments_and_move_weights_alike():
    pytest.importorskip("bitsandbytes")
    first = Wide()
    models = {name: copy.deepcopy(first) for name in ("adamw", "adamw8bit")}
    made = {name: steps(model, OptimizerSettings(name=name, learning_rate=1e-3)) for name, model in models.items()}
    weight = models["adamw8bit"].embed.weight
    moments = {name: made["adamw8bit"].state[p]["state1"].dtype for name, p in models["adamw8bit"].named_parameters()}
    assert moments["wide.weight"] == torch.uint8
    assert moments["embed.weight"] == moments["small.weight"] == moments["wide.bias"] == torch.float32
    assert made["adamw8bit"].state[weight]["state1"].shape == weight.shape
    assert moment_bytes(made["adamw8bit"]) < 0.7 * moment_bytes(made["adamw"])
    for (name, one), (_, other) in zip(*(model.named_parameters() for model in models.values()), strict=True):
        begun = dict(first.named_parameters())[name]
        moved, apart = (one - begun).norm(), (one - other).norm()
        assert apart < 0.05 * moved, name


def test_a_run_with_eight_bits_is_resumed_bit_for_bit(corridor, tmp_path):
    pytest.importorskip("bitsandbytes")
    config = corridor(optimizer={"name": "adamw8bit", "learning_rate": 5e-3}, evaluation={"before": False, "tasks": 1})
    ends = []
    for cuts in ([], ["training.iterations=1"]):
        folder = RunFolder.create(tmp_path / f"run{len(cuts)}", load(config, cuts))
        train(folder, quiet=True)
        if cuts:
            again = RunFolder.open(folder.path)
            again.change(["training.iterations=2"])
            train(again, quiet=True)
        ends.append((checkpoints.latest(folder.path / "checkpoints").path / "model" / "model.safetensors").read_bytes())
    assert ends[0] == ends[1]


def test_what_is_not_there_is_said_before_anything_is_loaded(corridor, tmp_path, monkeypatch):
    with pytest.raises(SettingsError, match=r"paged_adamw8bit moves .* and device is cpu: use adamw8bit"):
        require_optimizer(OptimizerSettings(name="paged_adamw8bit"), "cpu")
    require_optimizer(OptimizerSettings(name="paged_adamw8bit"), "cuda:0")
    monkeypatch.setattr(optimizers.importlib.util, "find_spec", lambda _: None)
    require_optimizer(OptimizerSettings(), "cpu")
    folder = RunFolder.new(tmp_path / "run", load(corridor(optimizer={"name": "adamw8bit"})))
    with pytest.raises(SettingsError, match=r"needs bitsandbytes, which is not installed: pip install 'gagpo\[8bit\]'"):
        Trainer(folder, quiet=True)
    assert not folder.path.exists()
