"""What k tries at a task are worth: pass@k (one of k is right) and majority@k (the most frequent answer is right)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from fractions import Fraction

from gagpo.base.errors import InvalidArgument


def pass_at_k(tries: int, successes: int, k: int) -> float:
    """Probability that k of the ``tries``, drawn without replacement, hold a success; unbiased for k fresh tries.

    ``1 - C(n - c, k) / C(n, k)``, multiplied out so that no large number arises (Chen et al. 2021, arXiv 2107.03374).
    Raises ValueError unless ``1 <= k <= tries`` and ``0 <= successes <= tries``.
    """
    _check(tries, k)
    if not 0 <= successes <= tries:
        raise InvalidArgument(f"successes must lie between 0 and {tries}, got {successes}")
    if tries - successes < k:
        return 1.0
    missed = 1.0
    for i in range(tries - successes + 1, tries + 1):
        missed *= 1.0 - k / i
    return 1.0 - missed


def majority_at_k(answers: Sequence[Hashable | None], right: Sequence[bool], k: int) -> float:
    """Probability that the most frequent of k answers, drawn without replacement from all, is right.

    answers: one per try; None abstains and never wins. right: whether that try was judged right. All right tries count
    as one answer, however they are written; a tie is broken by a fair draw. Computed exactly (multivariate
    hypergeometric counts), not by simulation. For k = 1 it is the success rate of the tries that answer.
    Raises ValueError unless ``1 <= k <= len(answers) == len(right)``.
    """
    if len(answers) != len(right):
        raise InvalidArgument(f"one verdict per answer, got {len(answers)} answers and {len(right)} verdicts")
    _check(len(answers), k)
    voters = sum(answer is not None and ok for answer, ok in zip(answers, right, strict=True))
    wrong = Counter(answer for answer, ok in zip(answers, right, strict=True) if answer is not None and not ok)
    abstaining = sum(answer is None for answer in answers)
    won = Fraction(0)
    for votes in range(1, min(voters, k) + 1):
        for ties, ways in _others(sorted(wrong.values()), abstaining, votes, k - votes).items():
            won += Fraction(math.comb(voters, votes) * ways, 1 + ties)
    return float(won / math.comb(len(answers), k))


def _others(wrong: Sequence[int], abstaining: int, votes: int, room: int) -> dict[int, int]:
    """Ways to draw ``room`` other answers, none more than ``votes`` times, by the number that reach ``votes``."""
    # Who abstains, or is too rare to reach the votes, can be drawn freely: together one pool (Vandermonde's identity).
    free = abstaining + sum(count for count in wrong if count < votes)
    ways: dict[tuple[int, int], int] = {(x, 0): math.comb(free, x) for x in range(min(free, room) + 1)}
    for count in (count for count in wrong if count >= votes):
        # One more answer that can reach the votes: drawn x times beside everything drawn before.
        grown: dict[tuple[int, int], int] = {}
        for (drawn, ties), number in ways.items():  # a tie where it reaches them
            for x in range(min(votes, room - drawn) + 1):
                key = (drawn + x, ties + (x == votes))
                grown[key] = grown.get(key, 0) + number * math.comb(count, x)
        ways = grown
    return {ties: number for (drawn, ties), number in ways.items() if drawn == room}


def usual_k(tries: int) -> list[int]:
    """The k worth reporting for that many tries: the powers of two below it, and the number itself.

    >>> usual_k(12)
    [1, 2, 4, 8, 12]
    """
    powers = [2**i for i in range(tries.bit_length()) if 2**i < tries]
    return [*powers, tries] if tries > 0 else []


def _check(tries: int, k: int) -> None:
    if not 1 <= k <= tries:
        raise InvalidArgument(f"k must lie between 1 and the number of tries ({tries}), got {k}")
