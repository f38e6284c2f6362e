"""Execution accuracy: whether the result of a query is that of the gold query.

Three definitions. ``exact`` is ours; ``bird`` and ``spider`` say what the programs released with these data sets say.
"""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

from gagpo.envs.sql.database import Result, Row

Comparison = Literal["exact", "bird", "spider"]

_TOKEN = re.compile(
    r"""'(?:[^']|'')*+'|"(?:[^"]|"")*+"|`[^`]*+`|\[[^\]]*+\]|--[^\n]*+|/\*(?>.*?\*/)|[()]|\w++|.""", re.DOTALL
)


def agrees(gold_query: str, gold: Result, found: Result, comparison: Comparison = "exact") -> bool:
    """Whether ``found`` answers what ``gold``, the result of ``gold_query``, answers.

    exact: as many columns, and the same rows as often, in the same order if the outermost query of the gold orders
    them; numbers as :func:`same_result` says. bird: the same set of rows. spider: the same rows as often after some
    permutation of the columns, in the same order if ``order by`` stands anywhere in the gold query.
    """
    if comparison == "bird":
        return set(gold.rows) == set(found.rows)
    if comparison == "spider":
        return _permuted(gold.rows, found.rows, "order by" in gold_query.lower())
    return len(gold.names) == len(found.names) and same_result(gold.rows, found.rows, is_ordered(gold_query))


@functools.lru_cache(maxsize=1024)
def is_ordered(sql: str) -> bool:
    """Whether the outermost query has an ORDER BY; one in a subquery, a window or an aggregate orders no result.

    >>> is_ordered("SELECT a FROM t ORDER /* as asked */ BY a LIMIT 3")
    True
    >>> is_ordered("SELECT a, RANK() OVER (ORDER BY (b)) FROM (SELECT 1 ORDER BY 1) WHERE c = 'order by'")
    False
    """
    depth, before = 0, ""
    for token in _TOKEN.findall(sql):
        if token == "(":
            depth += 1
        elif token == ")":
            depth -= 1
        elif depth == 0 and not token.isspace() and not token.startswith(("--", "/*")):
            if (before, token.lower()) == ("order", "by"):
                return True
            before = token.lower()
    return False


def same_result(gold: Sequence[Row], found: Sequence[Row], ordered: bool) -> bool:
    """Equal rows, in the same order if ``ordered``, else counted.

    A column in which the gold holds no fraction is compared exactly; otherwise two numbers are the same that agree to
    nine digits, because a sum of fractions depends on the order of its terms. Integers are always compared exactly.

    >>> same_result([(1,), (2,)], [(2.0,), (1.0,)], ordered=False)
    True
    >>> same_result([(1,)], [(1,), (1,)], ordered=False)
    False
    >>> same_result([(2**63 - 1,)], [(2**63 - 500,)], ordered=False)
    False
    """
    if len(gold) != len(found) or (gold and len(gold[0]) != len(found[0])):
        return False
    columns = range(len(gold[0]) if gold else 0)
    rough = [column for column in columns if any(isinstance(row[column], float) for row in gold)]
    if not rough:
        return list(gold) == list(found) if ordered else Counter(gold) == Counter(found)
    if not ordered:
        # Exact columns first: numbers that differ in the tenth digit then stand beside each other in both.
        places = [*(column for column in columns if column not in rough), *rough]
        gold, found = (
            sorted(rows, key=lambda row: [_rank(row[column]) for column in places]) for rows in (gold, found)
        )
    return all(
        _close(one[column], other[column]) if column in rough else one[column] == other[column]
        for one, other in zip(gold, found, strict=True)
        for column in columns
    )


def _close(one: Any, other: Any) -> bool:
    if (
        isinstance(one, int | float)
        and isinstance(other, int | float)
        and (isinstance(one, float) or isinstance(other, float))
    ):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-12)
    return bool(one == other)


def _rank(value: Any) -> tuple[int, Any]:
    """A key that orders values of all types, as SQLite does."""
    if value is None:
        return 0, 0
    return 1 if isinstance(value, int | float) else 2 if isinstance(value, str) else 3, value


def _permuted(gold: Sequence[Row], found: Sequence[Row], ordered: bool) -> bool:
    """Whether some order of the columns of ``found`` makes its rows those of ``gold``.

    Columns are chosen from left to right; a choice is given up as soon as the rows so far differ. Columns with the
    same content are the same choice.
    """
    if len(gold) != len(found):
        return False
    if not gold:
        return True
    if len(gold[0]) != len(found[0]):
        return False
    wanted, given = list(zip(*gold, strict=True)), list(zip(*found, strict=True))

    def agree(chosen: list[tuple[Any, ...]]) -> bool:
        one, other = zip(*wanted[: len(chosen)], strict=True), zip(*chosen, strict=True)
        return list(one) == list(other) if ordered else Counter(one) == Counter(other)

    def choose(chosen: list[tuple[Any, ...]], left: Counter[tuple[Any, ...]]) -> bool:
        if len(chosen) == len(wanted):
            return True
        return any(
            agree([*chosen, column]) and choose([*chosen, column], left - Counter([column])) for column in list(left)
        )

    return choose([], Counter(given))
