"""The loss of a micro-batch: old log-probabilities, policy and critic loss, and the error of a non-finite one.

In half precision a row's numbers depend on the rows next to it. A scoring pass therefore reads the same micro-batches
as the training steps, so that the ratios of an unchanged policy are 1.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gagpo.algorithms import Algorithm, CriticSettings
from gagpo.credit import Credit
from gagpo.learning.skipped_steps import NonFiniteLoss
from gagpo.model.microbatch import MicroBatch
from gagpo.model.networks import Outputs
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

    logprob_K: float64[K].
    weight_K: importance weights of the correction; None if all are 1.
    """

    logprob_K: np.ndarray
    weight_K: np.ndarray | None = None


def score(batch: MicroBatch, logprob_K: Tensor, correction: Correction) -> tuple[MicroBatch, Metrics]:
    """Compare the engine's log-probabilities with those of the unchanged policy, ``logprob_K``.

    Returns the micro-batch, with old log-probabilities replaced if the correction recomputes them, and mismatch sums.
    """
    logprob_K = logprob_K.detach()
    weight_K, sums = correction_weights(logprob_K, batch.logprob_K, batch.layout, correction)
    if correction.recomputes:
        batch = replace(batch, old_logprob_K=logprob_K.float(), weight_K=weight_K)
    return batch, {**sums, "tokens": torch.tensor(float(len(logprob_K)))}


def with_columns(batch: MicroBatch, credit: Credit, old: OldLogprobs | None) -> MicroBatch:
    """Add the columns of a training step to a micro-batch on the CPU.

    old: None where ratios start from the engine's log-probabilities.
    """
    turn_K = batch.turn_K.numpy()
    token_K = batch.token_K.numpy()
    by_token = credit.level == "token"
    credit_K = token_K if by_token else turn_K  # where a token's advantage stands

    def column(values: np.ndarray | None, index_K: np.ndarray) -> Tensor | None:
        return None if values is None else torch.as_tensor(values[index_K], dtype=torch.float32)

    # Where a turn has one advantage, the critic's value is trained at the turn's first token alone.
    first_K = None
    if credit.value_K is not None and not by_token:
        first_K = torch.as_tensor(np.flatnonzero(token_K == credit.first_token_N[turn_K]))
    old_logprob_K = None if old is None else column(old.logprob_K, token_K)
    return replace(
        batch,
        advantage_K=column(credit.advantage, credit_K),
        old_logprob_K=batch.logprob_K if old_logprob_K is None else old_logprob_K,
        weight_K=None if old is None else column(old.weight_K, token_K),
        old_value_K=column(credit.value_K, token_K),
        return_K=column(credit.target, credit_K),
        first_K=first_K,
    )


def micro_batch_loss(
    batch: MicroBatch, outputs: Outputs, algorithm: Algorithm, normaliser: Normaliser, controls: Controls | None
) -> tuple[Tensor, Metrics]:
    """The micro-batch's part of the loss, and metric sums. normaliser: of the mini-batch, over all ranks."""
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
        critic_loss, critic_metrics = _critic_loss(batch, outputs.value_K, algorithm.critic, normaliser)
        loss = loss + algorithm.critic.coefficient * critic_loss
        metrics = metrics | critic_metrics
    return loss, metrics


def _critic_loss(
    batch: MicroBatch, value_K: Tensor, settings: CriticSettings, normaliser: Normaliser
) -> tuple[Tensor, Metrics]:
    """The value loss over tokens, or over turns if each has one value."""
    assert batch.old_value_K is not None
    assert batch.return_K is not None
    columns = (value_K, batch.old_value_K, batch.return_K)
    if batch.first_K is None:
        return value_loss(*columns, settings.clip, normaliser.tokens)
    value_M, old_M, return_M = (column_K.index_select(0, batch.first_K) for column_K in columns)
    return value_loss(value_M, old_M, return_M, settings.clip, normaliser.actions)


def nonfinite_error(batch: MicroBatch, outputs: Outputs) -> NonFiniteLoss:
    """The error of a non-finite loss: names the first non-finite column and the turns."""
    column_and_rows = find_nonfinite(
        batch.layout,
        logprob=outputs.logprob_K,
        old_logprob=batch.old_logprob_K,
        advantage=batch.advantage_K,
        reference=outputs.reference_K,
    )
    message, rows = column_and_rows or ("the loss is not finite although its inputs are", [])
    turns = {int(turn) for row in rows for turn in batch.turn_K[batch.layout.row_K == row].tolist()}
    return NonFiniteLoss(message, sorted(turns))
