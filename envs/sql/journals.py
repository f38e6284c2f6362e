"""Copies of database files whose changes are still in a write-ahead log.

A database is opened as immutable, and SQLite then ignores its log. So a file with a log is copied together with it, and
the log is applied to the copy. Rollback journals are rejected instead: a journal can name a file that SQLite deletes
when it rolls back, so an untrusted one must not be opened.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from gagpo.base import durable, lock
from gagpo.base.folders import data_folder
from gagpo.envs.sql.database import BadDatabase, advice, log_of, reject_journal

LOCK_TIMEOUT = 600.0  # seconds; copying the largest file takes about a minute
MAX_SIZE = 16 * 2**30  # bytes of a file and its log
_FORMAT = 1


def with_log(path: Path) -> Path:
    """The database ``path``, or a copy with its write-ahead log applied if it has one.

    The copy has the same name and is stored in ``$GAGPO_DATA/sql/snapshots``. The original is not changed.

    Raises:
        BadDatabase: the file has a rollback journal, is too large to copy, or is being written to.
    """
    reject_journal(path)
    log = log_of(path)
    if log is None:
        return path
    version = _version(path, log)
    if path.stat().st_size + log.stat().st_size > MAX_SIZE:
        raise BadDatabase(f"too large to copy with {log.name}", where=path, advice=advice(path))
    digest = hashlib.sha256(repr((_FORMAT, os.path.abspath(path), version)).encode()).hexdigest()[:24]
    folder = data_folder() / "sql" / "snapshots" / digest
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with lock.alone(Path(f"{folder}.lock"), LOCK_TIMEOUT, f"copying {path}"):
            if not folder.is_dir():
                with durable.replacing_folder(folder) as unfinished:
                    _copy(path, log, unfinished / path.name)
                    if _version(path, log) != version:
                        raise BadDatabase("another process is writing to it", where=path, advice=advice(path))
    return folder / path.name


def _copy(path: Path, log: Path, copy: Path) -> None:
    """Copy both files, and apply the log to the copy, which only moves pages: nothing of the schema is run."""
    shutil.copyfile(path, copy)
    shutil.copyfile(log, f"{copy}-wal")
    try:
        with closing(sqlite3.connect(copy, isolation_level=None)) as connection:
            (mode,) = connection.execute("PRAGMA journal_mode = DELETE").fetchone()  # checkpoints, and removes the log
    except sqlite3.Error as error:
        raise BadDatabase(f"{log.name} cannot be read ({error})", where=path, advice=advice(path)) from None
    if mode != "delete":
        raise BadDatabase(f"{log.name} cannot be applied", where=path, advice=advice(path))


def _version(*paths: Path) -> list[tuple[int, int]]:
    """Size and time of the last change of each file."""
    return [(file.st_size, file.st_mtime_ns) for file in map(os.stat, paths)]
