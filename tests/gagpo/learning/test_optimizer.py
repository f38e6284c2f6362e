"""What is no matrix does not decay, and moments of eight bits do as well as those of 32."""

import copy

import pytest
import torch

from gagpo.collecting.distributed_rollout import require_fitting
from gagpo.distributed.states import StateError, names_of
from gagpo.learning.steps import optimizer as optimizers
from gagpo.learning.steps.optimizer import (
    hidden_matrices,
    make_optimizer,
    moment_bytes,
    parameter_groups,
    require_optimizer,
)
from gagpo.runs import checkpoint as checkpoints
from gagpo.runs.run_folder import RunFolder
from gagpo.settings import OptimizerSettings, SettingsError, load
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


def reference_muon(weight, gradients, rate):
    """Muon as published: momentum, orthogonalised by five steps of Newton-Schulz, at AdamW's size."""
    buffer = torch.zeros_like(weight)
    for gradient in gradients:
        buffer = 0.95 * buffer + 0.05 * gradient
        x = (0.05 * gradient + 0.95 * buffer).bfloat16()
        tall = len(x) > x.shape[1]
        x = x.T if tall else x
        x = x / (x.norm() + 1e-7)
        for _ in range(5):
            square = x @ x.T
            x = 3.4445 * x + (-4.775 * square + 2.0315 * square @ square) @ x
        weight = weight - rate * 0.2 * max(weight.shape) ** 0.5 * (x.T if tall else x).float()
    return weight


def test_muon_moves_the_matrices_between_layers_and_adamw_all_else(tiny):
    model, _ = tiny
    settings = OptimizerSettings(name="muon", learning_rate=1e-2)
    groups = parameter_groups(model, settings)
    made = make_optimizer([model], groups, settings)
    matrices = hidden_matrices(model)
    assert {id(p) for p in made.muon.param_groups[0]["params"]} == {id(p) for p in matrices} and len(matrices) == 14
    assert sum(len(group["params"]) for group in made.param_groups) == len(list(model.parameters()))
    others = [p for p in model.parameters() if all(p is not one for one in matrices)]
    plain = [p.detach().clone().requires_grad_() for p in others]
    adamw = torch.optim.AdamW(plain, lr=1e-2, weight_decay=0.0)
    before = [p.detach().clone() for p in matrices]
    history = [[] for _ in matrices]
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        for p in model.parameters():
            p.grad = torch.randn(p.shape, generator=generator)
        for p, same in zip(others, plain, strict=True):
            same.grad = p.grad.clone()
        for seen, p in zip(history, matrices, strict=True):
            seen.append(p.grad.clone())
        for one in (made, adamw):
            one.step()
    assert all(torch.equal(p, same) for p, same in zip(others, plain, strict=True))
    for p, begun, gradients in zip(matrices, before, history, strict=True):
        expected = reference_muon(begun, gradients, 1e-2)
        assert (p.detach() - expected).norm() < 0.05 * (expected - begun).norm()


def test_a_changed_rate_reaches_both_parts_and_a_loaded_state_too(tiny):
    model, _ = tiny
    settings = OptimizerSettings(name="muon", weight_decay=0.1)
    made = make_optimizer([model], parameter_groups(model, settings), settings)
    made.load_state_dict(copy.deepcopy(made.state_dict()))
    for group in made.param_groups:
        group["lr"] = 0.0
    before = [p.detach().clone() for p in model.parameters()]
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    made.step()
    assert all(torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))
    assert len(made.state) == len(before) and made.muon.state is made.adamw.state is made.state


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


@pytest.mark.parametrize("name", ["adamw8bit", "muon"])
def test_a_run_is_resumed_bit_for_bit(corridor, tmp_path, name):
    if name != "muon":
        pytest.importorskip("bitsandbytes")
    config = corridor(optimizer={"name": name, "learning_rate": 5e-3}, evaluation={"before": False, "tasks": 1})
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


def test_a_checkpoint_of_another_optimiser_is_refused(corridor, tmp_path):
    config = corridor(optimizer={"name": "muon"}, training={"iterations": 1}, evaluation={"splits": []})
    folder = RunFolder.create(tmp_path / "run", load(config))
    train(folder, quiet=True)
    saved = checkpoints.latest(folder.path / "checkpoints")
    model = Trainer(RunFolder.open(folder.path), quiet=True).learner.model
    adamw = make_optimizer([model], parameter_groups(model, OptimizerSettings()), OptimizerSettings())
    with pytest.raises(checkpoints.CheckpointError, match=r"momentum_buffer.*no parameter of this run"):
        saved.load_optimizer(adamw, names_of(model, None))


def test_what_cannot_be_shared_out_is_refused(corridor):
    with pytest.raises(
        SettingsError, match=r"optimizer.name=muon .*each matrix as a whole, and 2 processes hold parts"
    ):
        require_fitting(load(corridor(optimizer={"name": "muon"})), 2)
    require_fitting(load(corridor(optimizer={"name": "adamw8bit"})), 2)


@pytest.fixture
def stepped():
    """A model after three steps in 8 bits, its optimiser, and an optimiser of the same kind without a state."""
    pytest.importorskip("bitsandbytes")
    model, settings = Wide(), OptimizerSettings(name="adamw8bit", learning_rate=1e-3)
    fresh = copy.deepcopy(model)
    return model, steps(model, settings), make_optimizer([fresh], parameter_groups(fresh, settings), settings), fresh


def test_moments_in_8_bits_are_taken_up_bit_for_bit(stepped):
    model, made, fresh, other = stepped
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        found = {key: tensor.clone() for key, tensor in made.tensors_of(one).items()}
        assert fresh.wanted_of(two, {key: tensor.shape for key, tensor in found.items()}).keys() == found.keys()
        fresh.take(two, found)
        assert made.state[one].keys() == fresh.state[two].keys()
        for key, value in made.state[one].items():
            taken = fresh.state[two][key]
            assert torch.equal(value, taken) if isinstance(value, torch.Tensor) else value == taken, key
    assert fresh.wanted_of(two, {}) == {} and type(fresh)([{"params": [two]}], set(), False).tensors_of(two) == {}


@pytest.mark.parametrize("ranks", [2, 3, 7])
def test_moments_of_many_ranks_are_rounded_in_the_blocks_of_one(stepped, ranks):
    """Each rank's rows are quantised by themselves, as that many ranks hold them; an oracle says what they mean."""
    model, made, fresh, other = stepped
    functions = pytest.importorskip("bitsandbytes").functional
    one, two = model.wide.weight, other.wide.weight
    state, found = made.state[one], made.tensors_of(one)
    parts = list(torch.randn(one.shape, generator=torch.Generator().manual_seed(0)).chunk(ranks))
    quantised = [functions.quantize_blockwise(part, code=state["qmap1"], blocksize=256) for part in parts]
    meant = torch.cat([functions.dequantize_blockwise(codes, how) for codes, how in quantised])
    scales = torch.zeros(ranks, max(len(how.absmax) for _, how in quantised))
    for row, (_, how) in zip(scales, quantised, strict=False):
        row[: len(how.absmax)] = how.absmax
    fresh.take(two, {**found, "codes1": torch.cat([codes for codes, _ in quantised]), "scales1": scales})
    taken = fresh.state[two]
    got = functions.dequantize_blockwise(taken["state1"], absmax=taken["absmax1"], code=taken["qmap1"], blocksize=256)
    assert (got - meant).abs().max() < 0.05 * meant.abs().max() and (got - meant).norm() < 0.02 * meant.norm()


def test_a_state_of_earlier_versions_goes_on_in_one_process_alone(stepped, monkeypatch):
    model, made, fresh, other = stepped
    fresh.load_state_dict(made.state_dict())
    assert torch.equal(fresh.state[other.wide.weight]["state1"], made.state[model.wide.weight]["state1"])
    monkeypatch.setattr(type(fresh), "parts", 2)
    with pytest.raises(StateError, match="go on with processes=1"):
        fresh.load_state_dict(made.state_dict())
