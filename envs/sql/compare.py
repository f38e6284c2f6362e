"""Execution accuracy: whether a query has the same result as the gold query.

``exact`` is our definition; ``bird`` and ``spider`` are those of the programs released with these data sets.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

from gagpo.envs.sql.database import Result, Row
from gagpo.envs.sql.tokens import tokens

Comparison = Literal["exact", "bird", "spider"]
ZERO = 1e-15
"""Differences up to this are rounding errors of sums that cancel."""


def agrees(gold_query: str, gold: Result, prediction: Result, comparison: Comparison = "exact") -> bool:
    """Whether the result ``prediction`` agrees with ``gold``, the result of ``gold_query``.

    ``exact``: equal numbers of columns and :func:`same_result`, ordered if the outermost gold query has an ORDER BY.
    ``bird``: the same set of rows.
    ``spider``: the same rows equally often, after some permutation of the columns, and in the same order if the gold
        query contains ``order by`` anywhere.
    """
    if comparison == "bird":
        return set(gold.rows) == set(prediction.rows)
    if comparison == "spider":
        return _permuted(gold.rows, prediction.rows, "order by" in gold_query.lower())
    return len(gold.names) == len(prediction.names) and same_result(gold.rows, prediction.rows, is_ordered(gold_query))


@functools.lru_cache(maxsize=1024)
def is_ordered(sql: str) -> bool:
    """Whether the outermost query has an ORDER BY; others (subqueries, windows, aggregates) do not order the result.

    >>> is_ordered("SELECT a FROM t ORDER /* as asked */ BY a LIMIT 3")
    True
    >>> is_ordered("SELECT a, RANK() OVER (ORDER BY (b)) FROM (SELECT 1 ORDER BY 1) WHERE c = 'order by'")
    False
    """
    depth = 0
    before = ""
    for token in tokens(sql):
        if token == "(":
            depth += 1
        elif token == ")":
            depth -= 1
        elif depth == 0:
            if (before, token.lower()) == ("order", "by"):
                return True
            before = token.lower()
    return False


def same_result(gold: Sequence[Row], prediction: Sequence[Row], ordered: bool) -> bool:
    """Whether the rows are equal: in the same order if ``ordered``, else equally often.

    In a column with floats in the gold result, numbers must agree to nine digits or within :data:`ZERO`, because a sum
    of floats depends on the order of its terms. Other columns and integers are compared exactly.

    >>> same_result([(1,), (2,)], [(2.0,), (1.0,)], ordered=False)
    True
    >>> same_result([(1,)], [(1,), (1,)], ordered=False)
    False
    >>> same_result([(2**63 - 1,)], [(2**63 - 500,)], ordered=False)
    False
    """
    if len(gold) != len(prediction) or (gold and len(gold[0]) != len(prediction[0])):
        return False
    columns = range(len(gold[0]) if gold else 0)
    float_columns = [column for column in columns if any(isinstance(row[column], float) for row in gold)]
    if not float_columns:
        if ordered:
            return list(gold) == list(prediction)
        return Counter(gold) == Counter(prediction)
    if not ordered:
        # Exact columns first, so that rows with nearly equal numbers are in the same order in both.
        column_order = [*(column for column in columns if column not in float_columns), *float_columns]
        gold, prediction = (
            sorted(rows, key=lambda row: [_rank(row[column]) for column in column_order]) for rows in (gold, prediction)
        )
    return all(
        _close(gold_row[column], row[column]) if column in float_columns else gold_row[column] == row[column]
        for gold_row, row in zip(gold, prediction, strict=True)
        for column in columns
    )


def _close(first: Any, second: Any) -> bool:
    numbers = isinstance(first, int | float) and isinstance(second, int | float)
    if numbers and (isinstance(first, float) or isinstance(second, float)):
        return math.isclose(first, second, rel_tol=1e-9, abs_tol=ZERO)
    return bool(first == second)


def _rank(value: Any) -> tuple[int, Any]:
    """A sort key for values of all types, as in SQLite."""
    if value is None:
        return 0, 0
    if isinstance(value, int | float):
        return 1, value
    return 2 if isinstance(value, str) else 3, value


def _permuted(gold: Sequence[Row], prediction: Sequence[Row], ordered: bool) -> bool:
    """Whether some permutation of the columns of ``prediction`` gives the rows of ``gold``.

    Chooses columns from left to right and backtracks as soon as the rows so far differ. Columns with the same content
    are tried once.
    """
    if len(gold) != len(prediction) or (gold and len(gold[0]) != len(prediction[0])):
        return False
    if not gold:
        return True
    gold_columns = list(zip(*gold, strict=True))
    columns = list(zip(*prediction, strict=True))

    def agree(prefix: list[tuple[Any, ...]]) -> bool:
        gold_rows = zip(*gold_columns[: len(prefix)], strict=True)
        rows = zip(*prefix, strict=True)
        if ordered:
            return list(gold_rows) == list(rows)
        return Counter(gold_rows) == Counter(rows)

    def choose(prefix: list[tuple[Any, ...]], remaining: Counter[tuple[Any, ...]]) -> bool:
        if len(prefix) == len(gold_columns):
            return True
        return any(
            agree([*prefix, column]) and choose([*prefix, column], remaining - Counter([column]))
            for column in list(remaining)
        )

    return choose([], Counter(columns))
