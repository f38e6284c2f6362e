"""Texts in the shared memory of Gymnasium's ``AsyncVectorEnv``: ``gymnasium.make_vec`` takes every environment.

Imported by :mod:`gagpo.envs`. Gymnasium looks these functions up by the class of a space. It reads the memory once,
when the vector environment is built, and copies what it read after every step. So a batch of texts is a view, which
decodes the memory when it is copied or indexed.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any, overload

import numpy as np
from gymnasium.vector.utils import create_shared_memory, read_from_shared_memory, write_to_shared_memory

from gagpo.envs.base import Text

_LENGTH_BYTES = 8  # before the text of each environment
_MAX_CHARACTERS = 1_000_000  # of a text, where the space allows more
_CODING = ("utf-8", "surrogatepass")


class SharedTexts(Sequence[str]):
    """The texts of all environments, as they are in the memory at the moment; a deep copy is a tuple."""

    def __init__(self, memory: Any, places: int):
        self._memory = memory
        self._rows = np.frombuffer(memory.get_obj(), dtype=np.uint8).reshape(places, -1)

    @overload
    def __getitem__(self, place: int) -> str: ...

    @overload
    def __getitem__(self, place: slice) -> tuple[str, ...]: ...

    def __getitem__(self, place: int | slice) -> str | tuple[str, ...]:
        if isinstance(place, slice):
            return tuple(self)[place]
        row = self._rows[place]
        length = int(row[:_LENGTH_BYTES].view(np.uint64)[0])
        data: bytes = row[_LENGTH_BYTES : _LENGTH_BYTES + length].tobytes()
        return data.decode(*_CODING)

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return repr(tuple(self))

    def __deepcopy__(self, memo: dict[int, Any]) -> tuple[str, ...]:
        return tuple(self)

    def write(self, place: int, text: str) -> None:
        """Raises ValueError for a text that is longer than the memory of its environment."""
        row = self._rows[place]
        data = text.encode(*_CODING)
        if _LENGTH_BYTES + len(data) > len(row):
            raise ValueError(
                f"an observation of {len(text):,} characters does not fit into the shared memory: call "
                "gymnasium.make_vec with vector_kwargs={'shared_memory': False}"
            )
        row[_LENGTH_BYTES : _LENGTH_BYTES + len(data)] = np.frombuffer(data, dtype=np.uint8)
        row[:_LENGTH_BYTES].view(np.uint64)[0] = len(data)


@create_shared_memory.register(Text)
def _create(space: Text, n: int, ctx: ModuleType) -> Any:
    return ctx.Array("B", n * _row_bytes(space))


@read_from_shared_memory.register(Text)
def _read(space: Text, shared_memory: Any, n: int = 1) -> SharedTexts:
    return SharedTexts(shared_memory, n)


@write_to_shared_memory.register(Text)
def _write(space: Text, index: int, value: str, shared_memory: Any) -> None:
    SharedTexts(shared_memory, len(shared_memory) // _row_bytes(space)).write(index, value)


def _row_bytes(space: Text) -> int:
    """Memory of one environment: a length, and up to 4 bytes of UTF-8 for each character; a multiple of 8."""
    return _LENGTH_BYTES * (1 + (min(space.max_length, _MAX_CHARACTERS) + 1) // 2)
