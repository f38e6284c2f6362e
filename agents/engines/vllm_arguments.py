"""What vLLM samples exactly, in this process and in a server: its temperatures, its seeds, its memory on a CPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from gagpo.agents.engines.base import Request, Sampling
from gagpo.envs.errors import InvalidArgument

TEMPERATURES = (0.01, 2.0)  # what vLLM accepts besides 0; it would silently raise a lower one
CPU_CACHE = 2**30  # bytes of keys and values on a CPU, unless one response of full length needs more
CPU_BLOCK = 32  # tokens of a cache block on a CPU: prompts are shared in whole blocks
CPU_STEP = 8192  # tokens read in one step on a CPU


def temperature_of(request: Request, sampling: Sampling) -> float:
    """The temperature of a request; InvalidArgument for samplings that vLLM cannot give exactly."""
    temperature = sampling.temperature if request.temperature is None else request.temperature
    lowest, highest = TEMPERATURES
    if temperature and not lowest <= temperature <= highest:
        raise InvalidArgument(f"vLLM samples at temperature 0 or in [{lowest}, {highest}], got {temperature}")
    if sampling.top_p < 1:
        raise InvalidArgument(
            f"top_p is {sampling.top_p}: below 1 vLLM reports the nucleus's log-probabilities, not those of the whole "
            "distribution; use the transformers engine"
        )
    return temperature


def spread(seed: int) -> int:
    """A 63-bit number in which every bit depends on the whole seed: on a CPU, generators only use the lowest 32."""
    return int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0] >> 1)


def cpu_arguments(config: Any, item_bytes: int, max_length: int) -> dict[str, Any]:
    """vLLM's arguments about memory on a CPU, for a model of this config whose numbers take ``item_bytes``."""
    head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    token = 2 * config.num_hidden_layers * heads * head_size * item_bytes
    return {
        "kv_cache_memory_bytes": max(CPU_CACHE, token * (max_length + 2 * CPU_BLOCK)),
        "block_size": CPU_BLOCK,
        "enforce_eager": True,
        # A seeded request whose prompt is read in two steps ends in an error: a CPU's generator cannot go back.
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": max(CPU_STEP, max_length),
    }
