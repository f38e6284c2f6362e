"""Queries of an untrusted author: nothing is written, nothing hangs, nothing depends on chance."""

import sqlite3
import time

import pytest

from gagpo.envs.sql.database import BadDatabase, Database, QueryFailed, same_result, show


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
    opened = Database(path)
    yield opened
    opened.close()


def test_reading(database):
    assert database.tables == {"people": [("id", "INTEGER"), ("name", "TEXT"), ("age", "INTEGER")]}
    assert database.run("SELECT COUNT(*), MAX(age) FROM people") == (["COUNT(*)", "MAX(age)"], [(1000, 6)])
    assert len(database.run("SELECT id FROM people", 5)[1]) == 5
    assert database.run(
        "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t WHERE n < 9) SELECT SUM(n) FROM t"
    )[1] == [(45,)]


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
def test_what_is_not_plain_reading_is_refused(database, path, sql):
    before = path.read_bytes()
    with pytest.raises(QueryFailed) as failed:
        database.run(sql)
    assert str(failed.value) and "\n" not in str(failed.value)
    assert path.read_bytes() == before and [one.name for one in path.parent.iterdir()] == [path.name]
    assert database.run("SELECT COUNT(*) FROM people")[1] == [(1000,)]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT COUNT(*) FROM people a, people b, people c, people d",
        "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) SELECT COUNT(*) FROM t",
        "SELECT a.name FROM people a, people b, people c ORDER BY a.name || b.name || c.name",
    ],
)
def test_what_takes_too_long_ends_at_the_same_step_everywhere(database, sql):
    begun = time.process_time()
    for _ in range(2):
        with pytest.raises(QueryFailed, match=r"takes too long|full"):
            database.run(sql)
    assert time.process_time() - begun < 30


def test_a_file_that_is_no_database(tmp_path):
    (tmp_path / "x.sqlite").write_text("not a database " * 100)
    with pytest.raises(BadDatabase, match="not an SQLite database"):
        Database(tmp_path / "x.sqlite")
    with pytest.raises(BadDatabase, match="there is no database"):
        Database(tmp_path / "none.sqlite")
    assert not (tmp_path / "none.sqlite").exists()


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
    ],
)
def test_execution_accuracy(one, other, ordered, same):
    assert same_result(one, other, ordered) is same is same_result(other, one, ordered)


def test_shown_rows_are_cut():
    assert show(["a"], [("x" * 100,)], 3) == "a\n" + "x" * 57 + "..."
    assert show(["a"], [], 3) == "a\n(no rows)"
    assert show(["a", "b"], [(1, None)] * 4, 3).splitlines()[-1] == "(3 rows of more)"
