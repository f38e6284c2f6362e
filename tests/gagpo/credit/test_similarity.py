"""Groups of near-equal observations, an option of GiGPO."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from gagpo.credit import BadTurns, Turns, turns_for
from gagpo.credit.gigpo import Gigpo
from gagpo.credit.statistics.similarity import cluster, similar_states, similarity
from gagpo.data import Episode, Turn
from tests.rejections import rejects


def subsequence(first: str, second: str) -> int:
    """Length of the longest common subsequence, by the textbook's table."""
    table = np.zeros((len(first) + 1, len(second) + 1), int)
    for (i, a), (j, b) in itertools.product(enumerate(first, 1), enumerate(second, 1)):
        table[i, j] = table[i - 1, j - 1] + 1 if a == b else max(table[i - 1, j], table[i, j - 1])
    return int(table[-1, -1])


def random_texts(seed: int, count: int = 40) -> list[str]:
    rng = np.random.default_rng(seed)
    stems = ["you see a mug", "you are in the hall", "door", "", "a" * 30]
    texts = [stems[rng.integers(5)] + "".join(rng.choice(list("ab 1"), rng.integers(0, 4))) for _ in range(count)]
    return [*texts, "\U0001f511 key", "half \ud83d pair", "end\0"]


def greedy(texts: list[str], threshold: float) -> list[int]:
    """Every text against every founder, without any shortcut."""
    founders, numbers = [], []
    for text in texts:
        alike = [f == text or 2 * subsequence(f, text) / len(f + text) >= threshold for f in founders]
        if not any(alike):
            founders.append(text)
        numbers.append(alike.index(True) if any(alike) else len(founders) - 1)
    return numbers


@pytest.mark.parametrize("threshold", [0.5, 0.9, 0.95, 1.0])
@pytest.mark.parametrize("seed", range(2))
def test_clusters_are_those_of_a_comparison_of_all_pairs(seed, threshold):
    texts = random_texts(seed)
    assert cluster(texts, threshold).tolist() == greedy(texts, threshold)


def test_similarity_is_symmetric_and_one_for_equal_texts():
    for first, second in itertools.combinations(random_texts(3, count=8), 2):
        assert similarity(first, second) == similarity(second, first) <= 1.0
        assert (similarity(first, second) == 1.0) == (first == second)


def test_tasks_are_not_compared_with_each_other():
    turns = Turns.of([0.0] * 4, range(4), [7, 3, 7, 3], text_N=["a mug 1", "a mug 1", "a mug 2", "a pan"])
    state_N = similar_states(turns, 0.8)
    assert state_N[0] == state_N[2] and len({*state_N.tolist()}) == 3


def test_a_threshold_of_one_is_the_key_of_observations():
    turn = [Turn(observation=text, response="x", action="x") for text in ("a\0", "a", "a\0", "b")]
    episodes = [Episode("t", turns=turn[:2]), Episode("t", turns=turn[2:], success=True)]
    episodes[1].turns[-1] = replace(episodes[1].turns[-1], reward=1.0)
    exact, similar = Gigpo(state_key="observation"), Gigpo(similarity=1.0)
    assert (
        similar.advantage(turns_for(episodes, similar)).tolist() == exact.advantage(turns_for(episodes, exact)).tolist()
    )
    assert turns_for(episodes, exact).text_N is None


def test_texts_are_required():
    with rejects(BadTurns, key="text_N"):
        Gigpo(similarity=0.9).advantage(Turns.of([1.0, 0.0], [0, 1], [0, 0], state_N=[0, 0]))
    with rejects(BadTurns, "2 entries", key="text_N"):
        Turns.of([1.0, 0.0], [0, 1], [0, 0], text_N=["a"])
