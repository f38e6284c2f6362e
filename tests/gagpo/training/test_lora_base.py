"""Adapters on a base in bfloat16, which changes no bit."""

import pytest
import torch

from gagpo.model import adapters
from gagpo.model.flat.attention import forward
from gagpo.model.flat.packed import PackedRows
from gagpo.model.loading import load_model, load_tokenizer, save
from gagpo.runs.run_folder import RunFolder
from gagpo.settings import load
from gagpo.training.trainer import Trainer
from tests.gagpo.distributed.conftest import train_in_two, write_config
from tests.gagpo.training.test_lora import LORA, adapter_of, inject, run, same

HALF = {"training": {"dtype": "bfloat16"}, "engine": {"dtype": "bfloat16"}}


def config_of(corridor, base, iterations=2):
    training = {**HALF["training"], "iterations": iterations}
    return corridor(
        lora={**LORA, "base_dtype": base},
        training=training,
        engine=HALF["engine"],
        evaluation={"before": False, "tasks": 1},
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
    full = run(config_of(corridor, "float32"), tmp_path / "whole", model)
    half = run(config_of(corridor, "bfloat16"), tmp_path / "half", model)
    assert same(adapter_of(half.path), adapter_of(full.path))
    pairs = zip(half.metrics(), full.metrics(), strict=True)
    assert all(a[key] == b[key] for a, b in pairs for key in ("success_rate", "loss", "grad_norm", "mismatch_kl"))


def test_the_frozen_matrices_are_held_in_fewer_bytes(corridor, tmp_path):
    trainer = Trainer(RunFolder.create(tmp_path / "run", load(config_of(corridor, "bfloat16"))), quiet=True)
    for name, parameter in trainer.learner.model.named_parameters():
        if "_proj.base_layer.weight" in name:
            assert parameter.dtype == torch.bfloat16, name
        else:
            assert parameter.dtype == torch.float32, name
    before = {name: tensor.clone() for name, tensor in adapters.base_tensors(trainer.learner.model)}
    trainer.run()
    assert all(torch.equal(tensor, before[name]) for name, tensor in adapters.base_tensors(trainer.learner.model))
    assert any(tensor.abs().max() > 0 for name, tensor in adapter_of(tmp_path / "run").items() if "lora_B" in name)


def test_the_memory_of_a_base_is_what_it_says(warm_model):
    sizes = {}
    for base in ("float32", "bfloat16"):
        model = load_model(warm_model)
        inject(model)
        if base == "bfloat16":
            adapters.halve_base(model)
        sizes[base] = sum(p.nbytes for p in model.parameters())
    linear = sum(layer.base_layer.weight.numel() for layer in adapters.adapted_layers(model).values())
    assert sizes["float32"] - sizes["bfloat16"] == 2 * linear


def test_a_base_in_bfloat16_is_trained_in_float32_to_the_bits_of_its_numbers(corridor, tmp_path, published):
    adapter_weights = {}
    for base in ("float32", "bfloat16"):
        formats = {"training": {"dtype": "float32", "iterations": 2}, "engine": {"dtype": "float32"}}
        config = corridor(lora={**LORA, "base_dtype": base}, evaluation={"before": False, "tasks": 1}, **formats)
        adapter_weights[base] = adapter_of(run(config, tmp_path / base, f"model={published}").path)
    assert same(adapter_weights["bfloat16"], adapter_weights["float32"])


def test_a_matrix_in_bfloat16_is_not_kept_converted_for_the_backward_pass(warm_model):
    model = load_model(warm_model)
    inject(model)
    adapters.halve_base(model)
    retained = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: retained.append(tensor) or tensor, lambda tensor: tensor
    ):
        forward(model, torch.arange(8), PackedRows([8]), torch.arange(8)).sum().backward()
    sizes = {layer.base_layer.weight.shape for layer in adapters.adapted_layers(model).values()}
    assert {tensor.dtype for tensor in retained if tensor.shape in sizes and not tensor.requires_grad} == {
        torch.bfloat16
    }


@pytest.mark.slow
def test_two_ranks_shard_a_base_in_bfloat16(tmp_path, published):
    jobs = {}
    for base in ("float32", "bfloat16"):
        training = {"iterations": 2, "minibatches": 2, "save_every": 100, "dtype": "bfloat16"}
        lora = {**LORA, "base_dtype": base}
        config = write_config(tmp_path / base, published, training=training, lora=lora, engine=HALF["engine"])
        jobs[base] = (config, tmp_path / base / "run", None)
    train_in_two(list(jobs.values()), tmp_path)
    full, half = (adapter_of(location) for _, location, _ in jobs.values())
    assert same(full, half)
