"""Untrusted queries: read-only, bounded and deterministic."""

import sqlite3
import time

import pytest

from gagpo.envs.sql.database import BadDatabase, Bounds, Cost, Database, QueryFailed, create, show
from tests.rejections import rejects

PEOPLE = (("people", (("name", "TEXT NOT NULL"),), (("Ann",), ("Bo",))),)


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "a database?.sqlite"
    connection = sqlite3.connect(file)
    connection.execute("CREATE TABLE people (id INTEGER PRIMARY KEY, name TEXT, age INTEGER)")
    connection.executemany("INSERT INTO people VALUES (?, ?, ?)", [(i, f"p{i}", i % 7) for i in range(1000)])
    connection.commit()
    connection.close()
    return file


@pytest.fixture
def database(path):
    opened = Database(str(path))
    yield opened
    opened.close()


def test_reading(database):
    assert database.tables == {"people": [("id", "INTEGER"), ("name", "TEXT"), ("age", "INTEGER")]}
    result = database.run("SELECT COUNT(*), MAX(age) FROM people")
    assert (result.names, result.rows) == (["COUNT(*)", "MAX(age)"], [(1000, 6)])
    assert len(database.run("SELECT id FROM people", limit=5).rows) == 5
    assert database.run(
        "/* a sum */ WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t WHERE n < 9) SELECT SUM(n) FROM t"
    ).rows == [(45,)]


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM people",
        "INSERT INTO people VALUES (5000, 'x', 1)",
        "DROP TABLE people",
        "CREATE TABLE t (a)",
        "CREATE TEMP TABLE t (a)",
        "ATTACH DATABASE '/tmp/other.sqlite' AS o",
        "PRAGMA table_info(people)",
        "PRAGMA writable_schema = 1",
        "SELECT * FROM sqlite_master",
        "SELECT * FROM pragma_table_info('people')",
        "SELECT load_extension('/tmp/x.so')",
        "SELECT random()",
        "SELECT randomblob(9)",
        "SELECT date('now')",
        "SELECT CURRENT_TIMESTAMP",
        "SELECT datetime(' NOW ')",
        "SELECT json_extract('{}', '$')",
        "SELECT * FROM dbstat",
        "SELECT COUNT(*) FROM dbstat",
        "SELECT COUNT(*) FROM sqlite_stmt",
        "SELECT COUNT(*) FROM pragma_table_info('people')",
        "SELECT * FROM json_each('[1]')",
        "VACUUM INTO '/tmp/copy.sqlite'",
        "BEGIN",
        "EXPLAIN SELECT 1",
        "SELECT 1; DELETE FROM people",
        "",
        "SELECT",
        "SELECT nothing FROM people",
        "SELECT zeroblob(2000000000)",
        "SELECT '" + "x" * 20_000 + "'",
        "SELECT " + "(" * 500 + "1" + ")" * 500,
        "SELECT \0",
        "SELECT '\ud800'",
        "SELECT ?",
    ],
)
def test_everything_except_reading_is_rejected(database, path, sql):
    before = path.read_bytes()
    with pytest.raises(QueryFailed) as failed:
        database.run(sql)
    assert str(failed.value) and "\n" not in str(failed.value)
    assert path.read_bytes() == before and [item.name for item in path.parent.iterdir()] == [path.name]
    assert database.run("SELECT COUNT(*) FROM people").rows == [(1000,)]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT COUNT(*) FROM people a, people b, people c, people d",
        "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) SELECT COUNT(*) FROM t",
        "SELECT a.name FROM people a, people b, people c ORDER BY a.name || b.name || c.name",
    ],
)
def test_a_long_query_ends_at_the_same_step_everywhere(database, sql):
    begun = time.process_time()
    for _ in range(2):
        with pytest.raises(QueryFailed, match=r"takes too long|full"):
            database.run(sql)
    assert time.process_time() - begun < 30


def test_a_file_that_is_no_database(tmp_path):
    (tmp_path / "x.sqlite").write_text("not a database " * 100)
    with rejects(BadDatabase, "not an SQLite"):
        Database(str(tmp_path / "x.sqlite"))
    with rejects(BadDatabase, "database", where="none.sqlite"):
        Database(str(tmp_path / "none.sqlite"))
    assert not (tmp_path / "none.sqlite").exists()


@pytest.mark.parametrize(
    "call",
    [
        "date()",
        "time()",
        "datetime()",
        "julianday()",
        "unixepoch()",
        "strftime('%Y')",
        "strftime('%s', 'now')",
        "date('n' || 'ow')",
        "date(lower('NOW'))",
        "date(x'6e6f77')",
        "date('now' || char(0) || 'x')",
        "julianday('subsec')",
        "datetime('2020-01-01', 'localtime')",
        "datetime('2020-01-01', 'utc')",
        "CURRENT_DATE",
        "CURRENT_TIME",
    ],
)
def test_no_query_learns_the_time(database, call):
    with pytest.raises(QueryFailed, match="there is no clock here"):
        database.run(f"SELECT {call}")
    with pytest.raises(QueryFailed, match="there is no clock here"):
        database.run(f"SELECT name FROM people WHERE {call} > '2020'")


@pytest.mark.parametrize(
    "call, value",
    [
        ("strftime('%Y-%m', '2020-02-29')", "2020-02"),
        ("date('2020-02-28', '+1 day')", "2020-02-29"),
        ("julianday('2020-01-02') - julianday('2020-01-01')", 1.0),
        ("datetime(0, 'unixepoch')", "1970-01-01 00:00:00"),
        ("date(NULL)", None),
        ("date('today')", None),
        ("'now' || 'utc'", "nowutc"),
        ("printf('%.1f %5d %s', 1.25, 7, 'x')", "1.3     7 x"),
    ],
)
def test_functions_of_given_times_are_those_of_sqlite(database, call, value):
    assert database.run(f"SELECT {call}").rows == [(value,)]
    assert sqlite3.connect(":memory:").execute(f"SELECT {call}").fetchall() == [(value,)]


@pytest.mark.parametrize(
    "value",
    [
        "zeroblob(20000)",
        "replace(hex(zeroblob(499998)), '0', 'a')",
        "replace(replace('aaaaaaaaaa', 'a', '{0}'), 'b', '{0}{0}{0}{0}{0}')".format("b" * 100),
        "printf('%.*c', 2000000000, 'a')",
        "printf('%2000000000d', 1)",
        "format('%.500c', 'a')",
    ],
)
def test_no_value_grows(value):
    with pytest.raises(QueryFailed, match=r"not available|too big|takes widths up to 100"):
        Database(PEOPLE).run(f"SELECT length({value})")


def test_a_result_is_bounded_before_it_is_whole(database):
    wide = "SELECT '" + "x" * 9_000 + "' FROM people a, people b"
    with pytest.raises(QueryFailed, match="the result is too large"):
        database.run(wide, Bounds(size=100_000))
    assert len(database.run(wide, Bounds(size=100_000), limit=3).rows) == 3


def test_the_rejected_function_is_named(database):
    for sql, reported in {
        "SELECT soundex(sqlite_version())": "the function sqlite_version is not available",
        "SELECT name FROM sqlite_master": "only reading the tables of this database is allowed",
        "/**/" * 2_000 + "DROP TABLE people": "only SELECT is possible",  # read in no more than its length
    }.items():
        with pytest.raises(QueryFailed, match=reported):
            database.run(sql)
    assert database.run("SELECT 1").rows == [(1,)]  # nothing of a refusal stays


def test_the_cost_of_a_query_is_known_and_counts_no_seconds_of_others(database):
    small, large = (database.run(f"SELECT COUNT(*) FROM people a, people b WHERE b.id < {n}").cost for n in (9, 900))
    assert 0 < small.steps < 100_000 < large.steps < 10_000_000 and small.size == large.size == 104
    assert large == Cost(large.steps, large.seconds, 104) and 0 <= small.seconds <= large.seconds
    bounds = Bounds(steps=10, seconds=1.0, size=20).extended(Cost(steps=1000, seconds=0.5, size=7))
    assert bounds == Bounds(steps=4010, seconds=3.0, size=34)


def test_a_database_in_memory(tmp_path):
    database = Database(PEOPLE)
    assert database.tables == {"people": [("name", "TEXT")]}
    assert database.run("SELECT name FROM people").rows == [("Ann",), ("Bo",)]
    with pytest.raises(QueryFailed, match="only SELECT"):
        database.run("DELETE FROM people")
    create(PEOPLE).execute("DELETE FROM people")  # a copy of its own
    assert database.run("SELECT COUNT(*) FROM people").rows == [(2,)]


@pytest.mark.parametrize(
    "end", [";", ";;", " ; ;\n", ";; -- ;", ";/* ; */;", "; -- the end", " -- ';", ";; /* open", " /* ;"]
)
def test_what_follows_the_statement_is_ignored(end):
    assert Database(PEOPLE).run(f"SELECT COUNT(*) FROM people{end}").rows == [(2,)]
    assert Database(PEOPLE).run(f"SELECT ';--' || name || ';' FROM people LIMIT 1{end}").rows == [(";--Ann;",)]


@pytest.mark.parametrize("sql", ["SELECT 1;; SELECT 2", "SELECT 1; -- ;\nDELETE FROM people;;", "SELECT 1;;x", ";;"])
def test_a_second_statement_is_rejected(sql):
    with pytest.raises(QueryFailed):
        Database(PEOPLE).run(sql)


def test_views_of_a_file_can_be_read(path):
    connection = sqlite3.connect(path)
    connection.execute("CREATE VIEW old AS SELECT name FROM people WHERE age = 6")
    connection.execute("CREATE VIEW today AS SELECT date('now') AS day")
    connection.commit()
    connection.close()
    database = Database(str(path))
    assert database.run("SELECT COUNT(*) FROM old").rows == [(142,)] and list(database.tables) == ["people"]
    with pytest.raises(QueryFailed, match="no clock"):
        database.run("SELECT day FROM today")


def test_shown_rows_are_cut():
    assert show(["a"], [("x" * 100,)], 3) == "a\n" + "x" * 57 + "..."
    assert show(["a"], [], 3) == "a\n(no rows)"
    assert show(["a", "b"], [(1, None)] * 4, 3).splitlines()[-1] == "(3 rows of more)"
