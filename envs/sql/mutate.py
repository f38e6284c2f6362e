"""Mutants: the usual wrong queries, made from a right one by dropping, adding or replacing one part.

Questions are judged on databases in which every mutant gives another result. This module uses only the standard
library, so that :file:`benchmarks/sql_luck.py` can judge the questions of any version with the same mutants.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

Look = Callable[[str], Sequence[Sequence[Any]]]
"""Runs a query on the database that the agent sees."""

_CLAUSES = re.compile(
    r"SELECT (?P<distinct>DISTINCT )?(?P<what>.+?) FROM (?P<table>\w+)"
    r"(?: JOIN (?P<other>\w+) ON (?P<on>.+?))?"
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


def mutants(gold: str, schema: Mapping[str, Sequence[str]], look: Look) -> Iterator[tuple[str, str]]:
    """Yield (kind, query) of each mutant of ``gold`` once.

    Assumes that each table has the key ``id``, and that no value is null. Queries that are equivalent to ``gold`` under
    these rules are not mutants.

    gold: a SELECT from one table, or from two if a row of the first belongs to a row of the second.
    schema: the columns of each table.

    Raises:
        ValueError: another kind of query.
    """
    match = _CLAUSES.fullmatch(gold)
    if match is None:
        raise ValueError(f"not a query that can be mutated: {gold}")
    clauses = match.groupdict(default="")
    makers = (_conditions, _joins, _distinct, _aggregates, _columns, _orders, _groups, _read_off)
    seen = {gold}
    for maker in makers:
        for kind, sql in maker(clauses, schema, look):
            if sql not in seen:
                seen.add(sql)
                yield kind, sql


Clauses = Mapping[str, str]
Mutants = Iterator[tuple[str, str]]


def _query(clauses: Clauses, **changed: str) -> str:
    """The query with these clauses, some of them changed; empty ones are left out."""
    q = {**clauses, **changed}
    parts = [f"SELECT {q['distinct']}{q['what']} FROM {q['table']}"]
    parts += [f"JOIN {q['other']}{' ON ' if q['on'] else ''}{q['on']}"] if q["other"] else []
    parts += [f"WHERE {q['where']}"] if q["where"] else []
    parts += [f"GROUP BY {q['group']}"] if q["group"] else []
    parts += [f"ORDER BY {q['order']} {q['direction']}".rstrip()] if q["order"] else []
    parts += [f"LIMIT {q['limit']}"] if q["limit"] else []
    return " ".join(parts)


def _qualified(q: Clauses, table: str, column: str) -> str:
    """The column's name in the query: with the table's name if there are two tables."""
    return f"{table}.{column}" if q["other"] else column


def _conditions(q: Clauses, schema: Mapping[str, Sequence[str]], look: Look) -> Mutants:
    if not q["where"]:
        return
    yield "condition dropped", _query(q, where="")
    condition = _CONDITION.fullmatch(q["where"])
    if condition is None:
        return
    left, sign, right = condition.groups()
    for other in _OTHER_SIGNS[sign]:
        yield "condition turned", _query(q, where=f"{left} {other} {right}")
    if sign != "=" and right.isdigit():
        for bound in (int(right) - 1, int(right) + 1):
            yield "bound one off", _query(q, where=f"{left} {sign} {bound}")
    table = q["other"] or q["table"]
    for column in schema[table]:
        yield "condition on another column", _query(q, where=f"{_qualified(q, table, column)} {sign} {right}")


def _joins(q: Clauses, schema: Mapping[str, Sequence[str]], look: Look) -> Mutants:
    if not q["other"]:
        return
    yield "join's condition dropped", _query(q, on="")
    yield "join on the keys", _query(q, on=f"{q['table']}.id = {q['other']}.id")
    yield "join dropped", _query(q, other="", on="", where="")
    yield "join dropped", _query(q, table=q["other"], other="", on="")


def _distinct(q: Clauses, schema: Mapping[str, Sequence[str]], look: Look) -> Mutants:
    if q["distinct"]:
        yield "DISTINCT dropped", _query(q, distinct="")
        return
    call = _CALL.fullmatch(q["what"].rpartition(", ")[2])
    if call is None:
        if not q["limit"] and not q["group"]:
            yield "DISTINCT added", _query(q, distinct="DISTINCT ")
        return
    function, inside = call.groups()
    kept = q["what"].removesuffix(call[0])
    if function not in _DUPLICATES_MATTER:
        return
    if inside != "*":
        yield "DISTINCT added", _query(q, what=f"{kept}{function}(DISTINCT {inside})")
        return
    for table in filter(None, (q["table"], q["other"])):
        for column in schema[table]:
            if (table, column) != (q["table"], "id"):  # the key is unique
                yield "DISTINCT added", _query(q, what=f"{kept}COUNT(DISTINCT {_qualified(q, table, column)})")


def _aggregates(q: Clauses, schema: Mapping[str, Sequence[str]], look: Look) -> Mutants:
    call = _CALL.fullmatch(q["what"].rpartition(", ")[2])
    if call is None:
        if q["limit"]:
            q = {**q, "order": "", "limit": ""}
        for function in ("MIN", "MAX") if not q["group"] else ():
            yield "another aggregate", _query(q, what=f"{function}({q['what']})")
        return
    function, inside = call.groups()
    kept = q["what"].removesuffix(call[0])
    columns = [inside] if inside != "*" else [_qualified(q, q["table"], column) for column in schema[q["table"]]]
    for column in columns:
        for other in _AGGREGATES:
            if other != function:
                yield "another aggregate", _query(q, what=f"{kept}{other}({column})")
        yield "aggregate dropped", _query(q, what=f"{kept}{column}")
        if not q["group"]:
            yield "aggregate of one row", _query(q, what=f"{kept}{column}", limit="1")
    if function == "AVG":
        yield "another aggregate", _query(q, what=f"{kept}SUM({inside}) / COUNT(*)")
        yield "another aggregate", _query(q, what=f"{kept}ROUND(AVG({inside}))")


def _columns(q: Clauses, schema: Mapping[str, Sequence[str]], look: Look) -> Mutants:
    call = _CALL.fullmatch(q["what"])
    for column in schema[q["table"]]:
        if call is not None and call["column"] != "*":
            yield "another column", _query(q, what=f"{call['function']}({column})")
        elif call is None and not q["group"]:
            yield "another column", _query(q, what=column)


def _orders(q: Clauses, schema: Mapping[str, Sequence[str]], look: Look) -> Mutants:
    if not q["order"]:
        if not q["limit"] and not _CALL.fullmatch(q["what"]):
            yield "LIMIT added", _query(q, limit="1")
        return
    yield "order dropped", _query(q, order="", direction="")
    for column in schema[q["table"]]:
        for direction in ("ASC", "DESC"):
            kind = "order reversed" if column == q["order"] else "order by another column"
            if (column, direction) != (q["order"], q["direction"] or "ASC"):
                yield kind, _query(q, order=column, direction=direction)
    if q["limit"]:
        yield "LIMIT dropped", _query(q, limit="")


def _groups(q: Clauses, schema: Mapping[str, Sequence[str]], look: Look) -> Mutants:
    if not q["group"]:
        return
    yield "group dropped", _query(q, group="")
    for column in schema[q["table"]]:
        yield "group by another column", _query(q, group=column)


def _read_off(q: Clauses, schema: Mapping[str, Sequence[str]], look: Look) -> Mutants:
    """Queries with constants from one database: its result, or the keys of the rows that the result is from."""
    result = look(_query(q))
    if not result:
        return
    values = ", ".join(f"({', '.join(_literal(value) for value in row)})" for row in result)
    yield "constant", f"VALUES {values}"
    if q["where"] or q["order"]:
        keys = look(_query(q, what=f"{q['table']}.id"))
        listed = ", ".join(_literal(key) for (key,) in keys)
        yield "keys read off", _query(q, other="", on="", where=f"id IN ({listed})", order="", direction="", limit="")
    if q["other"]:
        [(key,)] = look(f"SELECT id FROM {q['other']} WHERE {q['where']}")
        link = q["on"].partition(" = ")[0]
        yield "keys read off", _query(q, other="", on="", where=f"{link} = {_literal(key)}")


def _literal(value: Any) -> str:
    if value is None:
        return "NULL"
    return str(value) if isinstance(value, int | float) else "'" + str(value).replace("'", "''") + "'"
