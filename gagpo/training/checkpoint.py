"""Checkpoints: everything a run needs to continue as if it had never stopped, whole or absent on disk."""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gagpo.agents.model import save
from gagpo.envs.errors import GagpoError

NAME = re.compile(r"iteration-(\d{6})")


class CheckpointError(GagpoError, ValueError):
    """A checkpoint that cannot be used; the message names the file."""


@dataclass(frozen=True)
class Checkpoint:
    """iteration: iterations done. state: the trainer's counters and controllers, plain JSON values."""

    path: Path
    iteration: int

    @property
    def model(self) -> str:
        """The Hugging Face folder of the weights; usable wherever a model is."""
        return str(self.path / "model")

    def state(self) -> dict[str, Any]:
        path = self.path / "state.json"
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise CheckpointError(
                f"{path} cannot be read ({error}); delete {self.path} to use an earlier one"
            ) from None

    def load_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        self._load("optimizer.pt", optimizer)

    def load_critic(self, critic: torch.nn.Module) -> None:
        self._load("critic.pt", critic)

    def _load(self, name: str, target: Any) -> None:
        path = self.path / name
        try:
            target.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
        except Exception as error:  # torch raises whatever the damaged bytes lead to
            raise CheckpointError(
                f"{path} cannot be read ({type(error).__name__}); delete {self.path} to use an earlier one"
            ) from None


def write(
    folder: Path,
    iteration: int,
    model: torch.nn.Module,
    tokenizer: Any,
    optimizer: torch.optim.Optimizer,
    state: dict[str, Any],
    keep: int,
    critic: torch.nn.Module | None = None,
) -> Checkpoint:
    """Write a checkpoint under a temporary name, flush it to disk, rename it, and drop all but the last ``keep``.

    Random states are not stored: every random choice of a run is a function of its seed, the iteration and the task.
    """
    final = folder / f"iteration-{iteration:06d}"
    temporary = folder / f".{final.name}.part"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    save(model, tokenizer, temporary / "model")
    torch.save(optimizer.state_dict(), temporary / "optimizer.pt")
    if critic is not None:
        torch.save(critic.state_dict(), temporary / "critic.pt")
    (temporary / "state.json").write_text(json.dumps(state, indent=1) + "\n", encoding="utf-8")
    for path in temporary.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
    if final.exists():
        shutil.rmtree(final)
    temporary.rename(final)
    for old in checkpoints(folder)[:-keep]:
        shutil.rmtree(old.path, ignore_errors=True)
    return Checkpoint(final, iteration)


def checkpoints(folder: Path) -> list[Checkpoint]:
    """Every whole checkpoint in ``folder``, oldest first."""
    found = []
    for path in folder.glob("iteration-*") if folder.is_dir() else []:
        match = NAME.fullmatch(path.name)
        if match:
            found.append(Checkpoint(path, int(match[1])))
    return sorted(found, key=lambda checkpoint: checkpoint.iteration)


def latest(folder: Path) -> Checkpoint | None:
    """The newest whole checkpoint, or None."""
    found = checkpoints(folder)
    return found[-1] if found else None
