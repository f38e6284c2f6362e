"""Whether the disk has room for the checkpoints of a run."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import torch

from gagpo.learning.optimizer import moment_bytes
from gagpo.runs import checkpoint as checkpoints
from gagpo.runs.checkpoint import CheckpointError
from gagpo.settings import TrainingSettings

BESIDE = 2**24  # bytes of tokenizer, state and manifest
GB = 1e9


def bytes_of(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    critic: torch.nn.Module | None,
    adapter: bool,
    averaged: bool = False,
) -> int:
    """Bytes of a checkpoint. adapter: only trained parameters are written. averaged: the average is written too."""
    weights = (1 + averaged) * sum(_size(p) for p in model.parameters() if p.requires_grad or not adapter)
    values = sum(_size(x) for x in critic.state_dict().values()) if critic is not None else 0
    return weights + moment_bytes(optimizer) + values + BESIDE


def _size(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def require_room_for_run(folder: Path, each: int, training: TrainingSettings) -> None:
    """CheckpointError unless the most checkpoints that a run has at a time fit; those in ``folder`` have their room."""
    most = training.keep + 1 + (training.best is not None)  # while one more is written
    most = min(most, math.ceil(training.iterations / training.save_every))
    require_room(folder, each, most - len(checkpoints.checkpoints(folder)))


def require_room(folder: Path, each: int, count: int = 1) -> None:
    """CheckpointError unless ``count`` more checkpoints of ``each`` bytes fit the disk of ``folder``."""
    place = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(place).free
    if count * each > free:
        need = "a checkpoint needs" if count == 1 else f"{count} checkpoints need"
        raise CheckpointError(
            f"{need} {count * each / GB:.3g} GB and {place} has {free / GB:.3g} GB free: make room, or set another "
            "place with --runs, a lower training.keep or training.best=null; earlier checkpoints are kept"
        )
