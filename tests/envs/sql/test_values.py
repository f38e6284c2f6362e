"""Values of columns and their neighbours."""

import random

import pytest

from gagpo.envs.sql.literals import literals_of
from gagpo.envs.sql.structure import TableColumn
from gagpo.envs.sql.values import ColumnValues


def draws(values, literals=(), rate=1.0, key=False, affinity="TEXT", number=200):
    domain = ColumnValues(TableColumn("c", affinity, False, key), values, literals, rate, random.Random(0))
    drawn = []
    for i in range(number):
        drawn.append(domain.draw(values[i % len(values)] if values else None))
        domain.use(drawn[-1])
    return drawn


@pytest.mark.parametrize(
    "values, literals, is_in_form",
    [
        (["1999-12-31", "2000-02-29 10:00"] * 3, ["2001"], lambda value: value[4] == value[7] == "-"),
        (["Ann Lee", "Bo Kim", "Cy Orr", "Al Fox"] * 2, [], lambda value: len(value.split()) == 2),
        (["A-17", "B-20", "C-35"] * 2, [], lambda value: len(value) == 4 and value[2:].isdigit()),
        ([3, 40, 7, 9] * 2, ["12"], lambda value: isinstance(value, int) and 0 <= value <= 60),
        ([1.25, 7.5, 3.0], [], lambda value: value == round(value, 2) and value >= 0),
        (["12", "7", "30"] * 2, [19], lambda value: isinstance(value, str) and value.isdigit()),
        ([True, None, 0, 1] * 4, [], lambda value: value in (None, 0, 1)),
        ([b"x", b"y"] * 3, [], lambda value: value in (b"x", b"y")),
        ([float("inf"), 2**63 - 1, -(2**63)], [], lambda value: value is None or abs(value) >= 2**53 or value != value),
        (["", "?!", "日本"] * 2, [], lambda value: isinstance(value, str)),
    ],
)
def test_values_keep_their_form(values, literals, is_in_form):
    drawn = draws(values, literals)
    assert all(is_in_form(value) for value in drawn), drawn
    assert len(set(drawn)) > 1


def test_literals_are_drawn_in_the_form_of_the_column():
    assert draws([3, 40, 7, 9] * 2, ["12"]).count(12) > 10
    assert draws(["12", "7", "30"] * 2, [19]).count("19") > 10
    assert sum(value.startswith("2001-") for value in draws(["1999-12-31", "1999-11-30"] * 3, ["2001"])) > 10
    assert {19, 20, 21} <= set(draws([3, 40, 7, 9, 30], [20], number=40))  # unique: a condition may be one off
    assert "x" not in draws([3, 40, 7, 9] * 2, ["x"])


def test_unique_columns_repeat_no_value_and_run_out():
    drawn = draws(["a", "b", "c"], key=True, number=300)
    present = [value for value in drawn if value is not None]
    assert len(set(present)) == len(present) and None in drawn
    keys = draws(list(range(1, 9)), key=True, affinity="INTEGER", number=300)
    assert len(set(keys)) == 300 and None not in keys


def test_a_column_without_values_gets_some():
    for affinity, type_name in (("TEXT", str), ("INTEGER", int), ("BLOB", int)):
        drawn = [value for value in draws([], affinity=affinity) if value is not None]
        assert drawn and {type(value) for value in drawn} == {type_name}


@pytest.mark.parametrize(
    "sql, literals",
    [
        ("SELECT a FROM t WHERE b = 'it''s' AND \"c d\" >= 3", {"b": ["it's"], "c d": [3]}),
        ('SELECT a FROM t WHERE b = "France" OR 7 < a', {"b": ["France", 7]}),
        ("SELECT a FROM t WHERE 7 < a LIMIT 5 OFFSET 2", {"a": [7]}),
        ("SELECT 'x' || a FROM t WHERE a LIKE '_b%'", {"a": ["x", "ab"]}),
        ("SELECT x FROM t -- b = 'no'", {}),
        ("SELECT 1", {}),
    ],
)
def test_literals_of_a_query(sql, literals):
    assert literals_of(sql, ["A", "b", "c d"]) == literals
