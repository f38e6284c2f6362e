"""Groups of near-equal observations, for environments whose texts hardly ever repeat exactly."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gagpo.data import BadTurns, Turns

BUCKETS = 128
"""Characters are counted modulo this number."""


def similarity(first: str, second: str) -> float:
    """``2 L / (len(first) + len(second))`` with L the length of their longest common subsequence; 1 for equal texts.

    Unlike the ratio of ``difflib`` it is symmetric and never misses a longer match, so it is never smaller.

    >>> similarity("you see a mug 1", "you see a mug 2")
    0.9333333333333333
    """
    from rapidfuzz.distance import LCSseq

    if not first or not second:
        return float(first == second)
    return 2.0 * LCSseq.similarity(first, second) / (len(first) + len(second))


def similar_states(turns: Turns, threshold: float) -> np.ndarray:
    """State of each turn, numbered 0..S-1, int64[N]: a text joins the first group of its task that is similar enough.

    A group is represented by the text that founded it, in order of first appearance.

    Raises:
        BadTurns: ``text_N`` is missing.
    """
    if turns.text_N is None:
        raise BadTurns(
            "credit gigpo with similarity compares observations",
            key="text_N",
            advice="give text_N, the observation of each turn",
        )
    group_N = turns.group_index_N
    state_N = np.empty(turns.num_turns, np.int64)
    states = 0
    order = np.argsort(group_N, kind="stable")
    for members in np.split(order, np.flatnonzero(np.diff(group_N[order])) + 1):
        cluster_of = cluster(turns.text_N[members].tolist(), threshold)
        state_N[members] = states + cluster_of
        states += int(cluster_of.max()) + 1
    return state_N


def cluster(texts: Sequence[str], threshold: float) -> np.ndarray:
    """Greedy groups of ``texts``, numbered by their founders' order, int64[len(texts)].

    Few pairs are compared in full: two texts have no longer common subsequence than they have characters in common.
    """
    cluster_of: dict[str, int] = {}
    founders: list[str] = []
    counts_FB = np.zeros((16, BUCKETS), np.int64)
    for text in dict.fromkeys(texts):
        count_B = _character_counts(text)
        founded_FB = counts_FB[: len(founders)]
        common_F = np.minimum(founded_FB, count_B).sum(axis=1)
        candidates = np.flatnonzero(2 * common_F >= threshold * (founded_FB.sum(axis=1) + len(text)))
        alike = (int(index) for index in candidates if similarity(founders[index], text) >= threshold)
        index = next(alike, len(founders))
        if index == len(founders):
            if index == len(counts_FB):
                counts_FB = np.concatenate([counts_FB, np.zeros_like(counts_FB)])
            counts_FB[index] = count_B
            founders.append(text)
        cluster_of[text] = index
    return np.array([cluster_of[text] for text in texts], np.int64)


def _character_counts(text: str) -> np.ndarray:
    """How often each character occurs, int64[BUCKETS]; half of a surrogate pair counts as a character."""
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    return np.bincount(codes % BUCKETS, minlength=BUCKETS)
