"""Files with changes that SQLite has not written back."""

import json
import shutil
import sqlite3
from concurrent.futures import ThreadPoolExecutor

import pytest

from gagpo.envs.sql import sources
from gagpo.envs.sql.database import BadDatabase, Database
from gagpo.envs.sql.env import SQLEnv
from gagpo.envs.sql.journals import with_log
from gagpo.envs.sql.sources import BadSource
from tests.rejections import rejects

HOT = b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7" + b"\0" * 504


@pytest.fixture(autouse=True)
def data(tmp_path, monkeypatch):
    monkeypatch.setenv("GAGPO_DATA", str(tmp_path / "data"))
    monkeypatch.delenv("SQL_DATA", raising=False)
    sources.load_questions.cache_clear()


@pytest.fixture
def logged(tmp_path):
    """A database of one row, with a write-ahead log of two more."""
    connection = sqlite3.connect(tmp_path / "work.sqlite", isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("CREATE TABLE singer (name TEXT)")
    connection.execute("INSERT INTO singer VALUES ('Ann')")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.execute("INSERT INTO singer VALUES ('Bo'), ('Cy')")
    folder = tmp_path / "spider" / "database" / "concert"
    folder.mkdir(parents=True)
    for suffix in ("", "-wal"):
        shutil.copyfile(tmp_path / f"work.sqlite{suffix}", folder / f"concert.sqlite{suffix}")
    connection.close()
    row = {"db_id": "concert", "question": "Who?", "query": "SELECT name FROM singer"}
    (tmp_path / "spider" / "train_spider.json").write_text(json.dumps([row]))
    return folder / "concert.sqlite"


def contents(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_rows_of_a_write_ahead_log_count(logged):
    before = contents(logged.parent)
    env = SQLEnv(data=logged.parents[2])
    assert env.reset(seed=0)[0] == "Who?"
    assert env.step("query: SELECT * FROM singer")[0] == "name\nAnn\nBo\nCy"
    assert env.step("answer: VALUES ('Ann')")[4]["verdict"] == "wrong"
    env.close()
    assert contents(logged.parent) == before


def test_a_read_only_folder_and_a_link_to_the_file(logged, tmp_path):
    link = tmp_path / "link.sqlite"
    link.symlink_to(logged)
    logged.parent.chmod(0o555)
    try:
        copies = [with_log(path) for path in (logged, link)]
    finally:
        logged.parent.chmod(0o755)
    assert [copy.name for copy in copies] == ["concert.sqlite", "link.sqlite"]
    for copy in copies:
        assert Database(str(copy)).run("SELECT COUNT(*) FROM singer").rows == [(3,)]
        assert [file.name for file in copy.parent.iterdir()] == [copy.name]


def test_a_copy_is_made_once_by_concurrent_workers(logged):
    with ThreadPoolExecutor(4) as crowd:
        copies = set(crowd.map(with_log, [logged] * 8))
    (copy,) = copies
    st_mtime_ns = copy.stat().st_mtime_ns
    assert with_log(logged) == copy and copy.stat().st_mtime_ns == st_mtime_ns


def test_a_file_whose_log_appears_later_is_not_read_without_it(logged):
    with rejects(BadDatabase, "concert.sqlite-wal", where="concert.sqlite", advice="sqlite3"):
        Database(str(logged))


@pytest.mark.parametrize("content", [b"", b"\0" * 100, b"no log" * 20], ids=["empty", "zeros", "text"])
def test_a_log_without_changes_is_ignored(logged, content):
    logged.with_name("concert.sqlite-wal").write_bytes(content)
    assert with_log(logged) == logged
    assert Database(str(logged)).run("SELECT COUNT(*) FROM singer").rows == [(1,)]


def test_a_damaged_log_counts_as_far_as_sqlite_reads_it(logged):
    log = logged.with_name("concert.sqlite-wal")
    log.write_bytes(log.read_bytes()[:-10])
    assert Database(str(with_log(logged))).run("SELECT COUNT(*) FROM singer").rows == [(1,)]


def test_a_journal_of_an_interrupted_write_is_rejected_with_the_row(logged):
    logged.with_name("concert.sqlite-wal").unlink()
    journal = logged.with_name("concert.sqlite-journal")
    journal.write_bytes(HOT)
    with rejects(BadSource, "row 0", "concert.sqlite-journal", "interrupted", "journal_mode = DELETE"):
        SQLEnv(data=logged.parents[2]).tasks("train")
    with rejects(BadDatabase, "interrupted", where="concert.sqlite"):
        Database(str(logged))
    journal.write_bytes(bytes(len(HOT)))  # of a finished write, with journal_mode = PERSIST
    assert len(SQLEnv(data=logged.parents[2]).tasks("train")) == 1
