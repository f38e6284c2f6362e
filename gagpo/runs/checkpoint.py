"""Checkpoints: everything a run needs to resume bit-identically; on disk they are complete or absent."""

from __future__ import annotations

import copy
import json
import re
import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from gagpo.base import durable, manifest
from gagpo.base.errors import GagpoError
from gagpo.distributed import states
from gagpo.distributed.background import Background
from gagpo.distributed.errors import RankFailed, RankLost
from gagpo.distributed.ranks import Ranks
from gagpo.distributed.states import names_of, optimizer_tensors
from gagpo.model import adapters
from gagpo.model.loading import save
from gagpo.model.sharding import local_parts
from gagpo.model.weights import gather

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

NAME = re.compile(r"iteration-(\d{6})")
SAMPLED = "sampled.npz"

WEIGHTS, AVERAGE = "model", "average"
"""The folders of a checkpoint that hold weights, each usable wherever a model is."""

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
            manifest.verify(self.path)
        except manifest.ManifestError as error:
            raise CheckpointError(f"{error}; delete {self.path} to use an earlier checkpoint") from None

    def state(self) -> State:
        """The trainer's state."""
        path = self.path / "state.json"
        try:
            return dict(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise self._unreadable(path, error) from None

    def load_optimizer(
        self, optimizer: torch.optim.Optimizer, names: Mapping[str, torch.Tensor], ranks: Ranks | None = None
    ) -> None:
        """Fill the optimiser, sharded or not, whatever the number of ranks that wrote the file."""
        self._loaded("optimizer", lambda path: states.fill_optimizer(optimizer, names, path, ranks or Ranks()))

    def load_sampled(self, restore: Callable[[bytes], None]) -> None:
        """Pass the groups that were sampled ahead and not trained on to ``restore``, if there are any."""
        if (self.path / SAMPLED).exists():
            self._loaded(SAMPLED, lambda path: restore(path.read_bytes()))

    def load_critic(self, critic: torch.nn.Module) -> None:
        """Fill a critic, before it is sharded."""
        self._loaded("critic", lambda path: states.read(dict(critic.state_dict()), path, Ranks()))

    def _loaded(self, name: str, load: Callable[[Path], object]) -> None:
        path = self.path / name
        try:
            load(path)
        except RankLost:
            raise
        except Exception as error:  # torch raises whatever the damaged bytes lead to
            reason = str(error) if isinstance(error, states.StateError) else type(error).__name__
            raise self._unreadable(path, reason) from None

    def _unreadable(self, path: Path, reason: object) -> CheckpointError:
        return CheckpointError(f"{path} cannot be read ({reason}); delete {self.path} to use an earlier one")


@dataclass(frozen=True)
class Snapshot:
    """A copy of everything a checkpoint holds, in host memory, so that the run continues while it is written.

    model, base: for the layout of the folder; their weights are not read.
    tensors: of the model or the adapter, unsharded, on the first rank.
    optimizer, critic: this rank's parts, by name.
    average: like ``tensors``, None without an average.
    sampled: the episodes sampled ahead, None without any.
    """

    model: torch.nn.Module
    base: adapters.Base | None
    tensors: dict[str, torch.Tensor]
    optimizer: dict[str, torch.Tensor]
    critic: dict[str, torch.Tensor]
    state: State
    average: dict[str, torch.Tensor] | None = None
    sampled: bytes | None = None

    @classmethod
    def of(
        cls,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        state: State,
        critic: torch.nn.Module | None = None,
        base: adapters.Base | None = None,
        ranks: Ranks | None = None,
        **more: Any,
    ) -> Snapshot:
        """Take the copy, all ranks together. more: the remaining fields.

        Raises:
            CheckpointError: a parameter is not finite.
        """
        ranks = ranks or Ranks()
        mesh = ranks.mesh()
        parts = local_parts(optimizer_tensors(optimizer, names_of(model, critic)).items(), mesh)
        own = local_parts(({} if critic is None else critic.state_dict()).items(), mesh)
        return cls(model, base, copied(model, base, ranks), parts, own, state, **more)


def copied(model: torch.nn.Module, base: adapters.Base | None, ranks: Ranks) -> dict[str, torch.Tensor]:
    """The unsharded tensors of a model on the first rank; empty on the others. All ranks call it together.

    Raises:
        CheckpointError: a parameter is not finite.
    """
    named = adapters.adapter_parameters(model) if base else model.state_dict(keep_vars=True)
    tensors: dict[str, torch.Tensor] = {}
    copies: dict[int, torch.Tensor] = {}
    for name, tensor in named.items():
        if id(tensor) not in copies:  # tied weights are one tensor
            full = gather(tensor.detach())
            copies[id(tensor)] = full.to("cpu", copy=True).contiguous() if ranks.first else full[:0]
        tensors[name] = copies[id(tensor)]
    if not ranks.first:
        return {}
    require_finite(tensors)
    return tensors


class Saver(Background):
    """Writes checkpoints in the background, one at a time. deadline: seconds that one may take."""

    def __init__(
        self, folder: Path, tokenizer: PreTrainedTokenizerBase, ranks: Ranks | None = None, deadline: float = 3600.0
    ):
        super().__init__(f"writing a checkpoint to {folder}", deadline)
        self.folder, self.tokenizer = folder, copy.deepcopy(tokenizer)  # another thread uses the run's own
        self.ranks = (ranks or Ranks()).channel()

    def save(self, iteration: int, taken: Snapshot, keep: int, spared: Collection[int] = ()) -> None:
        """Begin to write a checkpoint when the one before is done: under a temporary name, flushed, then renamed.

        Then all but the last ``keep`` and the iterations ``spared`` are removed. Random states are not stored: every
        random choice of a run is a function of its seed, the iteration and the task. :meth:`check` and :meth:`wait`
        raise CheckpointError when the disk is full; the earlier checkpoints are unchanged.
        """
        self.start(lambda: self._write(iteration, taken, keep, spared))

    def _write(self, iteration: int, taken: Snapshot, keep: int, spared: Collection[int]) -> None:
        """Every rank writes its part of optimiser and critic, the first one the rest."""
        final = self.folder / f"iteration-{iteration:06d}"
        temporary = self.folder / f".{final.name}.part"
        try:
            self.ranks.of_first(lambda: self._make_empty(temporary))
            states.write(taken.optimizer, temporary / "optimizer", self.ranks)
            if taken.critic:
                states.write(taken.critic, temporary / "critic", self.ranks)
            self.ranks.of_first(lambda: _write_rest(temporary, taken, self.tokenizer))
        except (RankLost, RankFailed):
            raise
        except Exception as error:  # torch and safetensors raise errors of their own for a full disk
            shutil.rmtree(temporary, ignore_errors=True)
            reason = error.strerror if isinstance(error, OSError) and error.strerror else states.reason(error)
            raise CheckpointError(
                f"the checkpoint {final} could not be written: {reason}; the earlier ones are unchanged"
            ) from error
        if not self.ranks.first:
            return
        if final.exists():
            durable.remove(final)
        temporary.rename(final)
        durable.flush(self.folder)
        for old in checkpoints(self.folder)[:-keep]:
            if old.iteration not in spared:
                durable.remove(old.path)

    def _make_empty(self, temporary: Path) -> None:
        for left in self.folder.glob(".iteration-*"):  # by a killed process; this one holds the run's lock
            shutil.rmtree(left, ignore_errors=True)
        temporary.mkdir(parents=True)


def _write_rest(temporary: Path, taken: Snapshot, tokenizer: PreTrainedTokenizerBase) -> None:
    """Write the first rank's files and the manifest."""
    for name, tensors in ((WEIGHTS, taken.tensors), (AVERAGE, taken.average)):
        if tensors is None:
            continue
        if taken.base is None:
            save(taken.model, tokenizer, temporary / name, tensors)
        else:
            adapters.save(taken.model, taken.base, temporary / name, tensors)
            tokenizer.save_pretrained(temporary / name)
    if taken.sampled is not None:
        (temporary / SAMPLED).write_bytes(taken.sampled)
    (temporary / "state.json").write_text(json.dumps(taken.state, indent=1) + "\n", encoding="utf-8")
    manifest.write(temporary)
    for path in [*temporary.rglob("*"), temporary]:
        durable.flush(path)


def require_finite(tensors: Mapping[str, torch.Tensor]) -> None:
    """Raise :class:`CheckpointError` for the first parameter that holds a NaN or an infinity."""
    for name, tensor in tensors.items():
        if not bool(torch.isfinite(tensor).all()):
            raise CheckpointError(f"parameter {name} is not finite: nothing was saved; lower the learning rate")


def checkpoints(folder: Path) -> list[Checkpoint]:
    """The complete checkpoints in ``folder``, oldest first."""
    matches = [(path, NAME.fullmatch(path.name)) for path in folder.glob("iteration-*")]
    found = [Checkpoint(path, int(match[1])) for path, match in matches if match]
    return sorted(found, key=lambda checkpoint: checkpoint.iteration)


def latest(folder: Path) -> Checkpoint | None:
    """The newest complete checkpoint, or None."""
    found = checkpoints(folder)
    return found[-1] if found else None
