"""Weight decay, 8-bit moments and schedules."""

import copy

import pytest
import torch

from gagpo.collecting.distributed_rollout import require_fitting
from gagpo.distributed.ranks import Ranks
from gagpo.distributed.states import StateError, fill_optimizer, names_of, optimizer_tensors, write
from gagpo.learning import optimizer as optimizers
from gagpo.learning.optimizer import (
    make_optimizer,
    moment_bytes,
    parameter_groups,
    rate_scale,
    require_optimizer,
)
from gagpo.runs.run_folder import RunFolder
from gagpo.settings import OptimizerSettings, SettingsError, load
from gagpo.training.trainer import Trainer


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
    made = make_optimizer(parameter_groups(model, settings), settings)
    for seed in range(count):
        ids = torch.randint(0, 100, (32,), generator=torch.Generator().manual_seed(seed))
        (model(ids) - ids[:, None] / 50).square().mean().backward()
        made.step()
        made.zero_grad()
    return made


def test_8_bit_steps_match_32_bit_steps():
    pytest.importorskip("bitsandbytes")
    first = Wide()
    models = {name: copy.deepcopy(first) for name in ("adamw", "adamw8bit")}
    made = {name: steps(model, OptimizerSettings(name=name, learning_rate=1e-3)) for name, model in models.items()}
    moments = {name: made["adamw8bit"].state[p]["state1"].dtype for name, p in models["adamw8bit"].named_parameters()}
    assert moments["wide.weight"] == torch.uint8
    assert moments["small.weight"] == moments["wide.bias"] == torch.float32
    assert moment_bytes(made["adamw8bit"]) < 0.7 * moment_bytes(made["adamw"])
    for (name, one), (_, other) in zip(*(model.named_parameters() for model in models.values()), strict=True):
        begun = dict(first.named_parameters())[name]
        moved, apart = (one - begun).norm(), (one - other).norm()
        assert apart < 0.1 * moved, name


def test_8_bit_moments_round_trip(tmp_path):
    pytest.importorskip("bitsandbytes")
    settings = OptimizerSettings(name="adamw8bit", learning_rate=1e-3)
    model, other = Wide(), Wide()
    made, fresh = steps(model, settings, 3), make_optimizer(parameter_groups(other, settings), settings)
    held = {name: tensor.clone() for name, tensor in optimizer_tensors(made, names_of(model, None)).items()}
    write(held, tmp_path / "states", Ranks())
    fill_optimizer(fresh, names_of(other, None), tmp_path / "states", Ranks())
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert made.state[one].keys() == fresh.state[two].keys()
        for key, value in made.state[one].items():
            taken = fresh.state[two][key]
            assert torch.equal(value, taken) if isinstance(value, torch.Tensor) else value == taken, key
    exact = torch.optim.AdamW(other.parameters())
    with pytest.raises(StateError, match="which belongs to no parameter of this run"):
        fill_optimizer(exact, names_of(other, None), tmp_path / "states", Ranks())


def test_a_missing_package_is_reported_before_loading(corridor, tmp_path, monkeypatch):
    monkeypatch.setattr(optimizers.importlib.util, "find_spec", lambda _: None)
    require_optimizer(OptimizerSettings())
    folder = RunFolder.new(tmp_path / "run", load(corridor(optimizer={"name": "adamw8bit"})))
    with pytest.raises(SettingsError, match=r"requires bitsandbytes: pip install 'gagpo\[8bit\]'"):
        Trainer(folder, quiet=True)
    assert not folder.path.exists()


def test_8_bit_moments_require_one_process(corridor):
    with pytest.raises(SettingsError, match=r"optimizer.name=adamw8bit cannot be sharded over 2 processes"):
        require_fitting(load(corridor(optimizer={"name": "adamw8bit"})), 2)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [0.5, 1, 1, 1, 1, 1]),
        ("linear", [0.5, 1, 1, 0.75, 0.5, 0.25]),
        ("cosine", [0.5, 1, 1, 0.853553, 0.5, 0.146447]),
    ],
)
def test_schedules(schedule, expected):
    settings = OptimizerSettings(warmup=2, schedule=schedule)
    assert [rate_scale(settings, i, 6) for i in range(6)] == pytest.approx(expected, abs=1e-6)
