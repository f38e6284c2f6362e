"""Texts in the memory that ``gymnasium.make_vec(..., vectorization_mode="async")`` shares between processes."""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector.utils import create_shared_memory, read_from_shared_memory, write_to_shared_memory
from numpy.typing import NDArray

from gagpo.envs.base import Text


class SharedTexts(Sequence[str]):
    """The current texts in shared memory; a deep copy is a tuple of strings.

    cells: one row for each environment, the length of its text and then its code points.
    """

    def __init__(self, cells: NDArray[np.uint32]):
        self.cells = cells

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return tuple(self)[index]
        row = self.cells[index]
        return row[1 : 1 + int(row[0])].tobytes().decode("utf-32-le", "surrogatepass")

    def __len__(self) -> int:
        return len(self.cells)

    def __deepcopy__(self, memo: object) -> tuple[str, ...]:
        return tuple(self)


def _cells(space: Text, memory: Any) -> NDArray[np.uint32]:
    return np.frombuffer(memory.get_obj(), dtype=np.uint32).reshape(-1, 1 + space.max_length)


@create_shared_memory.register(Text)
def _create(space: Text, n: int = 1, ctx: Any = multiprocessing) -> Any:
    return ctx.Array("I", n * (1 + space.max_length))


@read_from_shared_memory.register(Text)
def _read(space: Text, memory: Any, n: int = 1) -> SharedTexts:
    return SharedTexts(_cells(space, memory))


@write_to_shared_memory.register(Text)
def _write(space: Text, index: int, value: str, memory: Any) -> None:
    row = _cells(space, memory)[index]
    row[0] = len(value)
    row[1 : 1 + len(value)] = np.frombuffer(value.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
