"""The query process: whatever a query does, it costs its own processor time and nothing else."""

import contextlib
import os
import resource
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from gagpo.envs.sql import process as module
from gagpo.envs.sql.database import BadDatabase, Bounds, QueryFailed
from gagpo.envs.sql.process import QueryProcess, QueryProcessFailed, release, shared

ROOT = Path(__file__).parents[3]
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
    assert queries.process is None  # nothing runs before it is asked
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
def test_a_query_ends_at_its_processor_time_wherever_it_is_spent(queries, sql):
    begun = resource.getrusage(resource.RUSAGE_CHILDREN)
    for _ in range(2):
        with pytest.raises(QueryFailed, match="takes too long"):
            queries.run(PEOPLE, sql, Bounds(steps=2**40, seconds=0.2), 1)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert used.ru_utime + used.ru_stime - begun.ru_utime - begun.ru_stime < 3
    assert works(queries)


def test_waiting_is_not_processor_time(queries):
    """A process that gets no processor is late, and its answer is the same."""
    assert works(queries)
    stopped = psutil.Process(queries.process)
    stopped.suspend()
    threading.Timer(0.7, stopped.resume).start()
    assert queries.run(PEOPLE, "SELECT 1", QUICK, 1)[1] == [(1,)]


def worker_that(change):
    """The code that starts a query process, with a ``change`` to its module before it begins."""
    return (
        module._BOOT.replace(".main()", "")
        + f"\nworker = sys.modules['gagpo.envs.sql.worker']\n{change}; worker.main()"
    )


def test_memory_is_bounded(queries, monkeypatch):
    """A recursion over four thousand bytes a row, which is sorted."""
    monkeypatch.setattr(module, "_BOOT", worker_that("worker.MEMORY = 256 * 2**20"))
    sql = (
        f"WITH RECURSIVE t(n, s) AS (SELECT 1, '{'x' * 4000}' UNION ALL SELECT n + 1, s FROM t WHERE n < 100000) "
        "SELECT s || n FROM t ORDER BY 1 DESC"
    )
    with pytest.raises(QueryFailed, match="too much memory"):
        queries.run(PEOPLE, sql, Bounds(steps=2**40, seconds=60), 1)
    assert works(queries)


def test_without_a_change_it_has_two_gigabytes_and_writes_no_file(queries):
    assert works(queries)
    limits = psutil.Process(queries.process).rlimit
    assert limits(psutil.RLIMIT_AS)[0] == 2 * 2**30 and limits(psutil.RLIMIT_FSIZE)[0] == 0


def test_a_process_that_is_killed_is_replaced_and_the_query_asked_again(queries):
    assert works(queries)
    first = queries.process
    os.kill(first, signal.SIGKILL)
    assert works(queries) and queries.process != first
    queries.close()
    queries.close()
    assert works(queries)


def test_a_query_that_ends_the_process_twice_is_at_fault(queries, monkeypatch):
    monkeypatch.setattr(module, "_BOOT", worker_that("worker._run = lambda *_: sys.exit(3)"))
    with pytest.raises(QueryFailed, match="ends the process"):
        queries.run(PEOPLE, "SELECT 1", QUICK, 1)


def test_one_that_does_not_start_is_no_fault_of_a_query(queries, monkeypatch):
    monkeypatch.setattr(module, "_BOOT", "raise SystemExit(3)")
    with pytest.raises(QueryProcessFailed, match=r"does not start: it ended \(3\)"):
        queries.run(PEOPLE, "SELECT 1", QUICK, 1)


def test_one_that_does_not_answer_is_no_fault_of_a_query(queries, monkeypatch):
    assert works(queries)
    os.kill(queries.process, signal.SIGSTOP)
    stopped, clock = psutil.Process(queries.process), iter(range(0, 100_000, 400))
    monkeypatch.setattr(module.time, "monotonic", lambda: next(clock))
    with pytest.raises(QueryProcessFailed, match="did not answer"):
        queries.run(PEOPLE, "SELECT 1", QUICK, 1)
    monkeypatch.undo()
    assert not stopped.is_running() and works(queries)


def test_an_interrupt_leaves_no_answer_for_the_next_question(queries, monkeypatch):
    assert works(queries)
    receive = module._received

    def interrupted(connection, end):
        monkeypatch.setattr(module, "_received", receive)
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "_received", interrupted)
    with pytest.raises(KeyboardInterrupt):
        queries.run(PEOPLE, "SELECT 'the first'", Bounds(), 1)
    assert queries.run(PEOPLE, "SELECT 'the second'", Bounds(), 1)[1] == [("the second",)]


def test_threads_share_it(queries):
    with ThreadPoolExecutor(8) as threads:
        asked = [threads.submit(queries.run, PEOPLE, f"SELECT {n}", Bounds(), 1) for n in range(200)]
        assert [one.result()[1] for one in asked] == [[(n,)] for n in range(200)]


def test_faults_of_files_name_them(queries, tmp_path):
    (tmp_path / "x.sqlite").write_text("not a database " * 100)
    with pytest.raises(BadDatabase, match=r"x\.sqlite: not an SQLite database"):
        queries.tables(str(tmp_path / "x.sqlite"))
    with pytest.raises(BadDatabase, match="its gold query fails: no such column: age"):
        queries.agrees((PEOPLE,), "SELECT 1", "SELECT age FROM people", "exact", Bounds())
    assert works(queries)


def test_what_is_too_long_is_not_sent(queries):
    with pytest.raises(QueryFailed, match="10000 characters"):
        queries.run(PEOPLE, "SELECT " + "1" * 10_000_000, QUICK, 1)
    assert queries.process is None


def test_databases_that_were_closed_are_opened_again(queries):
    for _ in range(2):
        for number in range(300):
            source = (("people", PEOPLE[0][1], ((number, "Ann"),)),)
            assert queries.run(source, "SELECT id FROM people", Bounds(), 1)[1] == [(number,)]


def test_a_file_that_was_written_anew_is_another(queries, tmp_path):
    for number in (1, 2):
        (tmp_path / "x.sqlite").unlink(missing_ok=True)
        connection = sqlite3.connect(tmp_path / "x.sqlite")
        connection.execute(f"CREATE TABLE people AS SELECT {number} AS id")
        connection.commit()
        connection.close()
        assert queries.run(str(tmp_path / "x.sqlite"), "SELECT id FROM people", Bounds(), 1)[1] == [(number,)]
    (tmp_path / "x.sqlite").unlink()
    with pytest.raises(BadDatabase, match="there is no database"):
        queries.tables(str(tmp_path / "x.sqlite"))


def test_a_gold_query_that_takes_too_long_is_no_fault_of_an_answer(queries, monkeypatch):
    monkeypatch.setattr(
        module,
        "_BOOT",
        worker_that("worker._limit_everything = lambda _: worker.os.kill(worker.os.getpid(), worker.signal.SIGXCPU)"),
    )
    with pytest.raises(BadDatabase, match="opening it and running the gold query take too long"):
        queries.agrees((PEOPLE,), "SELECT 1", "SELECT 1", "exact", QUICK)


def test_users_share_one_and_the_last_ends_it():
    class User:
        pass

    one, other = User(), User()
    assert shared(one) is shared(other) and works(shared(one))
    running = psutil.Process(shared(one).process)
    release(one)
    release(one)
    assert running.is_running() and works(shared(other))
    release(other)
    assert not running.is_running()


def test_a_fork_has_its_own():
    class User:
        pass

    user = User()
    assert works(shared(user))
    queries_of_parent = shared(user).process
    mine, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        try:
            own = shared(user)
            theirs.sendall(b"own" if works(own) and own.process != queries_of_parent else b"not")
            release(user)
        finally:
            os._exit(0)
    mine.settimeout(60)
    assert mine.recv(3) == b"own" and os.waitpid(child, 0)[1] == 0
    assert works(shared(user)) and shared(user).process == queries_of_parent
    release(user)


SCRIPT = """
import sys, time
from gagpo.envs.sql.database import Bounds
from gagpo.envs.sql.process import shared
source = (("people", (("id", "INTEGER"),), ((1,),)),)
class User: pass
user = User()
print(shared(user).run(source, "SELECT id FROM people", Bounds(), 1)[1], shared(user).process, flush=True)
{then}
"""


@pytest.mark.parametrize("then", ["", "import os; os._exit(0)", "sys.stdin.read()"])
def test_it_ends_with_its_owner_and_imports_nothing_from_the_working_directory(tmp_path, then):
    """However the owner ends: by itself, without a word, or killed."""
    for name in ("sqlite3", "marshal", "resource", "socket", "importlib", "gagpo", "struct", "collections"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong file was imported')")
    owner = subprocess.Popen(
        [sys.executable, "-P", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r})\n" + SCRIPT.format(then=then)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": "", "PYTHONSTARTUP": ""},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with owner:
        rows, _, number = owner.stdout.readline().rpartition(" ")
        assert rows == "[(1,)]"
        if "stdin" in then:
            owner.kill()
        else:
            owner.wait(60)
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(int(number)).wait(60)
    assert not psutil.pid_exists(int(number)) or psutil.Process(int(number)).ppid() != owner.pid
