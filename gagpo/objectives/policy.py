"""The policy loss for every ratio level, gate and aggregation, on the flat token axis.

Ratio level, gate and aggregation are three choices that papers combine freely. Here each is a setting of one function
on a flat axis, so an algorithm is a row of a table (:mod:`gagpo.algorithms`) and a new one needs no new loss. Padded
matrices would need a mask in every term; on the flat axis an action is an integer id.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from gagpo.base.errors import InvalidArgument
from gagpo.objectives.aggregation import segment_power_mean, token_weights
from gagpo.objectives.gates import (
    WEIGHED,
    Controls,
    LogBounds,
    Radius,
    cispo_weight,
    coefficient,
    dppo_weight,
    log_bounds,
    log_coefficient,
)
from gagpo.objectives.layout import Layout, Normaliser, segment_mean, segment_sum
from gagpo.objectives.nonfinite import LOG_RATIO_LIMIT, clamped_log_ratio
from gagpo.objectives.options import Cispo, Dppo, Geometric, Likelihood, ObjectiveSettings, Power

KL_LIMIT = 10.0
"""Upper bound of a token's KL estimate."""

Metrics = dict[str, Tensor]


def policy_loss(
    logprob_K: Tensor,
    old_logprob_K: Tensor,
    advantage_K: Tensor,
    layout: Layout,
    settings: ObjectiveSettings,
    normaliser: Normaliser | None = None,
    controls: Controls | None = None,
    ref_logprob_K: Tensor | None = None,
    entropy_K: Tensor | None = None,
    weight_K: Tensor | None = None,
) -> tuple[Tensor, Metrics]:
    """Loss of K response tokens (a scalar to minimise), and metric sums for :func:`summary`.

    NaN or infinity in an input makes the loss NaN; :func:`find_nonfinite` locates it. Does not wait for the device.

    logprob_K: log-probabilities under the policy in training, with gradient.
    old_logprob_K: under the policy that sampled.
    advantage_K: see :meth:`gagpo.credit.Credit.per_token`.
    normaliser: what the mean divides by, by default these tokens. Pass that of the whole mini-batch
        (:meth:`Normaliser.total`) to add up the losses of micro-batches, which must not cut actions or rows.
    ref_logprob_K, entropy_K: the reference policy's, and the policy's entropy in nats, for KL and entropy terms.
    weight_K: >= 0, weight of each token's term without KL and entropy, see :func:`correction_weights`; a geometric or
        power mean is weighted by the segment's mean.

    Raises:
        InvalidArgument: shapes differ, or the reference or entropy is missing.
    """
    layout.check(logprob_K=logprob_K, old_logprob_K=old_logprob_K, advantage_K=advantage_K, weight_K=weight_K)
    layout.check(ref_logprob_K=ref_logprob_K, entropy_K=entropy_K)
    _require_inputs(settings, ref_logprob_K, entropy_K)
    normaliser = normaliser or layout.normaliser
    controls = controls or Controls()
    if logprob_K.dtype in (torch.float16, torch.bfloat16):
        logprob_K = logprob_K.float()  # a ratio near 1 is a difference that half precision would round away
    advantage_K = advantage_K.to(logprob_K.dtype).detach()
    if weight_K is not None:
        weight_K = weight_K.to(logprob_K.dtype).detach()
        # Gates are homogeneous in the advantage: weighting it weights the term.
        advantage_K = advantage_K * weight_K
    share_K = token_weights(settings.aggregation, layout, normaliser, logprob_K.dtype)
    log_ratio_K = clamped_log_ratio(logprob_K - old_logprob_K.detach())
    if isinstance(settings.aggregation, Geometric | Power):
        objective, metrics = _segment_means(log_ratio_K, advantage_K, layout, settings, normaliser, controls)
    else:
        logprobs = (logprob_K, old_logprob_K.detach())
        objective, metrics = _gated_sum(log_ratio_K, logprobs, advantage_K, share_K, layout, settings, controls)

    metrics["tokens"] = logprob_K.new_full((), float(len(logprob_K)))
    metrics["approx_kl"] = -log_ratio_K.detach().sum()
    loss = -objective
    if ref_logprob_K is not None and settings.kl.coefficient > 0:
        kl_K = kl_divergence(logprob_K, ref_logprob_K, settings.kl.estimator)
        loss = loss + settings.kl.coefficient * (share_K * kl_K).sum()
        metrics["kl"] = kl_K.detach().sum()
    if entropy_K is not None:
        metrics["entropy"] = entropy_K.detach().sum()
        if settings.entropy > 0:
            loss = loss - settings.entropy * (share_K * entropy_K).sum()
    return loss, metrics


def _gated_sum(
    log_ratio_K: Tensor,
    logprobs: tuple[Tensor, Tensor],
    advantage_K: Tensor,
    share_K: Tensor | float,
    layout: Layout,
    settings: ObjectiveSettings,
    controls: Controls,
) -> tuple[Tensor, Metrics]:
    """The weighted sum of gated terms: of tokens where each has its own gradient, else of segments."""
    if settings.ratio == "token" or settings.ratio_gradient == "token" or isinstance(settings.gate, WEIGHED):
        return _tokens(log_ratio_K, logprobs, advantage_K, share_K, layout, settings, controls)
    return _segments(log_ratio_K, advantage_K, share_K, layout, settings, controls)


def _require_inputs(settings: ObjectiveSettings, ref_logprob_K: Tensor | None, entropy_K: Tensor | None) -> None:
    """Raise InvalidArgument if a term of the loss lacks its input."""
    if settings.kl.coefficient > 0 and ref_logprob_K is None:
        raise InvalidArgument(
            "kl.coefficient is above 0",
            key="kl.coefficient",
            advice="give ref_logprob_K, the reference policy's log-probabilities",
        )
    if settings.entropy > 0 and entropy_K is None:
        raise InvalidArgument(
            "entropy is above 0", key="entropy_K", advice="give entropy_K, the policy's entropy at each token"
        )


def kl_divergence(logprob_K: Tensor, ref_logprob_K: Tensor, estimator: Literal["k1", "k2", "k3"] = "k3") -> Tensor:
    """Estimate of KL(policy || reference) at each token, of a size of at most 10; see :class:`Kl` for the estimators.

    Source of the estimators: Schulman, "Approximating KL divergence" (2020).
    """
    x_K = clamped_log_ratio(logprob_K - ref_logprob_K.detach())
    if estimator == "k1":
        return x_K.clamp(-KL_LIMIT, KL_LIMIT)
    if estimator == "k2":
        return (0.5 * x_K * x_K).clamp(max=KL_LIMIT)
    return (torch.expm1(-x_K) + x_K).clamp(max=KL_LIMIT)


def _pooled(log_ratio_K: Tensor, layout: Layout, settings: ObjectiveSettings) -> Tensor:
    """The log-ratio of each action or sequence.

    A sum over hundreds of tokens may leave the range whose exponential is finite in float32, so it is clamped again.
    """
    segment_K, tokens_S = layout.segments(settings.ratio)
    if settings.ratio_pool == "mean":
        return segment_mean(log_ratio_K, segment_K, tokens_S)
    return segment_sum(log_ratio_K, segment_K, len(tokens_S)).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def log_ratio_on_tokens(log_ratio_K: Tensor, layout: Layout, settings: ObjectiveSettings) -> Tensor:
    """The log-ratio of the chosen level at each token."""
    if settings.ratio == "token":
        return log_ratio_K
    segment_K, _ = layout.segments(settings.ratio)
    if settings.ratio_gradient == "segment":
        return _pooled(log_ratio_K, layout, settings).index_select(0, segment_K)
    # The segment's value with each token's own gradient: the difference in brackets is detached and changes the value
    # alone (GSPO-token).
    value_K = _pooled(log_ratio_K.detach(), layout, settings).index_select(0, segment_K)
    return log_ratio_K + (value_K - log_ratio_K.detach())


def _tokens(
    log_ratio_K: Tensor,
    logprobs: tuple[Tensor, Tensor],
    advantage_K: Tensor,
    share_K: Tensor | float,
    layout: Layout,
    settings: ObjectiveSettings,
    controls: Controls,
) -> tuple[Tensor, Metrics]:
    """The objective of gates with one value per token. logprobs: new and old of each token."""
    logprob_K, old_logprob_K = logprobs
    bounds = log_bounds(settings.gate, controls)
    log_ratio_K = log_ratio_on_tokens(log_ratio_K, layout, settings)
    sign_K = torch.sign(advantage_K)
    if isinstance(settings.gate, Cispo):
        detached_K, outside_K = cispo_weight(log_ratio_K, bounds)
        value_K = detached_K * logprob_K
        clipped_K = outside_K & (sign_K != 0)
    elif isinstance(settings.gate, Dppo):
        detached_K, clipped_K = dppo_weight(log_ratio_K, logprob_K, old_logprob_K, sign_K, settings.gate)
        value_K = detached_K * logprob_K
    elif isinstance(settings.gate, Likelihood):
        value_K, clipped_K = logprob_K, None
    else:
        value_K, clipped_K = coefficient(log_ratio_K, sign_K, settings.gate, bounds)
    objective = (share_K * advantage_K * value_K).sum()
    return objective, _ratio_metrics(log_ratio_K) | _clip_metrics(clipped_K, sign_K)


def _segments(
    log_ratio_K: Tensor,
    advantage_K: Tensor,
    share_K: Tensor | float,
    layout: Layout,
    settings: ObjectiveSettings,
    controls: Controls,
) -> tuple[Tensor, Metrics]:
    """The objective with one ratio per action or sequence, from the sums of a segment's weighted advantages.

    Positive and negative advantages are summed separately, since a row may contain both.
    """
    segment_K, tokens_S = layout.segments(settings.ratio)
    pooled_S = _pooled(log_ratio_K, layout, settings)
    bounds = _segment_bounds(log_bounds(settings.gate, controls), segment_K, tokens_S)
    weighted_K = share_K * advantage_K
    gain_S = segment_sum(weighted_K.clamp(min=0), segment_K, len(tokens_S))
    cost_S = segment_sum(weighted_K.clamp(max=0), segment_K, len(tokens_S))
    up_S, high_S = coefficient(pooled_S, 1.0, settings.gate, bounds)
    down_S, low_S = coefficient(pooled_S, -1.0, settings.gate, bounds)
    objective = (gain_S * up_S + cost_S * down_S).sum()
    metrics = _ratio_metrics(pooled_S)
    if high_S is not None and low_S is not None:
        metrics["clip_high"] = torch.count_nonzero(high_S & (gain_S > 0))
        metrics["clip_low"] = torch.count_nonzero(low_S & (cost_S < 0))
    return objective, metrics


def _segment_bounds(bounds: LogBounds, segment_K: Tensor, tokens_S: Tensor) -> LogBounds:
    """Bounds per segment from bounds per token, which are equal within a segment."""

    def pooled(bound: Radius) -> Radius:
        return segment_mean(bound, segment_K, tokens_S) if isinstance(bound, Tensor) else bound

    return LogBounds(pooled(bounds.low), pooled(bounds.high), bounds.dual)


def _segment_means(
    log_ratio_K: Tensor,
    advantage_K: Tensor,
    layout: Layout,
    settings: ObjectiveSettings,
    normaliser: Normaliser,
    controls: Controls,
) -> tuple[Tensor, Metrics]:
    """The objective of a geometric or power mean of each segment's gated ratios, times its mean advantage."""
    aggregation = settings.aggregation
    assert isinstance(aggregation, Geometric | Power)
    segment_K, tokens_S = layout.segments(aggregation.per)
    count = normaliser.actions if aggregation.per == "action" else normaliser.rows
    exponent: Radius = 0.0
    if isinstance(aggregation, Power):
        exponent = aggregation.exponent if controls.exponent is None else controls.exponent
    bounds = log_bounds(settings.gate, controls)
    advantage_S = segment_mean(advantage_K, segment_K, tokens_S)
    sign_K = torch.sign(advantage_S).index_select(0, segment_K)
    log_ratio_K = log_ratio_on_tokens(log_ratio_K, layout, settings)
    log_K, clipped_K = log_coefficient(log_ratio_K, sign_K, settings.gate, bounds)
    mean_S = segment_power_mean(log_K, segment_K, tokens_S, exponent)
    objective = (advantage_S * mean_S).sum() / count
    return objective, _ratio_metrics(log_ratio_K) | _clip_metrics(clipped_K, sign_K)


@torch.no_grad()
def _ratio_metrics(log_ratio: Tensor) -> Metrics:
    """Sums over the ratios (of tokens, actions or sequences)."""
    return {
        "elements": log_ratio.new_full((), float(len(log_ratio))),
        "ratio": log_ratio.exp().sum(),
        "log_ratio_squared": torch.dot(log_ratio, log_ratio),
    }


@torch.no_grad()
def _clip_metrics(clipped: Tensor | None, sign: Tensor) -> Metrics:
    """Numbers of clipped elements with A < 0 and A > 0; empty for gates without a clip."""
    if clipped is None:
        return {}
    # Two sums give both counts, without a mask for each sign.
    both = torch.count_nonzero(clipped)
    difference = (clipped * sign).sum()  # clipped with A > 0 less clipped with A < 0
    return {"clip_low": 0.5 * (both - difference), "clip_high": 0.5 * (both + difference)}
