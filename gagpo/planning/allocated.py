"""How many bytes torch has allocated, and their peak, on a device that keeps no such count itself: a CPU."""

from __future__ import annotations

import weakref
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Allocated(TorchDispatchMode):
    """Counts the storages of every tensor that an operation returns within the ``with`` block, until they are freed.

    What an operation allocates and frees within itself is not seen. ``peak``: most bytes at a time; ``now``: those held
    at present. Both leave out what was there before.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self._known: dict[int, int] = {}
        self._references: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = {id(x.untyped_storage()) for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)}
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                self._count(leaf.untyped_storage(), before)
        return out

    def _count(self, storage: torch.UntypedStorage, before: set[int]) -> None:
        key = id(storage)
        if key in self._known or key in before:
            return
        self._known[key] = storage.nbytes()
        self._references[key] = weakref.ref(storage, partial(self._free, key))
        self.now += self._known[key]
        self.peak = max(self.peak, self.now)

    def _free(self, key: int, _: Any) -> None:
        self.now -= self._known.pop(key, 0)
        self._references.pop(key, None)
