"""How tokens are averaged: token weights, and geometric and power means of segments.

Weights of tokens, and not nested means, express all plain aggregations: a sum of weighted terms needs no segments, and
its parts in several micro-batches add up.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gagpo.objectives.gates import Radius
from gagpo.objectives.layout import Layout, Normaliser, segment_mean
from gagpo.objectives.options import ActionMean, Constant, Geometric, Power, SequenceMean, TokenMean

AnyAggregation = TokenMean | SequenceMean | ActionMean | Constant | Geometric | Power


def token_weights(
    aggregation: AnyAggregation, layout: Layout, normaliser: Normaliser, dtype: torch.dtype = torch.float32
) -> Tensor | float:
    """Weight of each token in the mini-batch's mean; a number if all are equal.

    With geometric and power means these are the weights of KL and entropy, which are plain means within a segment.
    """
    match aggregation:
        case TokenMean():
            return 1.0 / normaliser.tokens
        case Constant():
            return 1.0 / (normaliser.rows * aggregation.tokens)
        case ActionMean() | Geometric(per="action") | Power(per="action"):
            return (1.0 / (normaliser.actions * layout.turn_tokens_M.to(dtype))).index_select(0, layout.turn_K)
        case _:
            return (1.0 / (normaliser.rows * layout.row_tokens_R.to(dtype))).index_select(0, layout.row_K)


def segment_power_mean(log_K: Tensor, segment_K: Tensor, tokens_S: Tensor, exponent: Radius) -> Tensor:
    """``(mean exp(log_K)^p)^(1/p)`` of each segment.

    float32 does not overflow or underflow for log_K within ±20 and p within [0.05, 2].

    exponent: a number, 0 for the geometric mean; or a tensor above 0 with one entry per token, equal within a segment.
    """
    if not isinstance(exponent, Tensor):
        if exponent == 0.0:
            return torch.exp(segment_mean(log_K, segment_K, tokens_S))
        return segment_mean(torch.exp(exponent * log_K), segment_K, tokens_S) ** (1.0 / exponent)
    exponent_S = segment_mean(exponent, segment_K, tokens_S)
    return segment_mean(torch.exp(exponent * log_K), segment_K, tokens_S) ** (1.0 / exponent_S)
