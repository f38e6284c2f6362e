"""Chooses the perturbed copies of a database that judge the answers to a question.

A copy is used if the gold query gives another result on it than on the user's database and on the copies chosen before,
so that no constant answer is right on all of them. A copy is not used if the result depends on the order in which
SQLite happens to read the rows: another right query might read them in another order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import get_args

from gagpo.envs.sql.compare import Comparison, agrees, is_ordered, same_result
from gagpo.envs.sql.database import BadDatabase, Bounds, Database, OpenDatabase, QueryFailed, Result
from gagpo.envs.sql.perturb import NUMBERS
from gagpo.envs.sql.tokens import tokens

_BOUNDS = Bounds(seconds=1.0)


def choose(gold: str, expected: Result, copy: Callable[[int], OpenDatabase], count: int) -> list[int]:
    """The numbers of at most ``count`` copies that can judge answers; fewer if the results do not differ.

    expected: the result of the gold query on the user's database.
    copy: opens the copy of a number.
    """
    if "from" not in (token.lower() for token in tokens(gold)):
        return []  # it reads no table
    numbers: list[int] = []
    results = [expected]
    fallback_copies: dict[bool, list[int]] = {True: [], False: []}
    for number, result, is_stable in _candidates(gold, copy):
        if any(_agrees_somehow(gold, earlier, result) for earlier in results):
            continue
        if is_stable and (_is_informative(result) or not _is_informative(expected)):
            numbers.append(number)
            results.append(result)
        else:
            fallback_copies[bool(result.rows)].append(number)
        if len(numbers) == count:
            break
    # Of some gold queries, no result has a fixed order, or the only other result is zero, or empty.
    return numbers or fallback_copies[True][:1] or fallback_copies[False][:1]


def _candidates(gold: str, copy: Callable[[int], OpenDatabase]) -> Iterator[tuple[int, Result, bool]]:
    """The number of each copy on which the gold query runs, its result, and whether ties do not reorder it."""
    for number in range(NUMBERS):
        try:
            with closing(Database(copy(number))) as database:
                result = database.run(gold, _BOUNDS)
                database.read_backwards()
                backwards = database.run(gold, _BOUNDS)
        except (BadDatabase, QueryFailed):
            continue
        if same_result(result.rows, backwards.rows, ordered=False):
            yield number, result, not is_ordered(gold) or same_result(result.rows, backwards.rows, ordered=True)


def _is_informative(result: Result) -> bool:
    """Whether some value is neither null nor zero nor empty."""
    return any(value not in (None, 0, "") for row in result.rows for value in row)


def _agrees_somehow(gold: str, first: Result, second: Result) -> bool:
    """Whether some comparison takes the results for the same."""
    return any(agrees(gold, first, second, comparison) for comparison in get_args(Comparison))
