"""Checkpoints: everything a run needs to continue as if it had never stopped, whole or absent on disk."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gagpo.agents import manifest
from gagpo.agents.engines import adapters
from gagpo.agents.model import save
from gagpo.envs import durable
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
        """The Hugging Face folder of the weights, or the adapter's; usable wherever a model is."""
        return str(self.path / "model")

    def verify(self) -> None:
        """Compare every file with the manifest; CheckpointError names the first that is missing or damaged."""
        try:
            manifest.verify(self.path)
        except manifest.Damaged as error:
            raise CheckpointError(f"{error}; delete {self.path} to use an earlier checkpoint") from None

    def state(self) -> dict[str, Any]:
        """The trainer's counters and controllers."""
        path = self.path / "state.json"
        try:
            return dict(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError, RecursionError) as error:
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
    base: adapters.Base | None = None,
    spared: Collection[int] = (),
) -> Checkpoint:
    """Write a checkpoint under a temporary name, flush it to disk, rename it, and drop all but the last ``keep``.

    base: of a model with an adapter, which alone is written then. spared: iterations whose checkpoints stay.

    Random states are not stored: every random choice of a run is a function of its seed, the iteration and the task.
    Raises :class:`CheckpointError` for parameters that are not finite, and OSError naming the folder when the disk is
    full; nothing of the new checkpoint stays then, and the earlier ones are as they were.
    """
    require_finite(model)
    final = folder / f"iteration-{iteration:06d}"
    temporary = folder / f".{final.name}.part"
    for left in folder.glob(".iteration-*"):  # of a process that was killed; the run's lock is ours
        shutil.rmtree(left, ignore_errors=True)
    try:
        temporary.mkdir(parents=True)
        if base is None:
            save(model, tokenizer, temporary / "model")
        else:
            adapters.save(model, base, temporary / "model")
            tokenizer.save_pretrained(temporary / "model")
        torch.save(optimizer.state_dict(), temporary / "optimizer.pt")
        if critic is not None:
            torch.save(critic.state_dict(), temporary / "critic.pt")
        (temporary / "state.json").write_text(json.dumps(state, indent=1) + "\n", encoding="utf-8")
        manifest.write(temporary)
        for path in [*temporary.rglob("*"), temporary]:
            durable.flush(path)
    except Exception as error:  # torch and safetensors raise errors of their own for a full disk
        shutil.rmtree(temporary, ignore_errors=True)
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error).strip()
        raise CheckpointError(
            f"the checkpoint {final} could not be written: {reason}; the earlier ones stand"
        ) from error
    if final.exists():
        durable.remove(final)
    temporary.rename(final)
    durable.flush(folder)
    for old in checkpoints(folder)[:-keep]:
        if old.iteration not in spared:
            durable.remove(old.path)
    return Checkpoint(final, iteration)


def require_finite(model: torch.nn.Module) -> None:
    """Raise :class:`CheckpointError` naming the first parameter that holds a NaN or an infinity."""
    for name, parameter in model.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            raise CheckpointError(f"parameter {name} is not finite: nothing was saved; lower the learning rate")


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
