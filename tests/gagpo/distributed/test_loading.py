"""Two ranks read their shards from the files, and hold the weights that one process loads."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from gagpo.distributed.ranks import Ranks
from gagpo.model.loading import load_model, load_tokenizer
from tests.gagpo.conftest import CORRIDOR
from tests.gagpo.distributed import updates
from tests.gagpo.distributed.conftest import start_ranks

KL = {"algorithm": {"preset": "gagpo", "kl": {"coefficient": 0.05}}}


def rewritten(source, folder, change):
    """A copy of a model's folder with other tensors."""
    shutil.copytree(source, folder)
    (folder / "manifest.json").unlink(missing_ok=True)
    save_file(change(load_file(folder / "model.safetensors")), folder / "model.safetensors", metadata={"format": "pt"})
    return str(folder)


def halved(tensors):
    return {name: tensor.bfloat16() for name, tensor in tensors.items()}


def damaged(tensors):
    name = max(tensors)
    return {**tensors, name: torch.full_like(tensors[name], float("nan"))}


def aliased(tensors):
    return {**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"].clone()}


def in_several_files(source, folder):
    load_model(source).save_pretrained(folder, max_shard_size="30KB")
    load_tokenizer(source).save_pretrained(folder)
    assert len(list(Path(folder).glob("*.safetensors"))) > 2
    return str(folder)


def with_recurrent_attention(source, folder):
    """A model that takes padded rows: a family with a kind of layer that flat attention does not know."""
    from transformers import GPTNeoConfig, GPTNeoForCausalLM

    config = GPTNeoConfig(
        vocab_size=400, hidden_size=32, num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]],
        window_size=8, max_position_embeddings=256,
    )  # fmt: skip
    torch.manual_seed(0)
    GPTNeoForCausalLM(config).save_pretrained(folder)
    load_tokenizer(source).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory, warm_model):
    folder = tmp_path_factory.mktemp("loading")
    models = {
        "whole numbers": warm_model,
        "several files": in_several_files(warm_model, folder / "several"),
        "bfloat16": rewritten(warm_model, folder / "halved", halved),
        "aliased": rewritten(warm_model, folder / "aliased", aliased),
        "damaged": rewritten(warm_model, folder / "damaged", damaged),
        "padded rows": with_recurrent_attention(warm_model, folder / "padded"),
    }
    cases = {name: {**CORRIDOR, **KL, "model": model} for name, model in models.items()}
    lora = {"rank": 4, "alpha": 4.0, "base_dtype": "bfloat16"}
    cases["adapter"] = {**cases["several files"], "lora": lora}
    (folder / "cases.json").write_text(json.dumps(cases))
    ranks = start_ranks(["-m", "tests.gagpo.distributed.loading_worker", folder])
    outputs = [process.communicate(timeout=300)[0] for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], "\n".join(outputs)
    alone = {name: updates.learner_of(folder, name, case, Ranks()) for name, case in cases.items() if name != "damaged"}
    return torch.load(folder / "loaded.pt", weights_only=False), alone


@pytest.mark.parametrize("name", ["whole numbers", "several files", "bfloat16", "aliased", "padded rows", "adapter"])
def test_two_ranks_hold_the_weights_of_one_process(loaded, name):
    together, alone = (results[name] for results in loaded)
    assert together["slices"] == (name != "aliased"), "tensors that are stored twice may differ: they are read whole"
    models = {"policy": alone.model, "reference": alone.policy.reference}
    for type_name in together["weights"].keys() - {"copy"}:
        expected = dict(models[type_name].named_parameters())
        assert expected.keys() == together["weights"][type_name].keys()
        for key, value in together["weights"][type_name].items():
            assert value.dtype == expected[key].dtype and torch.equal(value, expected[key]), key
    assert set(together["attention"]) == {alone.model.config._attn_implementation}


def test_the_engines_copy_has_the_weights_and_the_buffers(loaded):
    together, alone = (results["several files"] for results in loaded)
    for key, value in alone.model.named_parameters():
        assert torch.equal(together["weights"]["copy"][key], value)
    for key, value in alone.model.named_buffers():
        assert torch.equal(together["buffers"][key], value)


def test_damaged_weights_are_one_line_on_both_ranks(loaded):
    assert "is not finite: the weights are damaged" in loaded[0]["damaged"]
