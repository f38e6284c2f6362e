"""Mutants: the usual wrong queries, made from a right one by dropping, adding or replacing one part.

Questions are judged on databases in which every mutant gives another result. This module uses only the standard
library, so that :file:`benchmarks/sql_luck.py` can judge the questions of any version with the same mutants.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

RunQuery = Callable[[str], Sequence[Sequence[Any]]]
"""Runs a query on the database that the agent sees."""

_CLAUSES = re.compile(
    r"SELECT (?P<distinct>DISTINCT )?(?P<columns>.+?) FROM (?P<table>\w+)"
    r"(?: JOIN (?P<join_table>\w+) ON (?P<on>.+?))?"
    r"(?: WHERE (?P<where>.+?))?"
    r"(?: GROUP BY (?P<group>.+?))?"
    r"(?: ORDER BY (?P<order>\S+)(?: (?P<direction>ASC|DESC))?)?"
    r"(?: LIMIT (?P<limit>\d+))?"
)
_CONDITION = re.compile(r"(?P<left>\S+) (?P<sign>=|<|>) (?P<right>.+)")
_CALL = re.compile(r"(?P<function>[A-Z]+)\((?P<column>.+)\)")
_AGGREGATES = ("COUNT", "SUM", "AVG", "MIN", "MAX")
_DUPLICATES_MATTER = ("COUNT", "SUM", "AVG")
_OTHER_SIGNS = {"=": ("!=",), ">": (">=", "<", "<=", "="), "<": ("<=", ">", ">=", "=")}


def mutants(gold: str, schema: Mapping[str, Sequence[str]], run_query: RunQuery) -> Iterator[tuple[str, str]]:
    """Yield (kind, query) of each mutant of ``gold`` once.

    Assumes that each table has the key ``id``, and that no value is null. Queries that are equivalent to ``gold`` under
    these rules are not mutants.

    gold: a SELECT from one table, or from two if a row of the first belongs to a row of the second.
    schema: the columns of each table.
    run_query: runs a query on the database that the agent sees.

    Raises:
        ValueError: another kind of query.
    """
    match = _CLAUSES.fullmatch(gold)
    if match is None:
        raise ValueError(f"not a query that can be mutated: {gold}")
    clauses = match.groupdict(default="")
    makers = (_conditions, _joins, _distinct, _aggregates, _columns, _orders, _groups, _read_off)
    queries = {gold}
    for maker in makers:
        for change, sql in maker(clauses, schema, run_query):
            if sql not in queries:
                queries.add(sql)
                yield change, sql


Clauses = Mapping[str, str]
Mutants = Iterator[tuple[str, str]]


def _query(clauses: Clauses, **changes: str) -> str:
    """The query with these clauses, some of them changed; empty ones are left out."""
    q = {**clauses, **changes}
    clauses_of_query = [f"SELECT {q['distinct']}{q['columns']} FROM {q['table']}"]
    if q["join_table"]:
        clauses_of_query.append(f"JOIN {q['join_table']}{' ON ' if q['on'] else ''}{q['on']}")
    if q["where"]:
        clauses_of_query.append(f"WHERE {q['where']}")
    if q["group"]:
        clauses_of_query.append(f"GROUP BY {q['group']}")
    if q["order"]:
        clauses_of_query.append(f"ORDER BY {q['order']} {q['direction']}".rstrip())
    if q["limit"]:
        clauses_of_query.append(f"LIMIT {q['limit']}")
    return " ".join(clauses_of_query)


def _qualified(q: Clauses, table: str, column: str) -> str:
    """The column's name in the query: with the table's name if there are two tables."""
    return f"{table}.{column}" if q["join_table"] else column


def _conditions(q: Clauses, schema: Mapping[str, Sequence[str]], run_query: RunQuery) -> Mutants:
    if not q["where"]:
        return
    yield "condition dropped", _query(q, where="")
    condition = _CONDITION.fullmatch(q["where"])
    if condition is None:
        return
    operand, operator, value = condition.groups()
    for other_sign in _OTHER_SIGNS[operator]:
        yield "condition turned", _query(q, where=f"{operand} {other_sign} {value}")
    if operator != "=" and value.isdigit():
        for bound in (int(value) - 1, int(value) + 1):
            yield "bound one off", _query(q, where=f"{operand} {operator} {bound}")
    table = q["join_table"] or q["table"]
    for column in schema[table]:
        yield "condition on another column", _query(q, where=f"{_qualified(q, table, column)} {operator} {value}")


def _joins(q: Clauses, schema: Mapping[str, Sequence[str]], run_query: RunQuery) -> Mutants:
    if not q["join_table"]:
        return
    yield "join's condition dropped", _query(q, on="")
    yield "join on the keys", _query(q, on=f"{q['table']}.id = {q['join_table']}.id")
    yield "join dropped", _query(q, join_table="", on="", where="")
    yield "join dropped", _query(q, table=q["join_table"], join_table="", on="")


def _distinct(q: Clauses, schema: Mapping[str, Sequence[str]], run_query: RunQuery) -> Mutants:
    if q["distinct"]:
        yield "DISTINCT dropped", _query(q, distinct="")
        return
    call = _CALL.fullmatch(q["columns"].rpartition(", ")[2])
    if call is None:
        if not q["limit"] and not q["group"]:
            yield "DISTINCT added", _query(q, distinct="DISTINCT ")
        return
    function, argument = call.groups()
    prefix = q["columns"].removesuffix(call[0])
    if function not in _DUPLICATES_MATTER:
        return
    if argument != "*":
        yield "DISTINCT added", _query(q, columns=f"{prefix}{function}(DISTINCT {argument})")
        return
    for table in filter(None, (q["table"], q["join_table"])):
        for column in schema[table]:
            if (table, column) != (q["table"], "id"):  # the key is unique
                yield "DISTINCT added", _query(q, columns=f"{prefix}COUNT(DISTINCT {_qualified(q, table, column)})")


def _aggregates(q: Clauses, schema: Mapping[str, Sequence[str]], run_query: RunQuery) -> Mutants:
    call = _CALL.fullmatch(q["columns"].rpartition(", ")[2])
    if call is None:
        if q["limit"]:
            q = {**q, "order": "", "limit": ""}
        for function in ("MIN", "MAX") if not q["group"] else ():
            yield "another aggregate", _query(q, columns=f"{function}({q['columns']})")
        return
    function, argument = call.groups()
    prefix = q["columns"].removesuffix(call[0])
    if argument != "*":
        columns = [argument]
    else:
        columns = [_qualified(q, q["table"], column) for column in schema[q["table"]]]
    for column in columns:
        for other_function in _AGGREGATES:
            if other_function != function:
                yield "another aggregate", _query(q, columns=f"{prefix}{other_function}({column})")
        yield "aggregate dropped", _query(q, columns=f"{prefix}{column}")
        if not q["group"]:
            yield "aggregate of one row", _query(q, columns=f"{prefix}{column}", limit="1")
    if function == "AVG":
        yield "another aggregate", _query(q, columns=f"{prefix}SUM({argument}) / COUNT(*)")
        yield "another aggregate", _query(q, columns=f"{prefix}ROUND(AVG({argument}))")


def _columns(q: Clauses, schema: Mapping[str, Sequence[str]], run_query: RunQuery) -> Mutants:
    call = _CALL.fullmatch(q["columns"])
    for column in schema[q["table"]]:
        if call is not None and call["column"] != "*":
            yield "another column", _query(q, columns=f"{call['function']}({column})")
        elif call is None and not q["group"]:
            yield "another column", _query(q, columns=column)


def _orders(q: Clauses, schema: Mapping[str, Sequence[str]], run_query: RunQuery) -> Mutants:
    if not q["order"]:
        if not q["limit"] and not _CALL.fullmatch(q["columns"]):
            yield "LIMIT added", _query(q, limit="1")
        return
    yield "order dropped", _query(q, order="", direction="")
    for column in schema[q["table"]]:
        for direction in ("ASC", "DESC"):
            change = "order reversed" if column == q["order"] else "order by another column"
            if (column, direction) != (q["order"], q["direction"] or "ASC"):
                yield change, _query(q, order=column, direction=direction)
    if q["limit"]:
        yield "LIMIT dropped", _query(q, limit="")


def _groups(q: Clauses, schema: Mapping[str, Sequence[str]], run_query: RunQuery) -> Mutants:
    if not q["group"]:
        return
    yield "group dropped", _query(q, group="")
    for column in schema[q["table"]]:
        yield "group by another column", _query(q, group=column)


def _read_off(q: Clauses, schema: Mapping[str, Sequence[str]], run_query: RunQuery) -> Mutants:
    """Queries with constants from one database: its result, or the keys of the rows that the result is from."""
    result = run_query(_query(q))
    if not result:
        return
    values = ", ".join(f"({', '.join(_literal(value) for value in row)})" for row in result)
    yield "constant", f"VALUES {values}"
    if q["where"] or q["order"]:
        keys = run_query(_query(q, columns=f"{q['table']}.id"))
        id_list = ", ".join(_literal(key) for (key,) in keys)
        yield (
            "keys read off",
            _query(q, join_table="", on="", where=f"id IN ({id_list})", order="", direction="", limit=""),
        )
    if q["join_table"]:
        [(key,)] = run_query(f"SELECT id FROM {q['join_table']} WHERE {q['where']}")
        link = q["on"].partition(" = ")[0]
        yield "keys read off", _query(q, join_table="", on="", where=f"{link} = {_literal(key)}")


def _literal(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, int | float):
        return str(value)
    return "'" + str(value).replace("'", "''") + "'"
