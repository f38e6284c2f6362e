"""Old log-probabilities where they are the trainer's own, and how far the engine that sampled was from the trainer.

In half precision the same row gives other numbers beside other rows, and a ratio of the untouched policy has to be 1.
So a scoring pass reads the very micro-batches that the first steps read.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gagpo.learning.packing import MicroBatch
from gagpo.objectives import Correction, correction_weights
from gagpo.objectives.policy import Metrics


class OldLogprobs(NamedTuple):
    """Log-probabilities under the policy before the first step, [K] in the order of the turns.

    weight_K: of the correction that follows from them; None where all are 1.
    """

    logprob_K: np.ndarray
    weight_K: np.ndarray | None = None


def score(batch: MicroBatch, logprob_K: Tensor, correction: Correction) -> tuple[MicroBatch, Metrics]:
    """Compare the engine with the policy before its first step, whose log-probabilities are ``logprob_K``.

    Gives the micro-batch, with ratios that start from the policy where the correction recomputes them, and the sums of
    the mismatch.
    """
    logprob_K = logprob_K.detach()
    weight_K, sums = correction_weights(logprob_K, batch.logprob_K, batch.layout, correction)
    if correction.recomputes:
        batch = replace(batch, old_logprob_K=logprob_K.float(), weight_K=weight_K)
    return batch, {**sums, "tokens": torch.tensor(float(len(logprob_K)))}
