"""Arguments of vLLM: temperatures, seeds, memory on a CPU."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from gagpo.agents.engines.base import Request, Sampling
from gagpo.agents.shape import key_value_shape
from gagpo.base.errors import InvalidArgument

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig

TEMPERATURES = (0.01, 2.0)  # what vLLM accepts besides 0; it silently raises lower ones
BACKEND = "gagpo_file"  # name of our weight transfer among vLLM's own
CPU_CACHE = 2**30  # bytes of keys and values on a CPU, unless one response of full length needs more
CPU_BLOCK = 32  # tokens of a cache block on a CPU: prompts are shared in whole blocks
CPU_STEP = 8192  # tokens read in one step on a CPU


def temperature_of(request: Request, sampling: Sampling) -> float:
    """The temperature of a request. Raises: InvalidArgument for one that vLLM would change."""
    temperature = sampling.temperature_of(request)
    lowest, highest = TEMPERATURES
    if temperature and not lowest <= temperature <= highest:
        raise InvalidArgument(f"vLLM samples at temperature 0 or in [{lowest}, {highest}], got {temperature}")
    return temperature


def spread(seed: int) -> int:
    """Hash a seed to 63 bits, since generators on a CPU use only the lowest 32."""
    return int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0] >> 1)


def cpu_arguments(config: PreTrainedConfig, item_bytes: int, max_length: int) -> dict[str, int]:
    """vLLM's arguments about memory on a CPU, for a model with ``item_bytes`` per number."""
    token = 2 * math.prod(key_value_shape(config)) * item_bytes
    return {
        "kv_cache_memory_bytes": max(CPU_CACHE, token * (max_length + 2 * CPU_BLOCK)),
        "block_size": CPU_BLOCK,
        "enforce_eager": True,
        # A seeded request whose prompt is read in two steps fails: a CPU's generator cannot go back.
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": max(CPU_STEP, max_length),
    }


def repack_heads(model: torch.nn.Module) -> None:
    """Rebuild what the output layers of vLLM's model derive from their weights.

    Reloading does so for layers that receive weights. An output layer tied to the input embedding receives none, and on
    a CPU its packed copy would keep the old ones.
    """
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    for module in model.modules():
        if isinstance(module, ParallelLMHead):
            module.quant_method.process_weights_after_loading(module)
