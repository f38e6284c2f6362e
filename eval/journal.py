"""An evaluation's diary: every finished episode is written as it ends, so that a killed evaluation goes on.

One file holds the episodes of one player on one panel under one set of settings, whose hash is in the file's name and
whose text is in its first line. A line counts when it is whole; what a kill tore off is cut away at the next opening.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

from filelock import FileLock, Timeout

from gagpo.agents.episodes import Episode
from gagpo.envs.durable import naming
from gagpo.envs.errors import GagpoError

FORMAT = "gagpo journal 1"


class JournalError(GagpoError):
    """A journal that cannot be used: another evaluation's, in use, or not a journal."""


class Journal:
    """Episodes kept by (task, sample); for one process at a time.

        with Journal(Path("evals"), {"model": "qwen", "panel": ...}) as journal:
            journal.append(episode)

    key: everything that decides what an episode of this evaluation is: the player's identity, the panel, the settings.
    Plain JSON values.
    """

    def __init__(self, folder: Path, key: Mapping[str, object]):
        self.key: dict[str, object] = json.loads(json.dumps(key, sort_keys=True))
        digest = hashlib.sha256(json.dumps(self.key, sort_keys=True).encode()).hexdigest()[:16]
        who = re.sub(r"[^A-Za-z0-9._-]+", "-", str(self.key.get("model", "")))[-60:].strip("-.") or "episodes"
        self.path = folder / f"{who}-{digest}.jsonl"
        self.episodes: dict[tuple[str, int], Episode] = {}
        self._spent: list[dict[str, float]] = []
        self._open = ExitStack()

    def __enter__(self) -> Journal:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._open.enter_context(FileLock(self.path.with_suffix(".lock"), timeout=2.0))
        except Timeout:
            raise JournalError(f"{self.path}: another process plays this very evaluation; wait for it") from None
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
        """Keep a finished episode; it is on the disk when this returns. An episode kept already is not kept twice."""
        place = (episode.task, episode.sample)
        if place not in self.episodes:
            self._write({"episode": episode.record()})
            self.episodes[place] = episode

    def note_spent(self, amounts: Mapping[str, float]) -> None:
        """Remember what was spent on episodes that did not end."""
        self._write({"spent": dict(amounts)})
        self._spent.append(dict(amounts))

    def spent(self, name: str) -> float:
        """Sum of an amount (``cost``, ``prompt_tokens``, ...) over all episodes and all that was noted."""
        kept = [episode.info for episode in self.episodes.values()]
        return sum(float(one.get(name, 0.0)) for one in [*kept, *self._spent])

    def _write(self, record: dict[str, object]) -> None:
        text = json.dumps(record).encode("ascii")
        try:
            self._file.write(b"%s %08x\n" % (text, zlib.crc32(text)))
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:  # a full disk; what is torn is cut away at the next opening
            raise naming(error, self.path) from None

    def _read(self) -> int:
        """Take in what the file holds; the length of its whole part, in bytes."""
        length = 0
        for record, end in _whole_lines(self._file):
            # The first line says whose journal it is; any other brings an episode, or what was spent on none.
            if not length and record != {"format": FORMAT, "key": self.key}:
                raise JournalError(f"{self.path} holds another evaluation; move it away")
            if "episode" in record:
                episode = Episode.from_record(record["episode"])
                self.episodes.setdefault((episode.task, episode.sample), episode)
            self._spent += [record["spent"]] if "spent" in record else []
            length = end
        if not length and self._file.seek(0, os.SEEK_END) > 0 and not self._torn_head():
            raise JournalError(f"{self.path} is not a journal of evaluations; move it away")
        self._file.seek(length)
        return length

    def _torn_head(self) -> bool:
        """Whether the file is the beginning of a journal whose first line was never finished."""
        self._file.seek(0)
        return b"\n" not in self._file.read(1 << 20)


def weights_identity(folder: Path) -> str:
    """What tells the weights in a model folder from any others: names, sizes and times of its files, hashed.

    A folder that is written anew is another model, even under the same name.
    """
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    facts = [[str(path.relative_to(folder)), path.stat().st_size, path.stat().st_mtime_ns] for path in files]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def read_journal(path: Path) -> tuple[dict[str, Any], Iterator[Episode]]:
    """The key and the whole episodes of a journal, also of one that is being written."""
    with path.open("rb") as file:
        head, _ = next(_whole_lines(file), ({}, 0))
    if head.get("format") != FORMAT:
        raise JournalError(f"{path} is not a journal of evaluations")
    return head["key"], _episodes(path)


def _episodes(path: Path) -> Iterator[Episode]:
    seen = set()
    with path.open("rb") as file:
        # The first of a task's sample counts, as for whoever goes on.
        for episode in (Episode.from_record(one["episode"]) for one, _ in _whole_lines(file) if "episode" in one):
            if (episode.task, episode.sample) not in seen:
                seen.add((episode.task, episode.sample))
                yield episode


def _whole_lines(file: BinaryIO) -> Iterator[tuple[dict[str, Any], int]]:
    """The records from the file's beginning to its first line that was not written to its end, and where each ends."""
    file.seek(0)
    end = 0
    for line in file:
        # A line is a record and its checksum.
        text, _, check = line.rpartition(b" ")
        if not line.endswith(b"\n") or check.strip() != b"%08x" % zlib.crc32(text):
            return
        end += len(line)
        yield json.loads(text), end
