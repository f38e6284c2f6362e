"""Estimates of k of a task's episodes from their counts: majority@k, and the number of distinct correct solutions.

Each is the mean over all subsets of k of a task's n episodes, so any k up to n is estimated without bias. pass@k is in
:mod:`gagpo.eval.statistics`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from gagpo.base.errors import InvalidArgument
from gagpo.eval.statistics import pass_at_k


def majority_at_k(answers: Sequence[str | None], correct: Sequence[bool], ks: Sequence[int]) -> list[float]:
    """Probability that a majority vote of k of the episodes is right, for each k.

    answers: the answer of each episode, None if it has none. Such an episode does not vote.
    correct: whether each episode succeeded.

    A vote counts the share of correct episodes among those with a winning answer: 1 or 0 for one winner, and for a tie
    the share of right answers among the winners. Without any vote, it is the share of correct episodes drawn. So
    majority@1 equals pass@1.

    Raises:
        InvalidArgument: a k is not between 1 and the number of episodes.
    """
    _require_within(ks, len(answers))
    sizes = Counter(answers)
    right = Counter(answer for answer, success in zip(answers, correct, strict=True) if success)
    silent = (sizes.pop(None, 0), right[None])
    votes = tuple(sorted((size, right[answer]) for answer, size in sizes.items()))
    score_K = _majority(votes, silent, max(ks))
    return [float(score_K[k]) for k in ks]


@lru_cache(maxsize=4096)  # most tasks have one of a few counts, such as all episodes right
def _majority(votes: tuple[tuple[int, int], ...], silent: tuple[int, int], most: int) -> np.ndarray:
    """The expected score of a vote of k episodes for k = 0 to ``most``, float64[K].

    votes: size and number of correct episodes of each answer.
    silent: the same of the episodes without an answer.

    Sums over the winners' number of votes. Answers are added one by one to a population, with the probability that a
    draw of k leaves t of them at that number and none above it.
    """
    total = silent[0] + sum(size for size, _ in votes)
    unvoted_K = np.diagonal(_draws(silent[0], total - silent[0], np.arange(most + 1), most))
    score_K = unvoted_K * silent[1] / max(silent[0], 1)
    for top in range(1, min(most, max((size for size, _ in votes), default=0)) + 1):
        able = [vote for vote in votes if vote[0] >= top]
        population = total - sum(size for size, _ in able)  # these cannot exceed or tie the winners
        chance_TK = np.zeros((min(len(able), most // top) + 1, most + 1))
        chance_TK[0, : population + 1] = 1.0
        shares_TK = np.zeros_like(chance_TK)  # probability times the sum of the winners' shares of correct episodes
        for size, right in able:
            weight_JK = _draws(size, population, np.arange(top + 1), most)
            wins_TK = _combined(chance_TK, weight_JK, top)[:-1]
            gains_TK = _combined(shares_TK, weight_JK, top)[:-1] + wins_TK * right / size
            chance_TK = _combined(chance_TK, weight_JK, 0, top)
            shares_TK = _combined(shares_TK, weight_JK, 0, top)
            chance_TK[1:] += wins_TK
            shares_TK[1:] += gains_TK
            population += size
        score_K = score_K + (shares_TK[1:] / np.arange(1, len(shares_TK))[:, None]).sum(axis=0)
    return score_K


def _combined(table_TK: np.ndarray, weight_JK: np.ndarray, start: int, stop: int | None = None) -> np.ndarray:
    """Draws of k as j of a new answer, with their probability, and k - j of the earlier population, float64[T, K].

    Sums over j from ``start`` to below ``stop``, by default ``start`` alone.
    """
    stop = start + 1 if stop is None else stop
    padded_TK = np.pad(table_TK, ((0, 0), (stop - 1, 0)))
    earlier_TKJ = sliding_window_view(padded_TK, stop, axis=1)[..., ::-1]  # at j: the column k - j
    combined_TK: np.ndarray = np.einsum("tkj,jk->tk", earlier_TKJ[..., start:], weight_JK[start:stop])
    return combined_TK


def _draws(size: int, remainder: int, j: np.ndarray, most: int) -> np.ndarray:
    """Probability that a draw of k = 0 to ``most`` has j of ``size`` items and k - j of ``remainder``, float64[J, K].

    In logarithms, as binomial coefficients of a thousand episodes exceed a float.
    """
    from scipy.special import gammaln

    log_factorial = gammaln(np.arange(1, size + remainder + 2))

    def log_binomial(n: int, k: np.ndarray) -> np.ndarray:
        within = np.clip(k, 0, n)
        return np.where(k == within, log_factorial[n] - log_factorial[within] - log_factorial[n - within], -np.inf)

    k_K = np.minimum(np.arange(most + 1), size + remainder)
    j_J1 = np.asarray(j)[:, None]
    chance_JK: np.ndarray = np.exp(
        log_binomial(size, j_J1) + log_binomial(remainder, k_K - j_J1) - log_binomial(size + remainder, k_K)
    )
    chance_JK[:, size + remainder + 1 :] = 0.0
    return chance_JK


def distinct_at_k(solutions: Sequence[str], episodes: int, ks: Sequence[int]) -> list[float]:
    """Expected number of distinct solutions in k of the episodes, for each k (Hurlbert 1971, rarefaction).

    solutions: of the successful episodes.
    episodes: the number of all episodes.

    Raises:
        InvalidArgument: a k is not between 1 and the number of episodes.
    """
    _require_within(ks, episodes)
    sizes = Counter(solutions).values()
    return [float(sum(pass_at_k(episodes, size, k) for size in sizes)) for k in ks]


def _require_within(ks: Sequence[int], episodes: int) -> None:
    for k in ks:
        if not 1 <= k <= episodes:
            raise InvalidArgument(f"k must lie between 1 and the number of episodes ({episodes}), got {k}", key="k")


def read_ks(text: str | None) -> list[int] | None:
    """The numbers of ``--pass-at``, sorted.

    >>> read_ks("8,1,64")
    [1, 8, 64]

    Raises:
        InvalidArgument: the text is not a list of whole numbers of at least 1.
    """
    if text is None:
        return None
    texts = [number.strip() for number in text.split(",")]
    if not all(re.fullmatch("0*[1-9][0-9]{0,5}", number) for number in texts):
        raise InvalidArgument(
            f"--pass-at must be whole numbers of at least 1 such as 1,8,64 (got {text!r:.40})", key="--pass-at"
        )
    return sorted({int(number) for number in texts})


def powers_of_two(most: int) -> list[int]:
    """1, 2, 4, ... below ``most``, and ``most``.

    >>> powers_of_two(6)
    [1, 2, 4, 6]
    """
    return [*(2**i for i in range(most.bit_length()) if 2**i < most), most]
