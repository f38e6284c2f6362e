"""Whether the disk has room for a run's checkpoints, before they are written."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from pathlib import Path

from gagpo.runs.checkpoint import CheckpointError, Entry, checkpoints
from gagpo.settings import TrainingSettings

SMALL_FILES = 2**24  # bytes of tokenizer, state and manifest
GB = 1e9


def checkpoint_bytes(entries: Sequence[Entry]) -> int:
    """Bytes of a checkpoint on disk."""
    return sum(entry.size() for entry in entries) + SMALL_FILES


def require_room_for_run(folder: Path, entries: Sequence[Entry], training: TrainingSettings) -> None:
    """Raise CheckpointError if the disk has no room for the largest number of checkpoints that the run has at a time.

    These are the ``training.max_checkpoints`` last ones, the best one, and one that is being written.
    """
    count = training.max_checkpoints + 1 + (training.best_metric is not None)
    count = min(count, math.ceil(training.iterations / training.save_every))
    require_room(folder, entries, count - len(checkpoints(folder)))


def require_room(folder: Path, entries: Sequence[Entry], count: int = 1) -> None:
    """Raise CheckpointError if ``count`` more checkpoints do not fit the disk of ``folder``."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(existing).free
    required = count * checkpoint_bytes(entries)
    if required > free:
        need = "a checkpoint needs" if count == 1 else f"{count} checkpoints need"
        raise CheckpointError(
            f"{need} {required / GB:.3g} GB and {existing} has {free / GB:.3g} GB free: make room, choose another "
            "place with --runs, or set a lower training.max_checkpoints or training.best_metric=null",
            advice=("earlier checkpoints are kept"),
        )
