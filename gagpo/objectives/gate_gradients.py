"""What a gate leaves of each token's gradient, for people who look at episodes.

It stands apart from the loss and is computed without gradient, so that showing it cannot change what is trained. The
slope comes from automatic differentiation of the same coefficient, not from a second set of formulas.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gagpo.objectives.gates import Controls, cispo_weight, coefficient, dppo_weight, log_bounds
from gagpo.objectives.layout import Layout, segment_mean
from gagpo.objectives.nonfinite import clamped_log_ratio
from gagpo.objectives.options import Cispo, Dppo, Geometric, Likelihood, ObjectiveSettings, Power
from gagpo.objectives.policy import log_ratio_on_tokens


def gate_weights(
    logprob_K: Tensor,
    old_logprob_K: Tensor,
    advantage_K: Tensor,
    layout: Layout,
    settings: ObjectiveSettings,
    controls: Controls | None = None,
) -> Tensor:
    """Gradient of each token's gated term by its ratio, relative to that of ``r A``, without gradient, float[K].

    A hard clip gives 0 where it clips and 1 elsewhere; SAPO ``sech^2(tau (r-1)/2)``; the detached weights of ``cispo``
    and ``dppo``, divided by r. 1 where A is 0. Ratios are those of the chosen level; a geometric or power mean then
    weights its tokens further.

    Arguments as in :func:`gagpo.objectives.policy_loss`.
    """
    logprob_K = logprob_K.detach()
    old_logprob_K = old_logprob_K.detach()
    gate = settings.gate
    bounds = log_bounds(gate, controls or Controls())
    if isinstance(settings.aggregation, Geometric | Power):
        segment_K, tokens_S = layout.segments(settings.aggregation.per)
        advantage_K = segment_mean(advantage_K, segment_K, tokens_S).index_select(0, segment_K)
    sign_K = torch.sign(advantage_K)
    log_ratio_K = log_ratio_on_tokens(clamped_log_ratio(logprob_K - old_logprob_K), layout, settings)
    if isinstance(gate, Cispo):
        weight_K = cispo_weight(log_ratio_K, bounds)[0] * torch.exp(-log_ratio_K)
    elif isinstance(gate, Dppo):
        weight_K = dppo_weight(log_ratio_K, logprob_K, old_logprob_K, sign_K, gate)[0] * torch.exp(-log_ratio_K)
    elif isinstance(gate, Likelihood):
        weight_K = torch.exp(-log_ratio_K)
    else:
        with torch.enable_grad():
            leaf_K = log_ratio_K.requires_grad_()
            value_K, _ = coefficient(leaf_K, sign_K, gate, bounds)
            (slope_K,) = torch.autograd.grad(value_K.sum(), leaf_K)
        weight_K = slope_K * torch.exp(-log_ratio_K.detach())
    return torch.where(sign_K == 0, 1.0, weight_K)
