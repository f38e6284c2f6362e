"""pass@k and majority@k against the enumeration of every draw."""

import itertools
import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gagpo.eval.many_tries import majority_at_k, pass_at_k, usual_k


@pytest.mark.parametrize(
    ("tries", "successes", "k"), [(n, c, k) for n in (1, 4, 7) for c in range(n + 1) for k in range(1, n + 1)]
)
def test_pass_at_k_is_the_share_of_draws_with_a_success(tries, successes, k):
    draws = list(itertools.combinations([True] * successes + [False] * (tries - successes), k))
    assert pass_at_k(tries, successes, k) == pytest.approx(sum(map(any, draws)) / len(draws))


def test_pass_at_k_by_hand_and_with_large_numbers():
    assert pass_at_k(10, 3, 1) == pytest.approx(0.3)
    assert pass_at_k(4, 2, 2) == pytest.approx(5 / 6)
    # The binomial coefficients have 600 digits here.
    expected = 1 - math.prod((2000 - 10 - i) / (2000 - i) for i in range(1000))
    assert pass_at_k(2000, 10, 1000) == pytest.approx(expected, rel=1e-12)


def test_pass_at_k_is_unbiased():
    """The expectation over 6 tries of success probability .3 is exactly that of k fresh tries."""
    p, n = 0.3, 6
    for k in (1, 2, 4, 6):
        mean = sum(math.comb(n, c) * p**c * (1 - p) ** (n - c) * pass_at_k(n, c, k) for c in range(n + 1))
        assert mean == pytest.approx(1 - (1 - p) ** k)


def majority_by_enumeration(answers, right, k):
    won = 0.0
    draws = list(itertools.combinations(range(len(answers)), k))
    for draw in draws:
        votes = Counter("right" if right[i] else f"wrong {answers[i]}" for i in draw if answers[i] is not None)
        if votes:
            best = [one for one, count in votes.items() if count == max(votes.values())]
            won += ("right" in best) / len(best)
    return won / len(draws)


answer = st.sampled_from([("7", True), ("7.0", True), ("8", False), ("9", False), ("12", False), (None, False)])


@given(st.lists(answer, min_size=1, max_size=7), st.data())
@settings(deadline=None, max_examples=150)
def test_majority_equals_the_enumeration_of_all_draws(tries, data):
    k = data.draw(st.integers(1, len(tries)))
    answers, right = [a for a, _ in tries], [r for _, r in tries]
    assert majority_at_k(answers, right, k) == pytest.approx(majority_by_enumeration(answers, right, k))


def test_majority_by_hand():
    assert majority_at_k(["4", "4", "5"], [True, True, False], 3) == 1.0
    assert majority_at_k(["4", "5"], [True, False], 2) == 0.5  # a tie is a coin toss
    assert majority_at_k(["1/2", "0.5", "3", "3", "2"], [True, True, False, False, False], 5) == 0.5
    assert majority_at_k([None, None, "4"], [False, False, True], 3) == 1.0  # who says nothing does not vote
    assert majority_at_k([None, None], [False, False], 2) == 0.0


def test_right_tries_without_an_answer_do_not_vote():
    assert majority_at_k([None, "5"], [True, False], 2) == 0.0


@pytest.mark.parametrize(
    "call",
    [
        lambda: pass_at_k(3, 1, 4),
        lambda: pass_at_k(3, 1, 0),
        lambda: pass_at_k(3, 4, 1),
        lambda: majority_at_k(["1"], [True], 2),
        lambda: majority_at_k(["1"], [], 1),
    ],
)
def test_impossible_numbers_are_refused(call):
    with pytest.raises(ValueError):
        call()


def test_usual_k():
    assert [usual_k(n) for n in (0, 1, 8, 12)] == [[], [1], [1, 2, 4, 8], [1, 2, 4, 8, 12]]
