"""Small GGUF files, written as llama.cpp's converter writes them."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

WORDS = ["<unk>", "<|im_start|>", "<|im_end|>", *(chr(number) for number in range(33, 127)), "Ġ", "Ċ", "ab"]
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WIDTH, HIDDEN, HEADS = 64, 96, 2
VALUES = {
    "context_length": 256,
    "embedding_length": WIDTH,
    "feed_forward_length": HIDDEN,
    "block_count": 1,
    "attention.head_count": HEADS,
    "attention.head_count_kv": HEADS,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "rope.freq_base": 10000.0,
    "vocab_size": len(WORDS),
}


def tensors_of(arch="llama", blocks=1, kv_heads=HEADS, tied=True, seed=0):
    """Random weights by name; embeddings and norms as well."""
    rng, head_dim = np.random.default_rng(seed), WIDTH // HEADS

    def random(*shape):
        return rng.normal(0, 0.1, shape).astype(np.float32)

    tensors = {"token_embd.weight": random(len(WORDS), WIDTH), "output_norm.weight": 1 + random(WIDTH)}
    if not tied:
        tensors["output.weight"] = random(len(WORDS), WIDTH)
    rows = {"attn_q": WIDTH, "attn_k": kv_heads * head_dim, "attn_v": kv_heads * head_dim, "attn_output": WIDTH}
    for block in range(blocks):
        for name in ("attn_norm", "ffn_norm"):
            tensors[f"blk.{block}.{name}.weight"] = 1 + random(WIDTH)
        for name, count in rows.items():
            tensors[f"blk.{block}.{name}.weight"] = 5 * random(count, WIDTH)  # attention that depends on positions
            if arch == "qwen2" and name != "attn_output":
                tensors[f"blk.{block}.{name}.bias"] = random(count)
        for name in ("attn_q_norm", "attn_k_norm") if arch == "qwen3" else ():
            tensors[f"blk.{block}.{name}.weight"] = 1 + random(head_dim)
        for name in ("ffn_gate", "ffn_up"):
            tensors[f"blk.{block}.{name}.weight"] = random(HIDDEN, WIDTH)
        tensors[f"blk.{block}.ffn_down.weight"] = random(WIDTH, HIDDEN)
    return tensors


def write_gguf(
    path: Path, template=TEMPLATE, arch="llama", tensors=None, parts=1, kind=None, **values
) -> np.ndarray | None:
    """Write a model with random weights; returns its embeddings.

    tensors: instead of those of one block.
    parts: number of files, with the names of a split file.
    kind: quantisation of the matrices.
    values: metadata of the architecture, with ``__`` for a dot; None leaves one out.
    """
    tensors = tensors_of(arch) if tensors is None else tensors
    names = list(tensors)
    paths = [path.with_name(f"{path.stem}-{n:05}-of-{parts:05}.gguf") for n in range(1, parts + 1)]
    for number, segment in enumerate(paths if parts > 1 else [path]):
        writer = gguf.GGUFWriter(segment, arch)
        if not number:
            _write_metadata(writer, arch, template, {**VALUES, **{k.replace("__", "."): v for k, v in values.items()}})
        if parts > 1:
            writer.add_uint16("split.no", number)
            writer.add_uint16("split.count", parts)
            writer.add_int32("split.tensors.count", len(names))
        for name in names[number::parts]:
            _write_tensor(writer, name, tensors[name], kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return tensors.get("token_embd.weight")


def _write_metadata(writer, arch, template, values):
    for name, value in values.items():
        if value is not None:
            writer.add_key_value(f"{arch}.{name}", value, _kind_of(value))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(WORDS)
    writer.add_token_types([gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.NORMAL] * (len(WORDS) - 3))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_unk_token_id(0)
    if template:
        writer.add_chat_template(template)


def _kind_of(value):
    type_names = {bool: "BOOL", int: "UINT32", float: "FLOAT32", str: "STRING"}
    return gguf.GGUFValueType[type_names[type(value)]]


def _write_tensor(writer, name, numbers, kind):
    if kind is None or numbers.ndim == 1:
        writer.add_tensor(name, numbers)
    else:
        quantised = gguf.quantize(numbers, kind)
        writer.add_tensor(name, quantised, raw_dtype=kind)


def write_folder(folder: Path, path: Path) -> None:
    """Write a Llama model folder with a byte-level tokenizer as a GGUF file in float32, as llama.cpp's converter does.

    Names of tensors are those of the package gguf, whose table the converter uses too.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    values = {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "block_count": config.num_hidden_layers,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.freq_base": float(config.rope_parameters["rope_theta"]),
        "rope.dimension_count": config.head_dim,
        "vocab_size": config.vocab_size,
    }
    for name, value in values.items():
        writer.add_key_value(f"llama.{name}", value, _kind_of(value))
    _write_tokenizer(writer, tokenizer, config)
    table = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        numbers = tensor.float().numpy()
        heads = {"q_proj.weight": config.num_attention_heads, "k_proj.weight": config.num_key_value_heads}
        for suffix, count in heads.items():
            if name.endswith(suffix):  # llama.cpp rotates neighbours, transformers halves of a head
                halves = numbers.reshape(count, 2, -1, numbers.shape[-1])
                numbers = np.ascontiguousarray(halves.swapaxes(1, 2).reshape(numbers.shape))
        writer.add_tensor(table.get_name(name, (".weight", ".bias")), numbers)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_tokenizer(writer, tokenizer, config):
    import json

    core = json.loads(tokenizer.backend_tokenizer.to_str())
    by_id = {number: word for word, number in tokenizer.get_vocab().items()}
    special = {token["id"] for token in core["added_tokens"] if token["special"]}
    tokens = [by_id.get(number, f"[PAD{number}]") for number in range(config.vocab_size)]
    normal, control, unused = gguf.TokenType.NORMAL, gguf.TokenType.CONTROL, gguf.TokenType.UNUSED
    types = [control if number in special else normal if number in by_id else unused for number in range(len(tokens))]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([" ".join(pair) for pair in core["model"]["merges"]])
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_pad_token_id(tokenizer.pad_token_id)
    writer.add_chat_template(tokenizer.chat_template)
