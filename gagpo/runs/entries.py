"""The entries of a checkpoint: weights, optimiser, critic, the trainer's state and sampled episodes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gagpo.distributed import states
from gagpo.distributed.ranks import Ranks
from gagpo.model import adapters
from gagpo.model.loading import save
from gagpo.model.sharding import local_parts
from gagpo.model.weights import gather
from gagpo.runs.checkpoint import SAMPLED, STATE, WEIGHTS, CheckpointError, Entry, State, read_state

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Tensors = dict[str, Tensor]


class WeightsEntry(Entry):
    """The policy's weights or adapter, unsharded, in a folder that can be used wherever a model can.

    tokenizer: not used by any other thread.
    applied: context in which the model holds the weights to write, such as their average.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        base: adapters.Base | None,
        tokenizer: PreTrainedTokenizerBase,
        ranks: Ranks,
        name: str = WEIGHTS,
        applied: Callable[[], AbstractContextManager[None]] = nullcontext,
    ):
        self.name = name
        self.model = model
        self.base = base
        self.tokenizer = tokenizer
        self.ranks = ranks
        self.applied = applied

    def copy(self) -> Tensors:
        with self.applied():
            return unsharded_copies(self.model, self.base, self.ranks)

    def write(self, content: Tensors, path: Path, ranks: Ranks) -> None:
        # The model gives the layout of the folder; its weights, which training changes meanwhile, are not read.
        if self.base is None:
            save(self.model, self.tokenizer, path, content)
        else:
            adapters.save(self.model, self.base, path, content)
            self.tokenizer.save_pretrained(path)

    def read(self, path: Path) -> None:
        """Do nothing: a resumed run loads its policy from this folder, before it has any other part."""

    def size(self) -> int:
        return sum(_bytes(p) for p in self.model.parameters() if p.requires_grad or self.base is None)


class OptimizerEntry(Entry):
    """The optimiser's state by parameter name, sharded or not, whatever the number of ranks that wrote it.

    names: the trained parameters, see :func:`gagpo.distributed.states.names_of`.
    """

    name = "optimizer"
    by_all_ranks = True

    def __init__(self, optimizer: torch.optim.Optimizer, names: Mapping[str, Tensor], ranks: Ranks):
        self.optimizer = optimizer
        self.names = names
        self.ranks = ranks

    def copy(self) -> Tensors:
        return _host_copies(states.optimizer_tensors(self.optimizer, self.names).items(), self.ranks)

    def write(self, content: Tensors, path: Path, ranks: Ranks) -> None:
        states.write(content, path, ranks)

    def read(self, path: Path) -> None:
        states.fill_optimizer(self.optimizer, self.names, path, self.ranks)

    def size(self) -> int:
        """Bytes of all moments on all ranks; before the first step, an upper bound."""
        state_tensors = [x for state in self.optimizer.state.values() for x in state.values() if isinstance(x, Tensor)]
        if state_tensors:
            return sum(map(_bytes, state_tensors))
        return 2 * sum(_bytes(p) for group in self.optimizer.param_groups for p in group["params"])


class CriticEntry(Entry):
    """The critic's weights. They are read before it is sharded."""

    name = "critic"
    by_all_ranks = True

    def __init__(self, critic: torch.nn.Module, ranks: Ranks):
        self.critic = critic
        self.ranks = ranks

    def copy(self) -> Tensors:
        return _host_copies(self.critic.state_dict().items(), self.ranks)

    def write(self, content: Tensors, path: Path, ranks: Ranks) -> None:
        states.write(content, path, ranks)

    def read(self, path: Path) -> None:
        states.read(dict(self.critic.state_dict()), path, Ranks())

    def size(self) -> int:
        return sum(map(_bytes, self.critic.state_dict().values()))


class StateEntry(Entry):
    """The trainer's counters and controllers, as JSON."""

    name = STATE

    def __init__(self, get: Callable[[], State], load: Callable[[State], None]):
        self.get = get
        self.load = load

    def copy(self) -> State:
        return self.get()

    def write(self, content: State, path: Path, ranks: Ranks) -> None:
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")

    def read(self, path: Path) -> None:
        state = read_state(path)
        try:
            self.load(state)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            reason = str(error)[:200]  # it may quote a damaged state at any length
            raise CheckpointError(f"is not a trainer's state: {reason}", where=path) from None


class SampledEntry(Entry):
    """The episodes that were sampled ahead and not trained on; None without any.

    load: gets the file's bytes when a run resumes.
    """

    name = SAMPLED
    optional = True

    def __init__(self, sampled: bytes | None, load: Callable[[bytes], None]):
        self.sampled = sampled
        self.load = load

    def copy(self) -> bytes | None:
        return self.sampled

    def write(self, content: bytes, path: Path, ranks: Ranks) -> None:
        path.write_bytes(content)

    def read(self, path: Path) -> None:
        self.load(path.read_bytes())


def unsharded_copies(model: torch.nn.Module, base: adapters.Base | None, ranks: Ranks) -> dict[str, torch.Tensor]:
    """The unsharded tensors of a model on the first rank; empty on the others. All ranks call it together.

    Raises:
        CheckpointError: a parameter is not finite.
    """
    named = adapters.adapter_parameters(model) if base else model.state_dict(keep_vars=True)
    tensors: dict[str, torch.Tensor] = {}
    copies: dict[int, torch.Tensor] = {}
    for name, tensor in named.items():
        if id(tensor) not in copies:  # tied weights are one tensor
            gathered = gather(tensor.detach())  # on all ranks, although only the first one writes it
            copies[id(tensor)] = gathered.to("cpu", copy=True).contiguous() if ranks.first else gathered[:0]
        tensors[name] = copies[id(tensor)]
    if not ranks.first:
        return {}
    require_finite(tensors)
    return tensors


def require_finite(tensors: Mapping[str, torch.Tensor]) -> None:
    """Raise :class:`CheckpointError` for the first parameter that holds a NaN or an infinity."""
    for name, tensor in tensors.items():
        if not bool(torch.isfinite(tensor).all()):
            raise CheckpointError(
                f"parameter {name} is not finite: nothing was saved", advice="lower the learning rate"
            )


def _host_copies(tensors: Iterable[tuple[str, Tensor]], ranks: Ranks) -> Tensors:
    """Copies in host memory; of sharded tensors, this rank's shards."""
    return local_parts(tensors, ranks.mesh())


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
