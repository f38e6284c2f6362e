"""How tokens are averaged: weights of a plain mean, and geometric and power means within segments."""

from __future__ import annotations

import torch
from torch import Tensor

from gagpo.objectives.gates import Radius
from gagpo.objectives.layout import Layout, Normaliser, segment_sum
from gagpo.objectives.settings import ActionMean, Constant, Geometric, Power, SequenceMean, TokenMean

AnyAggregation = TokenMean | SequenceMean | ActionMean | Constant | Geometric | Power


def token_weights(aggregation: AnyAggregation, layout: Layout, normaliser: Normaliser) -> Tensor | float:
    """Weight of each token in the mini-batch's mean, a number where all are equal.

    For geometric and power means these weigh what is added to the objective (KL, entropy): plainly within a segment.
    """
    match aggregation:
        case TokenMean():
            return 1.0 / normaliser.tokens
        case Constant(length=length):
            return 1.0 / (normaliser.rows * length)
        case ActionMean() | Geometric(per="action") | Power(per="action"):
            return (1.0 / (normaliser.actions * layout.turn_tokens_M))[layout.turn_K]
        case _:
            return (1.0 / (normaliser.rows * layout.row_tokens_R))[layout.row_K]


def segment_power_mean(log_K: Tensor, segment_K: Tensor, tokens_S: Tensor, exponent: Radius) -> Tensor:
    """``log M_p`` of each segment of ``exp(log_K)``; ``exponent`` 0 is the geometric mean.

    ``log M_p = m + log(mean exp(p (log c - m)))/p`` holds for any m; with m the segment's mean of log c, the mean of
    ``exp`` is at least 1 (Jensen), so that nothing cancels however small p is or far apart the ratios are.
    """
    segments = len(tokens_S)
    mean_S = segment_sum(log_K, segment_K, segments) / tokens_S
    if not isinstance(exponent, Tensor) and exponent == 0.0:
        return mean_S
    exponent_S = segment_sum(exponent, segment_K, segments) / tokens_S if isinstance(exponent, Tensor) else exponent
    exponent_K = exponent_S[segment_K] if isinstance(exponent_S, Tensor) else exponent
    middle_S = mean_S.detach()
    spread_K = torch.expm1(exponent_K * (log_K - middle_S[segment_K]))
    return middle_S + torch.log1p(segment_sum(spread_K, segment_K, segments) / tokens_S) / exponent_S
