"""Execution accuracy, ours and that of the released data sets, on results that can be compared by eye."""

import random
from collections import Counter
from itertools import permutations

import pytest

from gagpo.envs.sql.compare import agrees, is_ordered, same_result
from gagpo.envs.sql.database import Cost, Result


def result(*rows):
    return Result([f"c{i}" for i in range(len(rows[0]) if rows else 1)], list(rows), Cost())


@pytest.mark.parametrize(
    "one, other, ordered, same",
    [
        ([(1, "a")], [(1.0, "a")], False, True),
        ([(1,), (2,)], [(2,), (1,)], True, False),
        ([(1,), (2,)], [(2,), (1,)], False, True),
        ([(1,)], [(1,), (1,)], False, False),
        ([(0.1 + 0.2,)], [(0.3,)], True, True),
        ([("1",)], [(1,)], False, False),
        ([(None,)], [(0,)], False, False),
        ([(float("inf"),)], [(float("inf"),)], False, True),
        ([], [], True, True),
        ([(2**63 - 1,)], [(2**62,)], False, False),
        ([(1, 2)], [(2, 1)], False, False),
        ([(2**63 - 1,)], [(2**63 - 500,)], False, False),
        ([(2**53,)], [(2**53 + 1,)], True, False),
        ([(1234567890123,)], [(1234567890123.0,)], False, True),
        ([(1234567890123,)], [(1234567890456,)], False, False),
        ([(0.5, 2**60), (1.5, 3)], [(0.5, 2**60 + 1), (1.5, 3)], False, False),
        ([(1234567.125,)], [(1234567.1250000002,)], True, True),  # on both sides of where nine digits are rounded
        ([(0.1 + 0.2, "a"), (0.3, "b")], [(0.3, "b"), (0.3, "a")], False, True),
        ([(0.0,)], [(5.5e-17,)], True, True),
        ([(1e-12,)], [(0,)], True, False),
        ([(0.30001,)], [(0.3,)], True, False),
        ([(None,), (1,), ("a",), (b"a",), (0.5,)], [(b"a",), ("a",), (0.5,), (1,), (None,)], False, True),
        ([(b"a",)], [("a",)], False, False),
    ],
)
def test_execution_accuracy(one, other, ordered, same):
    assert same_result(one, other, ordered) is same is same_result(other, one, ordered)


def test_a_fraction_for_an_integer_is_compared_exactly():
    """The gold sets what a column is: 2.0 for 2 is right, and 2.0000000001 is not."""
    assert same_result([(2,)], [(2.0,)], True) and not same_result([(2,)], [(2.0000000001,)], True)
    assert same_result([(2.0,)], [(2.0000000001,)], True)


@pytest.mark.parametrize(
    "sql, ordered",
    [
        ("SELECT a FROM t ORDER BY a", True),
        ("select a from t order\n  by a desc limit 3", True),
        ("SELECT (a) FROM t ORDER BY (a), (b)", True),
        ("SELECT a FROM (SELECT b FROM t) ORDER -- so\n BY a", True),
        ("WITH s AS (SELECT a FROM t ORDER BY a) SELECT a FROM s", False),
        ("SELECT a FROM t WHERE a IN (SELECT b FROM u ORDER BY b LIMIT 3)", False),
        ("SELECT a FROM (SELECT a FROM t ORDER BY f(a), b)", False),
        ("SELECT a, RANK() OVER (ORDER BY f(a) DESC, b) FROM t", False),
        ("SELECT a FROM t WHERE b = 'x) ORDER BY y' AND c = '('", False),
        ('SELECT "order by" FROM t', False),
        ("SELECT [order by], `order by` FROM t /* ORDER BY a */ -- ORDER BY b", False),
        ("SELECT a FROM t WHERE b = '(' ORDER BY a", True),
        ("SELECT order_by, reorder FROM t GROUP BY a", False),
        ("SELECT a FROM t UNION SELECT b FROM u ORDER BY 1", True),
    ],
)
def test_only_the_outermost_order_counts(sql, ordered):
    assert is_ordered(sql) is ordered


def test_exact_wants_as_many_columns_even_of_nothing():
    assert agrees("SELECT a FROM t", Result(["a"], [], Cost()), Result(["b"], [], Cost()))
    assert not agrees("SELECT a FROM t", Result(["a"], [], Cost()), Result(["a", "b"], [], Cost()))


@pytest.mark.parametrize(
    "gold, found, query, verdicts",
    [
        # rows counted, order of rows, order of columns: exact, bird, spider
        ([(1,), (1,)], [(1,)], "SELECT a", (False, True, False)),
        ([(1,), (2,)], [(2,), (1,)], "SELECT a ORDER BY a", (False, True, False)),
        ([(1,), (2,)], [(2,), (1,)], "SELECT a FROM (SELECT b ORDER BY b)", (True, True, False)),
        ([(1, "x"), (2, "y")], [("x", 1), ("y", 2)], "SELECT a, b", (False, False, True)),
        ([(1, "x"), (2, "y")], [("x", 2), ("y", 1)], "SELECT a, b", (False, False, False)),
        ([(0.1 + 0.2,)], [(0.3,)], "SELECT a", (True, False, False)),
        ([(1, 1, 2), (1, 2, 1)], [(2, 1, 1), (1, 2, 1)], "SELECT a, b, c", (False, False, True)),
    ],
)
def test_each_comparison_by_its_own_definition(gold, found, query, verdicts):
    for name, verdict in zip(("exact", "bird", "spider"), verdicts, strict=True):
        assert agrees(query, result(*gold), result(*found), name) is verdict, name


def by_every_permutation(gold, found, ordered):
    """Test-suite evaluation without its short cuts."""
    for order in permutations(range(len(gold[0]))):
        moved = [tuple(row[i] for i in order) for row in found]
        if (gold == moved) if ordered else (Counter(gold) == Counter(moved)):
            return True
    return False


def test_spider_tries_every_permutation_of_columns():
    rng, observed = random.Random(0), Counter()
    for _ in range(500):
        columns, rows = rng.randint(1, 4), rng.randint(1, 4)
        gold = [tuple(rng.randint(0, 2) for _ in range(columns)) for _ in range(rows)]
        order = rng.sample(range(columns), columns)
        results = [tuple(row[i] for i in order) for row in rng.sample(gold, rows)]
        if rng.random() < 0.3:
            results[0] = tuple(rng.randint(0, 2) for _ in range(columns))
        for query in ("SELECT 1", "SELECT 1 ORDER BY 1"):
            verdict = by_every_permutation(gold, results, "ORDER" in query)
            assert agrees(query, result(*gold), result(*results), "spider") is verdict
            observed[verdict] += 1
    assert min(observed.values()) > 100


def test_many_equal_columns_are_one_choice():
    wide = [tuple([1] * 40), tuple([2] * 40)]
    assert agrees("SELECT 1", result(*wide), result(*wide), "spider")
    assert not agrees("SELECT 1", result(*wide), result(wide[0], (3, *wide[1][1:])), "spider")
