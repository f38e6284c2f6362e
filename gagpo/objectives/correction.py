"""Correction of the difference between sampler and trainer: other kernels, other precision, older weights.

Weights (truncated importance sampling) or masks tokens or sequences by the log-weight ``x = logp_trainer -
logp_sampler`` of each token, both before the first update.

Part of this gap is not learning: engines multiply in another order or precision than the trainer. Uncorrected, the
first step already has ratios other than 1, and the clip cuts tokens that nothing has moved.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gagpo.objectives.layout import Layout, segment_mean
from gagpo.objectives.nonfinite import clamped_log_ratio
from gagpo.objectives.options import Correction


@torch.no_grad()
def correction_weights(
    logprob_trainer_K: Tensor, logprob_sampler_K: Tensor, layout: Layout, settings: Correction
) -> tuple[Tensor | None, dict[str, Tensor]]:
    """Weight of each token for :func:`policy_loss`, float[K] (None if all are 1), and metric sums for :func:`summary`.

    The metrics are ``mismatch_kl`` (KL(sampler || trainer), k3, per token), ``mismatch_weight`` (mean weight before any
    cap), ``mismatch_max`` (largest ``|x|``) and ``masked_tokens`` (fraction of masked tokens). NaN and infinite
    log-probabilities give NaN weights.

    logprob_trainer_K: under the trainer's weights before the first update. No row may be cut in two.
    logprob_sampler_K: under the engine.
    """
    layout.check(logprob_trainer_K=logprob_trainer_K, logprob_sampler_K=logprob_sampler_K)
    # At least float32: the gap is often smaller than what bfloat16 resolves.
    dtype = torch.promote_types(logprob_trainer_K.dtype, torch.float32)
    log_K = clamped_log_ratio(logprob_trainer_K.to(dtype) - logprob_sampler_K.to(dtype))
    weight_K = torch.exp(log_K)
    metrics = {
        "mismatch_kl": (torch.expm1(log_K) - log_K).sum(),
        "mismatch_weight": weight_K.sum(),
        "mismatch_max": log_K.abs().max(),
    }
    correction_K = weight_K.clamp(max=settings.cap) if settings.name == "tis" else None
    if settings.name == "icepop":
        mask_K = _within(weight_K, settings.low, settings.high)
        metrics["masked_tokens"] = torch.count_nonzero(mask_K == 0)
        correction_K = weight_K * mask_K
    if settings.name == "sequence":
        mean_R = torch.exp(segment_mean(log_K, layout.row_K, layout.row_tokens_R))
        correction_K = _within(mean_R, settings.low, settings.high).index_select(0, layout.row_K)
        metrics["masked_tokens"] = torch.count_nonzero(correction_K == 0)
    return correction_K, metrics


def _within(weight: Tensor, low: float, high: float) -> Tensor:
    """1 within the limits, 0 outside, NaN for NaN."""
    mask = ((weight >= low) & (weight <= high)).to(weight.dtype)
    return torch.where(torch.isnan(weight), weight, mask)
