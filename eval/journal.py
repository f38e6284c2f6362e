"""The journal of an evaluation: finished episodes on disk, so that a killed evaluation can resume.

A file has the episodes of one model, task set and settings: their hash is in its name, their text in its first line.
A line torn by a kill is cut off when the file is opened again.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

from filelock import FileLock, Timeout
from pydantic import FiniteFloat

from gagpo.base.durable import naming
from gagpo.base.errors import GagpoError, InvalidArgument
from gagpo.data import Episode, episode_from_record, episode_record
from gagpo.runs.reading import parse, validated

FORMAT = "gagpo journal 2"


class JournalError(GagpoError):
    """A journal belongs to another evaluation, is in use, or is not a journal."""


class Journal:
    """Episodes by (task, sample), and what was spent on them; for one process at a time, with any threads.

        with Journal(Path("evals"), {"model": "qwen", "panel": ...}) as journal:
            journal.append(episode)

    key: everything that decides what an episode is (model, task set, settings), as plain JSON values.
    """

    def __init__(self, folder: Path, key: Mapping[str, object]):
        self.key: dict[str, object] = json.loads(json.dumps(key, sort_keys=True))
        digest = hashlib.sha256(json.dumps(self.key, sort_keys=True).encode()).hexdigest()[:16]
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", str(self.key.get("model", "")))[-60:].strip("-.") or "episodes"
        self.path = folder / f"{name}-{digest}.jsonl"
        self.episodes: dict[tuple[str, int], Episode] = {}
        self._spent: defaultdict[str, float] = defaultdict(float)
        self._lock = threading.Lock()
        self._open = ExitStack()

    def __enter__(self) -> Journal:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            # The system releases the lock when a process is killed, so a killed evaluation can resume at once.
            self._open.enter_context(FileLock(self.path.with_suffix(".lock"), timeout=2.0))
        except Timeout:
            raise JournalError(
                "another process is running this evaluation", where=self.path, advice="wait for it"
            ) from None
        try:
            self._file = self._open.enter_context(self.path.open("a+b"))
            self._file.truncate(self._read())
            if not self._file.tell():
                self._write({"format": FORMAT, "key": self.key})
        except BaseException:
            self._open.close()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self._open.close()

    def append(self, episode: Episode) -> None:
        """Write a finished episode to disk, unless it is there already."""
        key = (episode.task, episode.sample)
        with self._lock:  # lines must not mix: threads that wait for a server note what they spend at the same time
            if key not in self.episodes:
                self._write({"episode": episode_record(episode)})
                self.episodes[key] = episode

    def note_spent(self, amounts: Mapping[str, float]) -> None:
        """Add to the amounts spent. Survives a kill of this process, but not a power failure."""
        with self._lock:
            # Not flushed: a disk takes milliseconds for it, and there are many requests for one episode.
            self._write({"spent": dict(amounts)}, flushed=False)
            self._add(amounts)

    def spent(self, name: str) -> float:
        """The sum of an amount, such as ``cost`` or ``requests``."""
        return self._spent[name]

    def _add(self, amounts: Mapping[str, float]) -> None:
        for name, amount in amounts.items():
            self._spent[name] += amount

    def _write(self, record: dict[str, object], flushed: bool = True) -> None:
        text = json.dumps(record).encode("ascii")
        try:
            self._file.write(b"%s %08x\n" % (text, zlib.crc32(text)))
            self._file.flush()
            if flushed:
                os.fsync(self._file.fileno())
        except OSError as error:  # a full disk; a torn line is cut off at the next opening
            raise naming(error, self.path) from None

    def _read(self) -> int:
        """Read the file; return the length of its whole lines in bytes."""
        length = 0
        for record, end in _whole_lines(self._file):
            if not length and record != {"format": FORMAT, "key": self.key}:
                raise JournalError("holds another evaluation", where=self.path, advice="move it away")
            if "episode" in record:
                episode = _episode(record["episode"], str(self.path))
                self.episodes.setdefault((episode.task, episode.sample), episode)
            self._add(validated(dict[str, FiniteFloat], record.get("spent", {}), str(self.path)))
            length = end
        if not length and self._file.seek(0, os.SEEK_END) > 0 and not self._torn_head():
            raise JournalError("is not a journal of evaluations", where=self.path, advice="move it away")
        self._file.seek(length)
        return length

    def _torn_head(self) -> bool:
        """Whether the first line is incomplete."""
        self._file.seek(0)
        return b"\n" not in self._file.read(1 << 20)


def weights_identity(folder: Path) -> str:
    """A hash of the names, sizes and times of a model folder's files."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    facts = [[str(path.relative_to(folder)), path.stat().st_size, path.stat().st_mtime_ns] for path in files]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def read_journal(path: Path) -> tuple[dict[str, Any], Iterator[Episode]]:
    """The key and the episodes of a journal, which may be in use."""
    with path.open("rb") as file:
        head, _ = next(_whole_lines(file), ({}, 0))
    if head.get("format") != FORMAT or not isinstance(head.get("key"), dict):
        raise JournalError("is not a journal of evaluations", where=path)
    return head["key"], _episodes(path)


def _episodes(path: Path) -> Iterator[Episode]:
    keys = set()
    with path.open("rb") as file:
        for number, (record, _) in enumerate(_whole_lines(file), 1):
            if "episode" not in record:
                continue
            episode = _episode(record["episode"], f"{path}, line {number}")
            if (episode.task, episode.sample) not in keys:
                keys.add((episode.task, episode.sample))
                yield episode


def _episode(record: dict[str, Any], place: str) -> Episode:
    try:
        return episode_from_record(record)
    except InvalidArgument as error:
        raise JournalError(f"not an episode ({error})", where=place, advice="move it away") from None


def _whole_lines(file: BinaryIO) -> Iterator[tuple[dict[str, Any], int]]:
    """The records up to the first torn line, each with its end; a line is a record and its checksum."""
    file.seek(0)
    end = 0
    for line in file:
        text, _, check = line.rpartition(b" ")
        if not line.endswith(b"\n") or check.strip() != b"%08x" % zlib.crc32(text):
            return
        end += len(line)
        record = parse(text.decode(errors="replace"), file.name)
        if not isinstance(record, dict):
            raise JournalError("holds a line that is not a record", where=file.name, advice="move it away")
        yield record, end
