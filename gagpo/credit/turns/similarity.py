"""Groups of similar observations, an option of GiGPO for texts that hardly ever repeat exactly."""

from __future__ import annotations

import numpy as np
from rapidfuzz.distance import LCSseq

from gagpo.credit.turns.columns import Turns
from gagpo.credit.turns.errors import BadTurns

BUCKETS = 128


def similarity(first: str, second: str) -> float:
    """``2 L / (len(first) + len(second))``, L the length of the longest common subsequence.

    Unlike ``difflib``'s ratio it is symmetric and does not miss a longer match.

    >>> similarity("you see a mug 1", "you see a mug 2")
    0.9333333333333333
    """
    if not first or not second:
        return float(first == second)
    return 2.0 * LCSseq.similarity(first, second) / (len(first) + len(second))


def similar_states(turns: Turns, threshold: float) -> np.ndarray:
    """State groups numbered from 0, int64[N]: a text joins its task's first group whose first text is similar enough.

    Texts are compared in order of first appearance. Character counts give an upper bound of the similarity, so few
    pairs are compared in full.
    """
    if turns.text_N is None:
        raise BadTurns("similarity groups compare observations: give text_N (from_episodes with texts=True)")
    group_N = turns.group_index_N
    result_N = np.empty(turns.turns, np.int64)
    number = 0
    order = np.argsort(group_N, kind="stable")
    for members in np.split(order, np.flatnonzero(np.diff(group_N[order])) + 1):
        cluster_of = cluster([turns.text_N[turn] for turn in members], threshold)
        result_N[members] = number + cluster_of
        number += int(cluster_of.max()) + 1
    return result_N


def cluster(texts: list[str], threshold: float) -> np.ndarray:
    """Greedy groups of ``texts``, numbered in order of their first texts, int64[len(texts)]."""
    joined: dict[str, int] = {}
    founders: list[str] = []
    counts = np.zeros((16, BUCKETS), np.int64)
    for text in dict.fromkeys(texts):
        # Skip groups whose first text has too few characters in common.
        mine = np.bincount(np.frombuffer(text.encode("utf-32-le"), np.uint32) % BUCKETS, minlength=BUCKETS)
        common = np.minimum(counts[: len(founders)], mine).sum(axis=1)
        sizes = counts[: len(founders)].sum(axis=1) + len(text)
        candidates = np.flatnonzero(2 * common >= threshold * sizes)
        home = next((int(c) for c in candidates if similarity(founders[c], text) >= threshold), len(founders))
        if home == len(founders):
            if home == len(counts):
                counts = np.concatenate([counts, np.zeros_like(counts)])
            counts[home] = mine
            founders.append(text)
        joined[text] = home
    return np.array([joined[text] for text in texts], np.int64)
