"""The KL of an update from a sample of rows: as exact as its use needs, and never where it could decide differently."""

import numpy as np
import pytest

from gagpo.data import Row
from gagpo.learning.sampled_kl import FRACTION, SMALLEST, bounded_kl, estimate
from gagpo.learning.update import divergence

LIMIT = 0.05


def rows_of(counts):
    edges = np.cumsum([0, *counts])
    zero_K = [np.zeros(count, np.float32) for count in counts]
    return [
        Row(
            np.zeros(count + 1, np.int32),
            np.arange(count) + 1,
            np.zeros(count, int),
            np.arange(edge, edge + count),
            zero,
        )
        for count, edge, zero in zip(counts, edges, zero_K, strict=False)
    ]


class Scores:
    """Log-ratios of all tokens, of which only those of the asked rows are filled; counts rows read."""

    def __init__(self, log_ratio_K):
        self.log_ratio_K = log_ratio_K
        self.rows_read = 0

    def __call__(self, rows):
        self.rows_read += len(rows)
        read_K = np.zeros_like(self.log_ratio_K)
        for row in rows:
            read_K[row.token_K] = self.log_ratio_K[row.token_K]
        return read_K


def ratios(rows, spread, seed=0):
    """Log-ratios whose spread differs from row to row by a heavy tail."""
    rng = np.random.default_rng(seed)
    scale_R = spread * rng.lognormal(0, 0.8, len(rows))
    return np.concatenate(
        [scale * rng.standard_normal(len(row.token_K)) for row, scale in zip(rows, scale_R, strict=True)]
    )


def test_far_below_the_limit_a_sample_is_enough():
    rows = rows_of([20, 5, 11] * 80)
    scores = Scores(ratios(rows, 0.03))
    kl = bounded_kl(rows, scores, LIMIT, 0.0, np.random.default_rng(1))
    assert scores.rows_read == len(rows) // FRACTION
    assert kl == pytest.approx(divergence(scores.log_ratio_K), rel=0.5)


@pytest.mark.parametrize(
    "log_ratio", [0.2, 0.33, 3.0, np.nan, np.inf], ids=["near", "beyond", "far beyond", "not a number", "infinite"]
)
def test_where_the_sample_does_not_decide_all_rows_are_read(log_ratio):
    rows = rows_of([12] * 64)
    scores = Scores(np.full(12 * 64, log_ratio) * np.where(np.arange(12 * 64) // 12 % 2, 1.0, 0.9))
    kl = bounded_kl(rows, scores, LIMIT, 0.001, np.random.default_rng(1))
    assert scores.rows_read == SMALLEST + 64
    assert kl == divergence(scores.log_ratio_K) - 0.001 or np.isnan(kl)


def test_few_rows_are_all_read():
    rows = rows_of([12] * (2 * SMALLEST - 1))
    scores = Scores(ratios(rows, 0.01))
    assert bounded_kl(rows, scores, LIMIT, 0.0, np.random.default_rng(1)) == divergence(scores.log_ratio_K)
    assert scores.rows_read == len(rows)


def test_a_sample_decides_as_all_rows_do():
    """Of updates beyond the limit none is missed, with heavy tails and the smallest sample."""
    rows = rows_of([8, 15, 3, 30] * 16)
    beyond = missed = 0
    for seed in range(300):
        scores = Scores(ratios(rows, 0.25, seed))
        exact = divergence(scores.log_ratio_K)
        decided = bounded_kl(rows, scores, LIMIT, 0.0, np.random.default_rng(seed))
        beyond += exact >= LIMIT
        missed += exact >= LIMIT > decided
    assert beyond > 250
    assert missed == 0


def test_the_standard_error_is_the_spread_of_estimates():
    rows = rows_of([8, 15, 3, 30] * 50)
    log_ratio_K = ratios(rows, 0.2)
    draws = [np.random.default_rng(seed).choice(len(rows), 40) for seed in range(600)]
    values, errors = zip(*(estimate([rows[i] for i in draw], log_ratio_K) for draw in draws), strict=True)
    assert np.mean(values) == pytest.approx(divergence(log_ratio_K), rel=0.03)
    assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(np.std(values), rel=0.15)


def test_the_sample_is_a_function_of_the_generator():
    rows = rows_of([20] * 64)
    scores = Scores(ratios(rows, 0.03))
    first, again, other = (bounded_kl(rows, scores, LIMIT, 0.0, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert first == again != other
