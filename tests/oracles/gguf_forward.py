"""The logits of a GGUF file in plain numpy, from the file's own tensors and metadata, as llama.cpp's graph has them.

Llama turns numbers 2 i and 2 i + 1 of a head together, Qwen i and i + head_dim / 2. Rotation i of position p is
``p * base**(-2 i / head_dim) / factor_i``; the factors are those of ``rope_freqs.weight``, or those of linear scaling
and YaRN (arXiv 2309.00071).
"""

from __future__ import annotations

import math
from pathlib import Path

import gguf
import numpy as np


class Forward:
    """A model read from the parts of a file."""

    def __init__(self, *paths: Path):
        readers = [gguf.GGUFReader(path) for path in paths]
        self.fields = readers[0].fields
        self.tensors = {
            tensor.name: gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float64)
            for reader in readers
            for tensor in reader.tensors
        }
        self.arch = self.fields["general.architecture"].contents()
        self.heads = self.value("attention.head_count")
        self.kv_heads = self.value("attention.head_count_kv")
        self.head_dim = self.value("attention.key_length", self.value("embedding_length") // self.heads)

    def value(self, name, default=None):
        field = self.fields.get(f"{self.arch}.{name}")
        return default if field is None else field.contents()

    def logits(self, ids):
        """Logits [tokens, vocabulary] of a sequence."""
        embeddings = self.tensors["token_embd.weight"]
        hidden = embeddings[ids]
        for block in range(self.value("block_count")):
            hidden = hidden + self.attention(block, self.norm(hidden, f"blk.{block}.attn_norm"))
            read = self.norm(hidden, f"blk.{block}.ffn_norm")
            gate, up = self.linear(read, f"blk.{block}.ffn_gate"), self.linear(read, f"blk.{block}.ffn_up")
            hidden = hidden + self.linear(gate / (1 + np.exp(-gate)) * up, f"blk.{block}.ffn_down")
        return self.norm(hidden, "output_norm") @ self.tensors.get("output.weight", embeddings).T

    def linear(self, numbers, name):
        return numbers @ self.tensors[f"{name}.weight"].T + self.tensors.get(f"{name}.bias", 0.0)

    def norm(self, numbers, name):
        epsilon = self.value("attention.layer_norm_rms_epsilon")
        scale = 1 / np.sqrt((numbers**2).mean(-1, keepdims=True) + epsilon)
        return numbers * scale * self.tensors[f"{name}.weight"]

    def attention(self, block, read):
        tokens = len(read)
        shape = (tokens, -1, self.head_dim)
        query, key, value = (self.linear(read, f"blk.{block}.attn_{segment}").reshape(shape) for segment in "qkv")
        if f"blk.{block}.attn_q_norm.weight" in self.tensors:
            query, key = self.norm(query, f"blk.{block}.attn_q_norm"), self.norm(key, f"blk.{block}.attn_k_norm")
        query, key = self.turned(query), self.turned(key)
        attended = np.zeros((tokens, self.heads, self.head_dim))
        for head in range(self.heads):
            shared = head // (self.heads // self.kv_heads)
            scores = query[:, head] @ key[:, shared].T / math.sqrt(self.head_dim)
            scores[np.triu_indices(tokens, 1)] = -np.inf
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            attended[:, head] = weights / weights.sum(-1, keepdims=True) @ value[:, shared]
        return self.linear(attended.reshape(tokens, -1), f"blk.{block}.attn_output")

    def turned(self, numbers):
        """Queries or keys [tokens, heads, head_dim], turned by their positions."""
        angles, magnitude = self.angles()
        turn = np.exp(1j * np.outer(np.arange(len(numbers)), angles))[:, None] * magnitude
        turned = np.empty_like(numbers)
        half = self.head_dim // 2
        even, odd = (
            (np.s_[..., 0::2], np.s_[..., 1::2]) if self.arch == "llama" else (np.s_[..., :half], np.s_[..., half:])
        )
        complex_numbers = (numbers[even] + 1j * numbers[odd]) * turn
        turned[even], turned[odd] = complex_numbers.real, complex_numbers.imag
        return turned

    def angles(self):
        """Radians per position of each pair, and what YaRN multiplies queries and keys by."""
        base, dim = self.value("rope.freq_base", 10000.0), self.head_dim
        angles = base ** (-2 * np.arange(dim // 2) / dim) / self.tensors.get("rope_freqs.weight", 1.0)
        factor, type_name = self.value("rope.scaling.factor", 1.0), self.value("rope.scaling.type", "linear")
        if type_name == "linear":
            return angles / factor, 1.0
        if type_name == "none":
            return angles, 1.0
        original = self.value("rope.scaling.original_context_length", self.value("context_length"))

        def place(turns):
            return dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))

        fast, slow = self.value("rope.scaling.yarn_beta_fast", 32.0), self.value("rope.scaling.yarn_beta_slow", 1.0)
        low, high = max(0, math.floor(place(fast))), min(dim - 1, math.ceil(place(slow)))
        unscaled = 1 - np.clip((np.arange(dim // 2) - low) / max(0.001, high - low), 0, 1)
        magnitude = (1 + 0.1 * math.log(factor)) * self.value("rope.scaling.attn_factor", 1.0)
        return angles / factor * (1 - unscaled) + angles * unscaled, magnitude
