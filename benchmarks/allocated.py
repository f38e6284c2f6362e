"""How many bytes torch has allocated, and their peak, on a device that keeps no such count itself: a CPU."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Allocated(TorchDispatchMode):
    """Counts the storages of every tensor that an operation returns within the ``with`` block, until they are freed.

    What an operation allocates and frees within itself is not seen. ``peak``: most bytes at a time; ``now``: those held
    at present. Both leave out what was there before, but for what it grows by: sharded weights are gathered into
    storages that are made once, emptied and filled again.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self._known: dict[int, int] = {}
        self._references: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = {id(x.untyped_storage()) for x in _tensors((args, kwargs))}
        out = func(*args, **(kwargs or {}))
        for tensor in _tensors(out):
            self._count(tensor.untyped_storage(), before)
        self._look()
        return out

    def _count(self, storage: torch.UntypedStorage, before: set[int]) -> None:
        key = id(storage)
        if key in self._known or key in before:
            return
        self._known[key] = 0
        self._references[key] = weakref.ref(storage, partial(self._free, key))

    def _look(self) -> None:
        """A storage may have been emptied or filled since, which no operation tells."""
        for key, reference in list(self._references.items()):
            storage = reference()
            size = 0 if storage is None else storage.nbytes()
            self.now += size - self._known.get(key, 0)
            self._known[key] = size
        self.peak = max(self.peak, self.now)

    def _free(self, key: int, _: Any) -> None:
        self.now -= self._known.pop(key, 0)
        self._references.pop(key, None)


def _tensors(tree: Any) -> Iterator[torch.Tensor]:
    """The tensors in ``tree``; of a sharded one this rank's part: its own storage is the whole's in name only."""
    for leaf in tree_leaves(tree):
        if isinstance(leaf, DTensor):
            yield leaf._local_tensor
        elif isinstance(leaf, torch.Tensor):
            yield leaf
