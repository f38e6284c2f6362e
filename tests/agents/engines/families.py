"""Check a tiny random model of each family as loading does.

    python -m tests.agents.engines.families [--markdown PAGE]

A family is *flat* (rows without padding, one cache for sampling), *general* (padded rows and the model's own attention,
which is slower) or *refused*. The table of families in the documentation comes from this command.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from gagpo.model.flat.attention import is_flat

TINY: dict[str, object] = {
    "vocab_size": 120,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "num_local_experts": 4}
LAYERS = {"layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 6}
MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_chunk_size": 8}
LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "full_attention"] * 2,
}
MLA = {
    "q_lora_rank": 16,
    "kv_lora_rank": 8,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "n_routed_experts": 4,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 16,
    "num_experts_per_tok": 2,
    "head_dim": 4,
    "num_key_value_heads": 4,
}
PER_LAYER = {"vocab_size_per_layer_input": 120, "hidden_size_per_layer_input": 8, "num_kv_shared_layers": 2}
PLAIN = {"head_dim": None, "num_key_value_heads": None}  # families whose configs know neither
LONG = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4, "rope_theta": 1e4}


@dataclass(frozen=True)
class Family:
    """One model family.

    name: as it is written in the documentation.
    kind: transformers' model type.
    more: values of its tiny config in addition to :data:`TINY`.
    """

    name: str
    kind: str
    more: Mapping[str, object]


FAMILIES = [
    Family("Qwen2, Qwen2.5", "qwen2", {}),
    Family("Qwen2 with a window", "qwen2", {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 2}),
    Family("Qwen3", "qwen3", {}),
    Family("Qwen3-MoE", "qwen3_moe", MOE),
    Family("Qwen3-Next", "qwen3_next", {**LINEAR, **MOE}),
    Family("Qwen3.5", "qwen3_5_text", LINEAR),
    Family("Llama 2, 3", "llama", {}),
    Family("Llama 4", "llama4_text", {**MOE, "attention_chunk_size": 8, "intermediate_size_mlp": 48}),
    Family("Gemma 1", "gemma", {}),
    Family("Gemma 2", "gemma2", {**LAYERS, "attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 8}),
    Family("Gemma 3", "gemma3_text", {**LAYERS, "query_pre_attn_scalar": 8}),
    Family("Gemma 3n", "gemma3n_text", {**LAYERS, **PER_LAYER}),
    Family("Gemma 4", "gemma4_text", {**LAYERS, **PER_LAYER, "global_head_dim": 16}),
    Family("Mistral", "mistral", {"sliding_window": None}),
    Family("Mistral with a window", "mistral", {"sliding_window": 6}),
    Family("Ministral", "ministral", LAYERS),
    Family("Mixtral", "mixtral", {**MOE, "sliding_window": None}),
    Family("gpt-oss", "gpt_oss", {**LAYERS, **MOE, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}),
    Family("Phi-3", "phi3", {"sliding_window": None}),
    Family("Phi-3 long (longrope)", "phi3", {"rope_parameters": LONG, "original_max_position_embeddings": 32}),
    Family("Phi-1, 2", "phi", {}),
    Family("OLMo 2", "olmo2", {}),
    Family("OLMo 3", "olmo3", LAYERS),
    Family("SmolLM3", "smollm3", {}),
    Family("Granite", "granite", {"logits_scaling": 4.0, "attention_multiplier": 0.3}),
    Family("Granite-MoE-Hybrid", "granitemoehybrid", {**MAMBA, **MOE, "layer_types": ["mamba", "attention"] * 2}),
    Family("GLM-4", "glm4", {}),
    Family("GLM-4-MoE", "glm4_moe", {**MOE, "n_routed_experts": 4, "n_group": 1, "topk_group": 1}),
    Family("DeepSeek-V3 (MLA)", "deepseek_v3", MLA),
    Family("Cohere (Command R)", "cohere", {}),
    Family("Cohere 2", "cohere2", LAYERS),
    Family("StableLM", "stablelm", {}),
    Family("Falcon", "falcon", {**PLAIN, "num_kv_heads": 2, "new_decoder_architecture": True}),
    Family("Falcon with ALiBi", "falcon", {**PLAIN, "alibi": True, "new_decoder_architecture": False}),
    Family("Falcon-H1", "falcon_h1", {**MAMBA, "mamba_d_ssm": 64}),
    Family("Bloom", "bloom", {**PLAIN, "n_layer": 4, "n_head": 4}),
    Family("GPT-2", "gpt2", {**PLAIN, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}),
    Family("GPT-NeoX, Pythia", "gpt_neox", PLAIN),
    Family("GPT-J", "gptj", {**PLAIN, "n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4, "n_positions": 64}),
    Family("OPT", "opt", {**PLAIN, "ffn_dim": 48, "word_embed_proj_dim": 32}),
    Family("StarCoder 2", "starcoder2", {"sliding_window": 6}),
    Family("EXAONE 4", "exaone4", {**LAYERS, "sliding_window_pattern": 2}),
    Family("Seed-OSS", "seed_oss", {}),
    Family("Nemotron", "nemotron", {}),
    Family("LFM2", "lfm2", {"layer_types": ["conv", "full_attention"] * 2, "block_auto_adjust_ff_dim": False}),
    Family("Bamba", "bamba", {**MAMBA, "attn_layer_indices": [1, 3]}),
    Family("Mamba", "mamba", {"state_size": 8}),
    Family("Mamba 2", "mamba2", {"state_size": 8, "num_heads": 8, "head_dim": 8, "n_groups": 1, "chunk_size": 8}),
    Family("MiniMax", "minimax", {**MOE, "layer_types": ["linear_attention", "full_attention"] * 2, "block_size": 8}),
    Family("Jamba", "jamba", {**MOE, "attn_layer_period": 2, "attn_layer_offset": 1, "use_mamba_kernels": False}),
    Family("RecurrentGemma", "recurrent_gemma", {"lru_width": 32, "attention_window_size": 6}),
    Family("RWKV", "rwkv", {"attention_hidden_size": 32}),
]


def tiny(family: Family) -> torch.nn.Module:
    """A random model of the family, with weights large enough for differences to show."""
    from transformers import AutoConfig

    from gagpo.model.loading import untrained

    shape = {**TINY, **family.more}
    shape = {name: value for name, value in shape.items() if value is not None or name not in PLAIN}
    config = AutoConfig.for_model(family.kind, **shape)
    torch.manual_seed(0)
    model = untrained(config, trust_remote_code=False).float()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2:
                parameter.mul_(5)
            elif "sinks" in name:
                parameter.normal_()
    return model.eval()


def judge(family: Family) -> tuple[str, str]:
    """Check one family: ``flat``, ``general`` or ``refused``, and why it is not flat."""
    from gagpo.model.loading import choose_path

    try:
        model = tiny(family)
        why = choose_path(family.name, model)
    except Exception as error:  # whatever the code of a family raises is the answer
        return "refused", " ".join(str(error).split())[:200]
    return "flat" if is_flat(model) else "general", why


BEGIN, END = "<!-- families -->\n", "<!-- end of families -->\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="Check a tiny random model of every family.")
    parser.add_argument("--markdown", type=Path, help="write the table into this file, between its two marks")
    parser.add_argument("--only", help="families whose name or type contains this")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    from transformers.utils import logging

    logging.set_verbosity_error()
    expected = [f for f in FAMILIES if not options.only or options.only in f.name or options.only in f.kind]
    table = "| family | `model_type` | way | why not flat |\n|---|---|---|---|\n"
    for family in expected:  # some take a while: print each at once
        way, why = judge(family)
        print(f"{family.name:28} {way:8} {why}", flush=True)
        table += f"| {family.name} | `{family.kind}` | {way} | {why.replace('|', ' ')} |\n"
    if options.markdown:
        text = options.markdown.read_text(encoding="utf-8")
        before, _, remaining = text.partition(BEGIN)
        after = remaining.partition(END)[2]
        options.markdown.write_text(before + BEGIN + table + END + after, encoding="utf-8")


if __name__ == "__main__":
    main()
