"""Checkpoints: everything a run needs to resume bit-identically; on disk they are complete or absent."""

from __future__ import annotations

import json
import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gagpo.base import durable, manifest
from gagpo.base.background import Background
from gagpo.base.errors import GagpoError
from gagpo.distributed import states
from gagpo.distributed.errors import RankFailed, RankLost
from gagpo.distributed.ranks import Ranks

NAME = re.compile(r"iteration-(\d{6})")
STATE = "state.json"
SAMPLED = "sampled.npz"

WEIGHTS = "model"
AVERAGE = "average"
"""The folders of a checkpoint that contain weights, each usable wherever a model is."""

State = dict[str, Any]
"""The trainer's counters and controllers, as plain JSON values."""


class CheckpointError(GagpoError, ValueError):
    """A checkpoint that cannot be used; the message names the file."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on disk.

    iteration: iterations done.
    weights: :data:`WEIGHTS` or :data:`AVERAGE`.
    """

    path: Path
    iteration: int
    weights: str = WEIGHTS

    @property
    def model(self) -> str:
        """The folder of the weights or the adapter."""
        return str(self.path / self.weights)

    @property
    def averaged(self) -> bool:
        """Whether ``model`` holds the averaged weights."""
        return self.weights == AVERAGE

    @property
    def average(self) -> str | None:
        """The folder of the averaged weights, where the run keeps an average."""
        path = self.path / AVERAGE
        return str(path) if path.is_dir() else None

    def verify(self) -> None:
        """Compare every file with the manifest; CheckpointError names the first that is missing or damaged."""
        try:
            if self.path.is_symlink():
                raise manifest.ManifestError("is a link", where=self.path, advice="put the checkpoint itself there")
            manifest.verify(self.path)
        except manifest.ManifestError as error:
            raise CheckpointError(error, advice=f"delete {self.path} to use an earlier checkpoint") from None

    def state(self) -> State:
        """The trainer's state."""
        path = self.path / STATE
        try:
            return read_state(path)
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise self._unreadable(path, error) from None

    def read(self, entry: Entry) -> None:
        """Restore an entry; an optional one that this checkpoint lacks is skipped."""
        path = self.path / entry.name
        if entry.optional and not path.exists():
            return
        try:
            entry.read(path)
        except (RankLost, CheckpointError):
            raise
        except Exception as error:  # torch raises whatever the damaged bytes lead to
            reason = str(error) if isinstance(error, states.StateError) else type(error).__name__
            raise self._unreadable(path, reason) from None

    def _unreadable(self, path: Path, reason: object) -> CheckpointError:
        return CheckpointError(
            f"cannot be read ({reason})", where=path, advice=f"delete {self.path} to use an earlier one"
        )


def read_state(path: Path) -> State:
    """The state in a file; raises whatever a damaged file leads to."""
    return dict(json.loads(path.read_text(encoding="utf-8")))


class Entry(ABC):
    """One file or folder of a checkpoint: how it is copied from the run, written and read.

    The entries of this package are in :mod:`gagpo.runs.entries`; the learner and the trainer list theirs.

    name: of the file or folder.
    by_all_ranks: whether every rank writes its part; otherwise the first one writes the entry.
    optional: whether a checkpoint may lack it.
    """

    name: str
    by_all_ranks = False
    optional = False

    @abstractmethod
    def copy(self) -> Any:
        """A copy in host memory, so that the run continues while it is written; None to leave the entry out.

        All ranks call it together, in the thread that trains.
        """

    @abstractmethod
    def write(self, content: Any, path: Path, ranks: Ranks) -> None:
        """Write what :meth:`copy` returned, in the writer's thread. ranks: the writer's channel."""

    @abstractmethod
    def read(self, path: Path) -> None:
        """Restore the content from what :meth:`write` wrote."""

    def size(self) -> int:
        """Bytes on disk, over all ranks; 0 for a small entry."""
        return 0


class Saver(Background):
    """Writes checkpoints in a thread, one at a time, while the run continues. deadline: seconds that one may take.

    The thread reads only the copies that it gets, and has its own channel to the threads of the other ranks: on a
    shared channel, their calls and those of the training threads could meet in a different order on each rank.
    """

    def __init__(self, folder: Path, ranks: Ranks | None = None, deadline: float = 3600.0):
        super().__init__(f"writing a checkpoint to {folder}", deadline)
        self.folder = folder
        self.ranks = (ranks or Ranks()).channel()

    def save(self, iteration: int, entries: Sequence[Entry], keep: int = 1, protected: Collection[int] = ()) -> None:
        """Copy the entries, and begin to write them: under a temporary name, flushed, then renamed.

        It waits for the checkpoint before, so that memory holds one copy at a time. When all is written, all but the
        last ``keep`` checkpoints and those of the iterations ``protected`` are removed. Random states are not stored:
        every random choice of a run is a function of its seed, the iteration and the task. :meth:`check` and
        :meth:`wait` raise CheckpointError when the disk is full; the earlier checkpoints are unchanged.

        Raises:
            CheckpointError: a parameter is not finite.
        """
        self.wait()
        contents = [(entry, entry.copy()) for entry in entries]
        self.start(lambda: self._write(iteration, contents, keep, protected))

    def _write(
        self, iteration: int, contents: Sequence[tuple[Entry, Any]], keep: int, protected: Collection[int]
    ) -> None:
        """Every rank writes its parts, the first one the other entries; then it renames the folder."""
        final = self.folder / f"iteration-{iteration:06d}"
        temporary = self.folder / f".{final.name}.part"
        try:
            self.ranks.of_first(lambda: self._make_empty(temporary))
            for entry, content in contents:
                if entry.by_all_ranks and content is not None:
                    entry.write(content, temporary / entry.name, self.ranks)
            self.ranks.of_first(lambda: _write_on_first(contents, temporary, self.ranks))
        except (RankLost, RankFailed):
            raise
        except Exception as error:  # torch and safetensors raise errors of their own for a full disk
            shutil.rmtree(temporary, ignore_errors=True)
            reason = error.strerror if isinstance(error, OSError) and error.strerror else states.reason(error)
            raise CheckpointError(
                f"the checkpoint {final} could not be written: {reason}", advice="the earlier ones are unchanged"
            ) from error
        if not self.ranks.first:
            return
        # A folder with the final name is complete: a killed process leaves only a temporary one.
        if final.exists():
            durable.remove(final)
        temporary.rename(final)
        durable.flush(self.folder)
        for old in checkpoints(self.folder)[:-keep]:
            if old.iteration not in protected:
                durable.remove(old.path)

    def _make_empty(self, temporary: Path) -> None:
        for unfinished in self.folder.glob(".iteration-*"):  # by a killed process; this one holds the run's lock
            shutil.rmtree(unfinished, ignore_errors=True)
        temporary.mkdir(parents=True)


def _write_on_first(contents: Sequence[tuple[Entry, Any]], temporary: Path, ranks: Ranks) -> None:
    """Write the first rank's entries and the manifest."""
    for entry, content in contents:
        if not entry.by_all_ranks and content is not None:
            entry.write(content, temporary / entry.name, ranks)
    manifest.write(temporary)
    for path in [*temporary.rglob("*"), temporary]:
        durable.flush(path)


def checkpoints(folder: Path) -> list[Checkpoint]:
    """The complete checkpoints in ``folder``, oldest first."""
    matches = [(path, NAME.fullmatch(path.name)) for path in folder.glob("iteration-*")]
    complete = [Checkpoint(path, int(match[1])) for path, match in matches if match]
    return sorted(complete, key=lambda checkpoint: checkpoint.iteration)


def latest(folder: Path) -> Checkpoint | None:
    """The newest complete checkpoint, or None."""
    complete = checkpoints(folder)
    return complete[-1] if complete else None
