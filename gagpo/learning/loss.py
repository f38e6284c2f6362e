"""The loss of one micro-batch: old log-probabilities, the policy's and the critic's part, and non-finite losses.

In half precision a row gives other numbers next to other rows, and a ratio of the untouched policy has to be 1. So a
scoring pass reads the same micro-batches as the first steps.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gagpo.algorithms import Algorithm, CriticSettings
from gagpo.credit import Credit
from gagpo.credit.assign import first_tokens
from gagpo.learning.forward import Outputs
from gagpo.learning.packing import MicroBatch
from gagpo.learning.skipped_steps import NonFiniteLoss
from gagpo.objectives import (
    Controls,
    Correction,
    Normaliser,
    correction_weights,
    find_nonfinite,
    policy_loss,
    value_loss,
)
from gagpo.objectives.policy import Metrics


class OldLogprobs(NamedTuple):
    """Log-probabilities under the policy before the first step.

    logprob_K: float64[K], in the order of the turns.
    weight_K: importance weights of the correction, None where all are 1.
    """

    logprob_K: np.ndarray
    weight_K: np.ndarray | None = None


def score(batch: MicroBatch, logprob_K: Tensor, correction: Correction) -> tuple[MicroBatch, Metrics]:
    """Compare the engine with the policy before its first step, whose log-probabilities are ``logprob_K``.

    Returns the micro-batch, with ratios that start from the policy where the correction recomputes them, and the sums
    of the mismatch.
    """
    logprob_K = logprob_K.detach()
    weight_K, sums = correction_weights(logprob_K, batch.logprob_K, batch.layout, correction)
    if correction.recomputes:
        batch = replace(batch, old_logprob_K=logprob_K.float(), weight_K=weight_K)
    return batch, {**sums, "tokens": torch.tensor(float(len(logprob_K)))}


def with_columns(batch: MicroBatch, credit: Credit, old: OldLogprobs | None) -> MicroBatch:
    """The micro-batch, on the CPU, with its part of the credit and of what ratios start from.

    old: None where they start from the log-probabilities that the engine sampled with.
    """
    turn_K, token_K = batch.turn_K.numpy(), batch.token_K.numpy()
    by_token = credit.level == "token"
    own_K = token_K if by_token else turn_K  # where the credit of each token stands

    def column(values: np.ndarray | None, place_K: np.ndarray) -> Tensor | None:
        return None if values is None else torch.as_tensor(values[place_K], dtype=torch.float32)

    first_K = None
    if credit.value_K is not None and not by_token:
        first_K = torch.as_tensor(np.flatnonzero(token_K == first_tokens(credit.tokens_N)[turn_K]))
    old_logprob_K = None if old is None else column(old.logprob_K, token_K)
    return replace(
        batch,
        advantage_K=column(credit.advantage, own_K),
        old_logprob_K=batch.logprob_K if old_logprob_K is None else old_logprob_K,
        weight_K=None if old is None else column(old.weight_K, token_K),
        old_value_K=column(credit.value_K, token_K),
        return_K=column(credit.target, own_K),
        first_K=first_K,
    )


def micro_batch_loss(
    batch: MicroBatch, outputs: Outputs, algorithm: Algorithm, normaliser: Normaliser, controls: Controls | None
) -> tuple[Tensor, Metrics]:
    """Its part of the mini-batch's loss, and sums to log. normaliser: of the whole mini-batch, over all ranks."""
    assert batch.advantage_K is not None
    loss, metrics = policy_loss(
        outputs.logprob_K,
        batch.old_logprob_K,
        batch.advantage_K,
        batch.layout,
        algorithm,
        normaliser,
        controls,
        outputs.reference_K,
        outputs.entropy_K,
        batch.weight_K,
    )
    if outputs.value_K is not None:
        assert algorithm.critic is not None
        critics, more = _critic_loss(batch, outputs.value_K, algorithm.critic, normaliser)
        loss, metrics = loss + algorithm.critic.coefficient * critics, metrics | more
    return loss, metrics


def _critic_loss(
    batch: MicroBatch, value_K: Tensor, settings: CriticSettings, normaliser: Normaliser
) -> tuple[Tensor, Metrics]:
    """Over the tokens, or over the turns where those have one value each."""
    old_K, return_K = batch.old_value_K, batch.return_K
    assert old_K is not None
    assert return_K is not None
    if batch.first_K is None:
        return value_loss(value_K, old_K, return_K, settings.clip, normaliser.tokens)
    value_M, old_M, return_M = (x.index_select(0, batch.first_K) for x in (value_K, old_K, return_K))
    return value_loss(value_M, old_M, return_M, settings.clip, normaliser.actions)


def nonfinite_error(batch: MicroBatch, outputs: Outputs) -> NonFiniteLoss:
    """What to say of a loss that is not finite: which column began it, and in which turns of the batch."""
    found = find_nonfinite(
        batch.layout,
        logprob=outputs.logprob_K,
        old_logprob=batch.old_logprob_K,
        advantage=batch.advantage_K,
        reference=outputs.reference_K,
    )
    message, rows = found or ("the loss is not finite although its inputs are", [])
    turns = {int(turn) for row in rows for turn in batch.turn_K[batch.layout.row_K == row].tolist()}
    return NonFiniteLoss(message, sorted(turns))
