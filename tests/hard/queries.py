"""Hostile SQL: each query is answered or refused within its processor time, and the next honest one is answered."""

from __future__ import annotations

import hashlib
import random
import sqlite3
import time
from pathlib import Path

import psutil

from gagpo.base.errors import GagpoError
from gagpo.envs.sql.database import Bounds, QueryFailed, Source
from gagpo.envs.sql.process import QueryProcess
from tests.hard.outcome import FAULT, FINE, REFUSED, Outcome, Tally

PEOPLE = (("people", (("id", "INTEGER PRIMARY KEY"), ("name", "TEXT NOT NULL")), ((1, "Ann"), (2, "Bo"))),)
BOUNDS = Bounds(seconds=0.5)
SLACK = 1.5  # processor seconds of starting the process anew and of packing a reply
_COUNTING = "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t{limit}) SELECT {what} FROM t"
_BOMBS = (
    "SELECT instr(replace(hex(zeroblob({n})), '0', '{text}'), '{text}b')",
    "SELECT printf('%.*c', {n}, 'x')",
    "SELECT printf('%{n}d', 1)",
    "SELECT hex(zeroblob({n}))",
    "SELECT length(randomblob({n}))",
    "SELECT quote(zeroblob({n}))",
    "SELECT replace(replace(hex(zeroblob({n})), '0', '{text}'), 'a', '{text}')",
    "SELECT group_concat(hex(zeroblob({n}))) FROM people, people, people",
    "SELECT '{text}' LIKE '%{text}%{text}%{text}_%b'",
    "SELECT '{text}' GLOB '*{text}*{text}*b'",
    "SELECT substr(zeroblob({n}), -{n}, {n}) || zeroblob({n})",
    "SELECT * FROM people a, people b, people c, people d ORDER BY random()",
    "SELECT json_group_array(name) FROM people",
    "SELECT " + "(" * 500 + "1" + ")" * 500,
    "SELECT 1" + " UNION ALL SELECT 1" * 400,
    "ATTACH 'out.sqlite' AS out",
    "CREATE TABLE out AS SELECT * FROM people",
    "PRAGMA writable_schema=1",
    "VACUUM INTO 'out.sqlite'",
    "SELECT load_extension('libc.so.6')",
    "SELECT writefile('out', name), readfile('/etc/passwd'), edit(name) FROM people",
    "SELECT date(), julianday('now'), random(), last_insert_rowid(), sqlite_version()",
    "SELECT * FROM sqlite_master, pragma_table_info('people'), pragma_database_list",
    "SELECT 1; DROP TABLE people",
    "DELETE FROM people RETURNING *",
    "SELECT '\x00' || char(0, 55296, 1114111) || '\u202e'",
    "EXPLAIN " + _COUNTING.format(limit="", what="n"),
    "WITH x0 AS (SELECT 1 AS a){doubling} SELECT 1 FROM x{depth} LIMIT 0",
    _COUNTING.format(limit="", what="COUNT(*)"),
    _COUNTING.format(limit=" LIMIT {n}", what="group_concat(n)"),
    _COUNTING.format(limit=" LIMIT {n}", what="max(printf('%.*c', n, 'x'))"),
    _COUNTING.format(limit=" LIMIT {n}", what="sum(n) OVER (ORDER BY n)"),
    _COUNTING.format(limit=" LIMIT {n}", what="instr(replace(hex('{text}'), '6', '{text}'), n)"),
    "SELECT instr(replace(replace(hex('{text}'), '6', '{text}'), '1', '{text}'), '{text}b')",
    "SELECT replace(replace(replace('{text}', 'a', '{text}'), 'a', '{text}'), 'a', '{text}')",
    "SELECT trim('{text}', '{text}'), upper('{text}'), '{text}' || '{text}' || hex(hex(hex('{text}')))",
    "SELECT a.name, group_concat('{text}') FROM people a, people b, people c, people d, people e GROUP BY 1",
)  # fmt: skip


def queries(folder: Path, count: int, seed: int, only: int | None = None) -> Tally:
    """Send ``count`` hostile queries to a generated database and to one in a file."""
    begin = time.monotonic()
    tally = Tally("hostile queries")
    place = folder / "people.sqlite"
    with sqlite3.connect(place) as database:
        database.execute("CREATE TABLE people (id INTEGER PRIMARY KEY, name TEXT NOT NULL)")
        database.executemany("INSERT INTO people VALUES (?, ?)", [(1, "Ann"), (2, "Bo")])
    database.close()
    sources: tuple[Source, ...] = (PEOPLE, str(place))
    asked = QueryProcess()
    whole = _state(folder)
    for case in range(count) if only is None else [only]:
        rng = random.Random(f"{seed}/{case}/queries")
        sql = hostile(rng)
        outcome = _asked(asked, rng.choice(sources), sql)
        if outcome.verdict != FAULT and _state(folder) != whole:
            outcome = Outcome(FAULT, "something was written")
            whole = _state(folder)
        tally.add(f"queries --seed {seed} --only {case} ({sql[:80]!a})", outcome)
    asked.close()
    tally.seconds = time.monotonic() - begin
    return tally


def hostile(rng: random.Random) -> str:
    """One of the bombs, with sizes of all magnitudes; sometimes two in one, or damaged."""
    depth = rng.randint(2, 60)
    doubling = "".join(f", x{i} AS (SELECT p.a FROM x{i - 1} p, x{i - 1} q)" for i in range(1, depth + 1))
    values = {"n": int(10 ** rng.uniform(0, 12)), "text": "a" * rng.choice((1, 50, 900)), "depth": depth}
    sql = rng.choice(_BOMBS)
    for name, value in {**values, "doubling": doubling}.items():
        sql = sql.replace(f"{{{name}}}", str(value))
    if rng.random() < 0.2:
        sql = f"SELECT * FROM ({sql}) WHERE 1 IN (SELECT id FROM people)"
    if rng.random() < 0.2:
        place = rng.randrange(len(sql))
        sql = sql[:place] + rng.choice(("'", "(", ";", "--", "\x00", "\ud800", "%", " " * 9000)) + sql[place:]
    return sql


def _asked(process: QueryProcess, source: Source, sql: str) -> Outcome:
    pid, before = process.process, _spent(process)
    try:
        names, rows = process.run(source, sql, BOUNDS, 50)
        outcome = Outcome(FINE, f"{len(names)} columns, {len(rows)} rows")
    except QueryFailed as error:
        outcome = Outcome(REFUSED, str(error))
    except GagpoError as error:
        return Outcome(FAULT, f"not the query's own: {error}")
    except Exception as error:
        return Outcome(FAULT, f"{type(error).__name__}: {error}")
    used = _spent(process) - before if process.process == pid else 0.0  # one that was ended was ended by its limit
    if used > BOUNDS.seconds + SLACK:
        return Outcome(FAULT, f"{used:.1f} processor seconds, of {BOUNDS.seconds} allowed")
    if process.run(source, "SELECT COUNT(*) FROM people", BOUNDS, 2)[1] != [(2,)]:
        return Outcome(FAULT, "the next query is answered wrongly")
    return outcome


def _spent(process: QueryProcess) -> float:
    """Processor seconds of the running process."""
    if process.process is None:
        return 0.0
    times = psutil.Process(process.process).cpu_times()
    return float(times.user + times.system)


def _state(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file()] + list(Path.cwd().glob("out*"))
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
