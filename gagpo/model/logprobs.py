"""Log-probabilities and entropies of sampled tokens, in bounded memory.

Logits, their softmax and the gradients of both take 16 bytes per token and vocabulary entry: 10 GB for 4,096 tokens and
a vocabulary of 152,000. So the output layer works on chunks of tokens and recomputes the logits for the gradients.
Shape suffixes: K response tokens, U their predictions, C predictions of a chunk, D width, V vocabulary.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from gagpo.model.flat.attention import head, hidden_states
from gagpo.model.microbatch import MicroBatch

CHUNK = 2**25
"""Logits in memory at a time on a CPU; a batch with fewer is not cut, and not recomputed."""
GPU_CHUNK = 2**27
"""The same on a GPU, which needs larger products to be busy."""

Entropy = Literal["none", "value", "gradient", "squares"]


def hidden_of(model: torch.nn.Module, batch: MicroBatch) -> Tensor:
    """Hidden states ``(U, D)`` from which the response tokens are predicted; see :meth:`MicroBatch.per_token`."""
    return hidden_states(model, batch.ids_T, batch.packed, batch.keep_U)


def token_logprobs(
    model: torch.nn.Module, batch: MicroBatch, entropy: Entropy = "gradient", hidden_UD: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """Log-probability and entropy (nats) of each response token at its sampling temperature, float32[K] each.

    entropy: ``gradient``; ``value``, without gradient; ``squares``, the sum of squared probabilities without gradient
        instead of the entropy; or ``none``.
    hidden_UD: :func:`hidden_of` the batch, if already computed.
    """
    if hidden_UD is None:
        hidden_UD = hidden_of(model, batch)
    tokens = chunk_tokens(_vocabulary(model), hidden_UD.device.type)
    if len(hidden_UD) <= tokens:
        logprob_U, entropy_U = _of_chunk(model, hidden_UD, batch.target_U, batch.temperature_U, entropy)
        return batch.per_token(logprob_U), None if entropy_U is None else batch.per_token(entropy_U)
    logprobs = []
    entropies = []
    for begin in range(0, len(hidden_UD), tokens):
        # With gradients, the backward pass recomputes the chunk's logits. No random state is kept for it: there is no
        # dropout to repeat.
        chunk = slice(begin, begin + tokens)
        temperature_C = None if batch.temperature_U is None else batch.temperature_U[chunk]
        arguments = (model, hidden_UD[chunk], batch.target_U[chunk], temperature_C, entropy)
        if torch.is_grad_enabled():
            logprob_C, entropy_C = checkpoint(_of_chunk, *arguments, use_reentrant=False, preserve_rng_state=False)
        else:
            logprob_C, entropy_C = _of_chunk(*arguments)
        logprobs.append(logprob_C)
        entropies.append(entropy_C)
    logprob_K = batch.per_token(torch.cat(logprobs))
    if entropy == "none":
        return logprob_K, None
    return logprob_K, batch.per_token(torch.cat(entropies))


def chunk_tokens(vocabulary: int, device_type: str) -> int:
    """Tokens per chunk on a device of this type (``cpu``, ``cuda``)."""
    return max(1, (CHUNK if device_type == "cpu" else GPU_CHUNK) // vocabulary)


def _of_chunk(
    model: torch.nn.Module, hidden_CD: Tensor, target_C: Tensor, temperature_C: Tensor | None, entropy: Entropy
) -> tuple[Tensor, Tensor | None]:
    """Log-probability and entropy of each prediction, float32[C], as :func:`token_logprobs` defines them.

    The operations are those of the engine's ``sample`` in its order, so that both agree bit for bit.
    """
    # In float32: the difference of two log-probabilities is what is trained on, and bfloat16 has three digits.
    logits_CV = head(model, hidden_CD).float()
    if temperature_C is not None:
        logits_CV = logits_CV / temperature_C[:, None]
    logprob_CV = torch.log_softmax(logits_CV, -1)
    logprob_C = logprob_CV.gather(-1, target_C[:, None])[:, 0]
    if entropy == "none":
        return logprob_C, None
    if entropy == "squares":
        return logprob_C, (2 * logprob_CV.detach()).exp().sum(-1)
    # Both conditions: True alone would switch gradients on inside ``no_grad``.
    with torch.set_grad_enabled(torch.is_grad_enabled() and entropy == "gradient"):
        return logprob_C, -(logprob_CV.exp() * logprob_CV).sum(-1)


def _vocabulary(model: torch.nn.Module) -> int:
    return int(model.get_output_embeddings().weight.shape[0])  # type: ignore[operator]
