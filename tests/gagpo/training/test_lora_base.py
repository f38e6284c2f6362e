"""Adapters on a smaller base: bfloat16 changes no bit, 4 bits are rounded correctly."""

import copy

import pytest
import torch

from benchmarks.allocated import Allocated
from gagpo.agents.engines import adapters, frozen
from gagpo.agents.engines.frozen import FrozenError
from gagpo.agents.engines.weights import copy_tensors
from gagpo.agents.model import load_model, load_tokenizer, save
from gagpo.collecting.distributed_rollout import require_fitting
from gagpo.runs.run_folder import RunFolder
from gagpo.settings import SettingsError, load
from gagpo.training.trainer import Trainer, train
from tests.gagpo.distributed.conftest import train_in_two, write_config
from tests.gagpo.training.resuming import killed_after
from tests.gagpo.training.test_lora import LORA, adapter_of, gpt2, inject, logprobs, moved, run, same

HALF = {"training": {"precision": "bfloat16"}, "engine": {"dtype": "bfloat16"}}


def config_of(corridor, base, iterations=2):
    training = {**HALF["training"], "iterations": iterations}
    return corridor(
        lora={**LORA, "base": base}, training=training, engine=HALF["engine"], evaluation={"before": False, "tasks": 1}
    )


@pytest.fixture
def published(warm_model, tmp_path):
    """The warm model as models are published: every weight is a number of bfloat16."""
    folder = tmp_path / "published"
    model = load_model(warm_model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16())
    save(model, load_tokenizer(warm_model), folder)
    return str(folder)


def test_a_base_in_bfloat16_trains_to_the_same_bits(corridor, tmp_path, published):
    model = f"model={published}"
    whole = run(config_of(corridor, "float32"), tmp_path / "whole", model)
    half = run(config_of(corridor, "bfloat16"), tmp_path / "half", model)
    assert same(adapter_of(half.path), adapter_of(whole.path))
    pairs = zip(half.metrics(), whole.metrics(), strict=True)
    assert all(a[key] == b[key] for a, b in pairs for key in ("success_rate", "loss", "grad_norm", "mismatch_kl"))


@pytest.mark.parametrize("base", ["bfloat16", "4bit"])
def test_the_frozen_matrices_are_held_in_fewer_bytes(corridor, tmp_path, base):
    if base == "4bit":
        pytest.importorskip("bitsandbytes")
    trainer = Trainer(RunFolder.create(tmp_path / "run", load(config_of(corridor, base))), quiet=True)
    for name, parameter in trainer.learner.model.named_parameters():
        if "_proj.base_layer.weight" in name:
            assert parameter.dtype == (torch.bfloat16 if base == "bfloat16" else torch.uint8), name
        else:
            assert parameter.dtype == torch.float32, name
    before = {name: tensor.clone() for name, tensor in adapters.base_tensors(trainer.learner.model)}
    trainer.run()
    assert all(torch.equal(tensor, before[name]) for name, tensor in adapters.base_tensors(trainer.learner.model))
    assert any(tensor.abs().max() > 0 for name, tensor in adapter_of(tmp_path / "run").items() if "lora_B" in name)


def test_four_bits_go_on_bit_equal_after_a_stop(corridor, tmp_path):
    pytest.importorskip("bitsandbytes")
    whole = run(config_of(corridor, "4bit"), tmp_path / "whole")
    part = killed_after(1, whole, tmp_path)
    train(RunFolder.open(part), quiet=True)
    assert same(adapter_of(part), adapter_of(whole.path))


def test_merged_four_bits_are_the_adapted_model(warm_model):
    pytest.importorskip("bitsandbytes")
    model = load_model(warm_model)
    other, plain = copy.deepcopy(model), copy.deepcopy(model)
    inject(model)
    moved(model)
    frozen.shrink(model, "4bit")
    held = dict(adapters.merged_tensors(model))
    copy_tensors(other, held.items())
    merged = adapters.merge(copy.deepcopy(model))
    # The layer computes in bfloat16; its sum in float32 differs from that by rounding, from the whole base by 4 bits.
    for name, parameter in merged.named_parameters():
        assert torch.equal(parameter.float(), held[name].to(parameter.dtype).float()), name
    with torch.autocast("cpu", torch.bfloat16):
        wanted, found = logprobs(model).float(), logprobs(other).float()
    assert (found - wanted).abs().mean() < 0.02 < (logprobs(plain) - wanted).abs().mean()


def test_the_memory_of_a_base_is_what_it_says(warm_model):
    sizes = {}
    for base in ("float32", "bfloat16"):
        model = load_model(warm_model)
        inject(model)
        with Allocated() as counted:
            frozen.shrink(model, base)
        sizes[base] = sum(p.nbytes for p in model.parameters())
        assert base == "float32" or counted.now > 0
    linear = sum(layer.base_layer.weight.numel() for layer in adapters.adapted_layers(model).values())
    assert sizes["float32"] - sizes["bfloat16"] == 2 * linear


def test_what_cannot_be_held_so_is_refused_in_one_line(corridor, tmp_path, monkeypatch):
    with pytest.raises(SettingsError, match=r"lora\.base=bfloat16 requires training\.precision=bfloat16"):
        load(corridor(lora={**LORA, "base": "bfloat16"}))
    with pytest.raises(SettingsError, match=r"requires engine\.dtype=bfloat16"):
        load(corridor(lora={**LORA, "base": "4bit"}, training=HALF["training"]))
    with pytest.raises(SettingsError, match=r"lora\.base"):
        load(corridor(lora={**LORA, "base": "8bit"}))
    settings = load(config_of(corridor, "4bit"))
    with pytest.raises(SettingsError, match=r"set lora\.base=bfloat16, or processes=1"):
        require_fitting(settings, 2)
    monkeypatch.setattr(frozen.importlib.util, "find_spec", lambda name: object() if name == "peft" else None)
    with pytest.raises(FrozenError, match=r"pip install 'gagpo\[8bit\]', or set lora\.base=bfloat16"):
        train(RunFolder.new(tmp_path / "run", settings), quiet=True)
    assert not (tmp_path / "run").exists()


def test_layers_of_another_kind_take_no_four_bits():
    model = gpt2()
    inject(model)
    with pytest.raises(FrozenError, match="GPT2LMHeadModel has no plain linear layers"):
        frozen.shrink(model, "4bit")


@pytest.mark.slow
def test_two_ranks_shard_a_base_in_bfloat16(tmp_path, published):
    jobs = {}
    for base in ("float32", "bfloat16"):
        training = {"iterations": 2, "minibatches": 2, "save_every": 100, "precision": "bfloat16"}
        lora = {**LORA, "base": base}
        config = write_config(tmp_path / base, published, training=training, lora=lora, engine=HALF["engine"])
        jobs[base] = (config, tmp_path / base / "run", None)
    train_in_two(list(jobs.values()), tmp_path)
    whole, half = (adapter_of(place) for _, place, _ in jobs.values())
    assert same(whole, half)
