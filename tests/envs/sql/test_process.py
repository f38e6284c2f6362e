"""The query process: limits on CPU time and memory, and restarts."""

import os
import resource
import signal
import sqlite3
import threading
from contextlib import closing

import psutil
import pytest

from gagpo.base.child import ChildFailed
from gagpo.envs.sql import process as module
from gagpo.envs.sql.database import BadDatabase, Bounds, QueryFailed
from gagpo.envs.sql.process import QueryProcess
from tests.envs.sql import changed_worker
from tests.rejections import rejects

PEOPLE = (("people", (("id", "INTEGER PRIMARY KEY"), ("name", "TEXT NOT NULL")), ((1, "Ann"), (2, "Bo"))),)
DEFINITIONS = "WITH x0 AS (SELECT 1 AS a)" + "".join(
    f", x{i} AS (SELECT p.a FROM x{i - 1} p, x{i - 1} q)" for i in range(1, 40)
)
ENDLESS = "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) SELECT COUNT(*) FROM t"
WHILE_PREPARED = DEFINITIONS + " SELECT 1 FROM x39 LIMIT 0"  # two to the 39th definitions, and not a step
QUICK = Bounds(seconds=0.2)


@pytest.fixture
def queries():
    process = QueryProcess()
    yield process
    process.close()
    assert process.process is None


def works(queries, source=PEOPLE):
    return queries.run(source, "SELECT COUNT(*) FROM people", Bounds(), 2) == (["COUNT(*)"], [(2,)])


def test_questions_and_answers(queries):
    assert queries.process is None  # not started yet
    assert queries.tables(PEOPLE) == {"people": [("id", "INTEGER"), ("name", "TEXT")]}
    assert queries.run(PEOPLE, "SELECT * FROM people", Bounds(), 1) == (["id", "name"], [(1, "Ann")])
    other = (("people", PEOPLE[0][1], ((3, "Cy"),)),)
    gold = "SELECT name FROM people"
    for sql, verdicts in {
        gold: [True, True],
        "VALUES ('Bo'), ('Ann')": [True, False],
        "SELECT id FROM people": [False],
    }.items():
        assert queries.agrees((PEOPLE, other), sql, gold, "exact", Bounds()) == verdicts
    assert queries.cost(PEOPLE, ENDLESS.replace("FROM t)", "FROM t WHERE n < 9999)"), Bounds()).steps > 10_000


@pytest.mark.parametrize("sql", [WHILE_PREPARED, ENDLESS])
def test_a_query_ends_at_its_limit_of_cpu_time(queries, sql):
    begun = resource.getrusage(resource.RUSAGE_CHILDREN)
    for _ in range(2):
        with pytest.raises(QueryFailed, match="takes too long"):
            queries.run(PEOPLE, sql, Bounds(steps=2**40, seconds=0.2), 1)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert used.ru_utime + used.ru_stime - begun.ru_utime - begun.ru_stime < 3
    assert works(queries)


def test_waiting_is_not_cpu_time(queries):
    """A suspended process is late, but its answer is the same."""
    assert works(queries)
    stopped = psutil.Process(queries.process)
    stopped.suspend()
    threading.Timer(0.7, stopped.resume).start()
    assert queries.run(PEOPLE, "SELECT 1", QUICK, 1)[1] == [(1,)]


def test_memory_is_bounded():
    """A recursion with 4,000 bytes per row, sorted."""
    sql = (
        f"WITH RECURSIVE t(n, s) AS (SELECT 1, '{'x' * 4000}' UNION ALL SELECT n + 1, s FROM t WHERE n < 100000) "
        "SELECT s || n FROM t ORDER BY 1 DESC"
    )
    with closing(QueryProcess(memory=256 * 2**20)) as queries:
        with pytest.raises(QueryFailed, match="too much memory"):
            queries.run(PEOPLE, sql, Bounds(steps=2**40, seconds=60), 1)
        assert works(queries)


def test_by_default_it_has_two_gigabytes_and_writes_no_file(queries):
    assert works(queries)
    limits = psutil.Process(queries.process).rlimit
    assert limits(psutil.RLIMIT_AS)[0] == 2 * 2**30 and limits(psutil.RLIMIT_FSIZE)[0] == 0


def test_a_killed_process_is_replaced_and_the_query_repeated(queries):
    assert works(queries)
    first = queries.process
    os.kill(first, signal.SIGKILL)
    assert works(queries) and queries.process != first
    queries.close()
    queries.close()
    assert works(queries)


def test_a_query_that_ends_the_process_twice_is_at_fault(monkeypatch):
    monkeypatch.setattr(module, "_TARGET", f"{changed_worker.__name__}:ends")
    with closing(QueryProcess()) as queries, pytest.raises(QueryFailed, match="ends the process"):
        queries.run(PEOPLE, "SELECT 1", QUICK, 1)


def test_a_process_that_does_not_start_is_not_the_fault_of_a_query(monkeypatch):
    monkeypatch.setattr(module, "_TARGET", f"{changed_worker.__name__}:missing")
    with rejects(ChildFailed, "ended (1)", where="a query process"):
        QueryProcess().run(PEOPLE, "SELECT 1", QUICK, 1)


def test_faults_of_files_name_them(queries, tmp_path):
    (tmp_path / "x.sqlite").write_text("not a database " * 100)
    with rejects(BadDatabase, "x.sqlite", "not an SQLite"):
        queries.tables(str(tmp_path / "x.sqlite"))
    with rejects(BadDatabase, "gold query", "age"):
        queries.agrees((PEOPLE,), "SELECT 1", "SELECT age FROM people", "exact", Bounds())
    assert works(queries)


def test_a_long_query_is_not_sent(queries):
    with pytest.raises(QueryFailed, match="10000 characters"):
        queries.run(PEOPLE, "SELECT " + "1" * 10_000_000, QUICK, 1)
    assert queries.process is None


def test_closed_databases_are_reopened(queries):
    for _ in range(2):
        for number in range(300):
            source = (("people", PEOPLE[0][1], ((number, "Ann"),)),)
            assert queries.run(source, "SELECT id FROM people", Bounds(), 1)[1] == [(number,)]


def test_a_rewritten_file_is_another_database(queries, tmp_path):
    for number in (1, 2):
        (tmp_path / "x.sqlite").unlink(missing_ok=True)
        connection = sqlite3.connect(tmp_path / "x.sqlite")
        connection.execute(f"CREATE TABLE people AS SELECT {number} AS id")
        connection.commit()
        connection.close()
        assert queries.run(str(tmp_path / "x.sqlite"), "SELECT id FROM people", Bounds(), 1)[1] == [(number,)]
    (tmp_path / "x.sqlite").unlink()
    with rejects(BadDatabase, "no such database"):
        queries.tables(str(tmp_path / "x.sqlite"))


def test_a_slow_gold_query_is_not_the_fault_of_an_answer(monkeypatch):
    monkeypatch.setattr(module, "_TARGET", f"{changed_worker.__name__}:slow_gold")
    with closing(QueryProcess()) as queries, rejects(BadDatabase, "too long"):
        queries.agrees((PEOPLE,), "SELECT 1", "SELECT 1", "exact", QUICK)
