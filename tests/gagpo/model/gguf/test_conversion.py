"""GGUF files: logits equal those of the file's own tensors, and what would give another model is refused by name."""

import json

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from gagpo.model import pretrained
from gagpo.model.gguf.conversion import convert
from gagpo.model.gguf.file import ConversionError
from tests.gagpo.model.gguf_files import HEADS, WIDTH, WORDS, tensors_of, write_gguf
from tests.oracles.gguf_forward import Forward
from tests.rejections import rejects

IDS = [1, 40, 7, 98, 55, 2, 40, 61, 13, 99, 5, 70]
Q8 = gguf.GGMLQuantizationType.Q8_0
LLAMA3 = np.asarray([1.0] * 8 + [8.0] * 8, np.float32)


def logits_of(folder, ids):
    """Logits of a converted folder, by transformers alone."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].double().numpy()


def rotary(numbers):
    """As a tensor of rotary factors."""
    return {"rope_freqs.weight": np.asarray(numbers, np.float32)}


RIGHT = {
    "llama": ("llama", {}, {}),
    "llama, fewer keys, untied, quantised": ("llama", {"blocks": 2, "kv_heads": 1, "tied": False}, {"kind": Q8}),
    "llama, rotary factors": ("llama", {"factors": LLAMA3}, {}),
    "llama, linear": ("llama", {}, {"rope__scaling__type": "linear", "rope__scaling__factor": 4.0}),
    "llama, linear without a type": ("llama", {}, {"rope__scaling__factor": 4.0}),
    "llama, none": ("llama", {}, {"rope__scaling__type": "none", "rope__scaling__factor": 4.0}),
    "llama, half precision": ("llama", {"kv_heads": 1}, {"kind": gguf.GGMLQuantizationType.F16}),
    "llama, another base": ("llama", {}, {"rope__freq_base": 500000.0, "rope__dimension_count": 32}),
    "llama, default base": ("llama", {}, {"rope__freq_base": None}),
    "qwen2": ("qwen2", {"blocks": 2, "kv_heads": 1}, {}),
    "qwen2, yarn": (
        "qwen2",
        {},
        {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0, "rope__scaling__original_context_length": 64},
    ),
    "qwen2, yarn with other limits": (
        "qwen2",
        {},
        {
            "rope__scaling__type": "yarn",
            "rope__scaling__factor": 2.0,
            "rope__scaling__attn_factor": 0.5,
            "rope__scaling__yarn_beta_fast": 8.0,
            "rope__scaling__yarn_beta_slow": 2.0,
        },
    ),
    "qwen3, untied": ("qwen3", {"kv_heads": 1, "tied": False}, {"attention__key_length": 32}),
}


@pytest.mark.parametrize(("arch", "shape", "values"), RIGHT.values(), ids=RIGHT)
def test_logits_are_those_of_the_files_own_tensors(tmp_path, arch, shape, values):
    shape = dict(shape)
    factors = shape.pop("factors", None)
    tensors = tensors_of(arch, **shape)
    if factors is not None:
        tensors |= rotary(factors)
    kv_heads = {"attention__head_count_kv": shape.get("kv_heads", HEADS), "block_count": shape.get("blocks", 1)}
    write_gguf(tmp_path / "m.gguf", arch=arch, tensors=tensors, **kv_heads, **values)
    convert(tmp_path / "m.gguf", tmp_path / "out")
    expected = Forward(tmp_path / "m.gguf").logits(IDS)
    assert np.abs(logits_of(tmp_path / "out", IDS) - expected).max() < 1e-4 < expected.std() / 100
    assert json.loads((tmp_path / "out" / "config.json").read_text())["tie_word_embeddings"] == shape.get("tied", True)


def test_all_parts_of_a_split_file_are_read_whichever_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("GAGPO_DATA", str(tmp_path / "data"))
    write_gguf(tmp_path / "m.gguf", parts=3, tensors=tensors_of(tied=False))
    paths = sorted(tmp_path.glob("m-*.gguf"))
    folder = pretrained.convert_file(paths[1])
    assert folder.name == "m"
    assert np.abs(logits_of(folder, IDS) - Forward(*paths).logits(IDS)).max() < 1e-4
    paths[2].unlink()
    with rejects(ConversionError, "3 parts", where="m-00003-of-00003.gguf"):
        pretrained.convert_file(paths[0], tmp_path / "out")
    paths[0].rename(tmp_path / "alone.gguf")
    with rejects(ConversionError, "part 0 (from 0) of 3", where="alone.gguf"):
        pretrained.convert_file(tmp_path / "alone.gguf", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_parts_of_different_files_are_refused(tmp_path):
    write_gguf(tmp_path / "m.gguf", parts=2)
    write_gguf(tmp_path / "n.gguf", parts=2, tensors=dict(list(tensors_of().items())[:5]))
    (tmp_path / "n-00002-of-00002.gguf").replace(tmp_path / "m-00002-of-00002.gguf")
    with rejects(ConversionError, "8 tensors", "11"):
        convert(tmp_path / "m-00001-of-00002.gguf", tmp_path / "out")
    (tmp_path / "m-00001-of-00002.gguf").replace(tmp_path / "m-00002-of-00002.gguf")
    (tmp_path / "n-00001-of-00002.gguf").replace(tmp_path / "m-00001-of-00002.gguf")
    with rejects(ConversionError, "part 0", where="m-00002-of-00002.gguf"):
        convert(tmp_path / "m-00001-of-00002.gguf", tmp_path / "out")


def without(name):
    return {key: value for key, value in tensors_of(blocks=2).items() if not key.startswith(name)}


def shaped(name, *shape):
    return {**tensors_of(blocks=2), name: np.ones(shape, np.float32)}


def damaged():
    numbers = tensors_of(blocks=2)
    numbers["blk.0.ffn_up.weight"][3, 5] = np.nan
    return numbers


MISSING = {
    **{
        name: (without(name), (name, "missing"))
        for name in ("blk.1.ffn_up.weight", "output_norm.weight", "token_embd.weight", "blk.0.attn_norm.weight")
    },
    "a block": (without("blk.1."), ("block 1 (blk.1.*)",)),
    "a bias": (shaped("blk.0.attn_q.bias", WIDTH), ("blk.0.attn_q.bias", "belong")),
    "a third block": (shaped("blk.2.attn_norm.weight", WIDTH), ("blk.2.attn_norm.weight", "belong")),
    "an expert": (shaped("blk.0.ffn_gate_exps.weight", 2, 4, 4), ("blk.0.ffn_gate_exps.weight", "belong")),
    "factors of long texts": (shaped("rope_factors_long.weight", 16), ("rope_factors_long.weight", "belong")),
    "a shape": (shaped("blk.1.ffn_up.weight", 8, WIDTH), ("blk.1.ffn_up.weight", "[8, 64]", "[96, 64]")),
    "not a number": (damaged(), ("blk.0.ffn_up.weight", "finite")),
    "rotary factors": (shaped("rope_freqs.weight", 5), ("rope_freqs.weight", "[5]", "[16]")),
    "odd factors": (
        tensors_of(blocks=2) | rotary(np.linspace(9, 1, 16)),
        ("rope_freqs.weight",),
    ),
}


@pytest.mark.parametrize(("tensors", "names"), MISSING.values(), ids=MISSING)
def test_missing_surplus_and_wrong_tensors_are_named(tmp_path, tensors, names):
    write_gguf(tmp_path / "m.gguf", tensors=tensors, block_count=2)
    with rejects(ConversionError, *names, where="m.gguf"):
        pretrained.convert_file(tmp_path / "m.gguf", tmp_path / "out")
    assert not (tmp_path / "out").exists()


KEYS = {
    "block_count": ({"block_count": None}, ("llama.block_count", "got None")),
    "epsilon": ({"attention__layer_norm_rms_epsilon": None}, ("layer_norm_rms_epsilon",)),
    "experts": ({"expert_count": 8}, ("llama.expert_count = 8",)),
    "scale": ({"attention__scale": 0.1}, ("llama.attention.scale = 0.1",)),
    "window": ({"attention__sliding_window": 32}, ("llama.attention.sliding_window = 32",)),
    "partial": ({"rope__dimension_count": 16, "attention__key_length": 32}, ("[32, 16]",)),
    "longrope": ({"rope__scaling__type": "longrope"}, ("rope.scaling.type 'longrope'",)),
    "a factor": ({"rope__scaling__factor": 0.5}, ("factor of rope.scaling", "got 0.5")),
    "text": ({"rope__scaling__factor": "4"}, ("rope.scaling.factor", "float")),
    "extrapolation": (
        {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0, "rope__scaling__yarn_ext_factor": 0.5},
        ("yarn_ext_factor",),
    ),
    "heads": ({"attention__head_count_kv": 3}, ("heads", "3 of them")),
    "vocabulary": ({"vocab_size": 7}, ("token_embd.weight", f"{len(WORDS)} rows")),
}


@pytest.mark.parametrize(("values", "names"), KEYS.values(), ids=KEYS)
def test_metadata_that_would_give_another_model_is_named(tmp_path, values, names):
    write_gguf(tmp_path / "m.gguf", **values)
    with rejects(ConversionError, *names, where="m.gguf"):
        convert(tmp_path / "m.gguf", tmp_path / "out")


def test_unsupported_architectures_and_quantisations_are_named(tmp_path):
    write_gguf(tmp_path / "m.gguf", arch="gemma3")
    with rejects(ConversionError, "gemma3", advice="qwen2"):
        convert(tmp_path / "m.gguf", tmp_path / "out")
    tensors = tensors_of() | {"blk.0.ffn_up.weight": np.ones((96, 64), np.int8)}
    write_gguf(tmp_path / "m.gguf", tensors=tensors)
    with rejects(ConversionError, "blk.0.ffn_up.weight", "I8"):
        convert(tmp_path / "m.gguf", tmp_path / "out")
    tensors = tensors_of() | rotary(LLAMA3)
    write_gguf(tmp_path / "m.gguf", tensors=tensors, rope__scaling__factor=2.0)
    with rejects(ConversionError, "rope_freqs.weight", "llama.rope.scaling.type"):
        convert(tmp_path / "m.gguf", tmp_path / "out")
