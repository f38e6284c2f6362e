"""The KL of an update, from a sample of rows where a sample decides what all rows would.

A trust region only asks whether an update has left it. Most updates stay far inside, and reading every row once more
would take as long as half of their forward passes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from gagpo.data import Row
from gagpo.learning.update import divergence

SMALLEST = 8
"""Rows of the smallest sample; with fewer their spread is not known well enough."""

FRACTION = 8
"""All rows per row of a sample."""

ERRORS = 4.0
"""Standard errors that are added to a sample's estimate."""

MARGIN = 4.0
"""How many times a sample's bound must fit into the limit.

A few rows can have most of the divergence, and a sample without them has a small standard error too. With rows whose
divergence varies by 3.5 times its mean, four errors alone miss one update in ten beyond the limit.
"""


def bounded_kl(
    rows: Sequence[Row],
    log_ratios: Callable[[Sequence[Row]], np.ndarray],
    limit: float,
    gap: float,
    rng: np.random.Generator,
) -> float:
    """KL(sampling policy || updated policy), nats per token; exact unless a sample shows it far below ``limit``.

    log_ratios: new less old log-probabilities of all response tokens, of which those of the given rows are read.
    gap: what the KL was before the update, from rounding in the sampler; subtracted.
    rng: the same on all ranks, and in a resumed run.
    """
    size = max(SMALLEST, len(rows) // FRACTION)
    if len(rows) >= 2 * size:
        sample = [rows[index] for index in np.sort(rng.choice(len(rows), size, replace=False))]
        kl, error = estimate(sample, log_ratios(sample))
        if MARGIN * (kl - gap + ERRORS * error) < limit:  # never for NaN
            return kl - gap
    return divergence(log_ratios(rows)) - gap


def estimate(rows: Sequence[Row], log_ratio_K: np.ndarray) -> tuple[float, float]:
    """The KL of a token in a sample of rows, and its standard error.

    The tokens of a row depend on each other, so the error is that of a ratio of two sums over rows (linearised;
    Cochran, Sampling Techniques, 6.4), without the correction for a finite population, which would make it smaller.
    """
    tokens_R = np.array([len(row.token_K) for row in rows], np.float64)
    kl_R = np.array([divergence(log_ratio_K[row.token_K]) for row in rows])
    kl = float((kl_R * tokens_R).sum() / tokens_R.sum())
    residual_R = (kl_R - kl) * tokens_R
    return kl, float(np.sqrt(len(rows) / (len(rows) - 1) * (residual_R**2).sum()) / tokens_R.sum())
