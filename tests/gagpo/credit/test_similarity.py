"""Groups of near-equal observations."""

import random
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gagpo.credit import BadTurns, Turns
from gagpo.credit.gigpo import Gigpo
from gagpo.credit.turns.similarity import cluster, similar_states, similarity

TEXTS = st.text(alphabet="abcé漢 ", max_size=12)


def common_subsequence(first: str, second: str) -> int:
    @cache
    def longest(i: int, j: int) -> int:
        if i == len(first) or j == len(second):
            return 0
        if first[i] == second[j]:
            return 1 + longest(i + 1, j + 1)
        return max(longest(i + 1, j), longest(i, j + 1))

    return longest(0, 0)


@settings(deadline=None)
@given(TEXTS, TEXTS)
def test_similarity_is_that_of_the_longest_common_subsequence(first, second):
    total = len(first) + len(second)
    expected = 2 * common_subsequence(first, second) / total if total else 1.0
    assert similarity(first, second) == pytest.approx(expected)
    assert similarity(first, second) == similarity(second, first)


@settings(deadline=None)
@given(st.lists(TEXTS, min_size=1, max_size=8), st.sampled_from([0.5, 0.8, 0.95, 1.0]))
def test_a_text_joins_the_first_similar_group(texts, threshold):
    founders: list[str] = []
    expected = []
    for text in texts:
        like = [place for place, founder in enumerate(founders) if similarity(founder, text) >= threshold]
        if not like:
            founders.append(text)
        expected.append(like[0] if like else len(founders) - 1)
    seen = {text: expected[texts.index(text)] for text in texts}  # equal texts go where the first one went
    assert cluster(texts, threshold).tolist() == [seen[text] for text in texts]


def test_many_groups():
    rng = random.Random(0)
    texts = ["".join(rng.choices("abcdefghij", k=30)) for _ in range(50)]
    assert len(set(cluster(texts, 0.95).tolist())) == 50


def test_gigpo_groups_near_equal_observations_of_one_task_only():
    texts = ["on the shelf you see a mug 1", "on the shelf you see a mug 2", "on the shelf you see a mug 1", "a door"]
    turns = Turns([1, 0, 5, 0], [0, 1, 2, 3], [0, 0, 1, 1], state_N=[0, 1, 0, 2], text_N=texts)
    assert similar_states(turns, 0.95).tolist() == [0, 0, 1, 2]
    exact, near = Gigpo().advantage(turns), Gigpo(similarity=0.95).advantage(turns)
    half = np.array([0.5, -0.5]) / (np.sqrt(0.5) + 1e-6)
    assert near - exact == pytest.approx([*half, 0, 0])


def test_missing_texts_are_named():
    with pytest.raises(BadTurns, match="give text_N"):
        Gigpo(similarity=0.9).advantage(Turns([0], [0], [0], state_N=[0]))
