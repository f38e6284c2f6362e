"""Reproducible random draws.

NumPy guarantees the raw stream of a bit generator in all versions, but not the methods of ``Generator``. A seed must
always give the same game, so the few draws needed are made here from the raw stream.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from gagpo.base.errors import InvalidArgument

T = TypeVar("T")


class RandomStream:
    """A random stream seeded by any number of strings and integers.

    >>> RandomStream("train", 7).below(100) == RandomStream("train", 7).below(100)
    True
    """

    def __init__(self, *key: str | int):
        digest = hashlib.sha256("\0".join(map(str, key)).encode()).digest()
        self._stream = np.random.PCG64(int.from_bytes(digest, "big"))

    def below(self, n: int) -> int:
        """A uniform integer in [0, n)."""
        if n < 1:
            raise InvalidArgument(f"cannot draw an integer below {n}")
        # The top 2**64 % n raw values are drawn again: with them, small results would be slightly more likely.
        limit = 2**64 - 2**64 % n
        raw = int(self._stream.random_raw())
        while raw >= limit:
            raw = int(self._stream.random_raw())
        return raw % n

    def between(self, low: int, high: int) -> int:
        """A uniform integer in [low, high]."""
        return low + self.below(high - low + 1)

    def chance(self, numerator: int, denominator: int) -> bool:
        """True with probability ``numerator / denominator``."""
        return self.below(denominator) < numerator

    def choose(self, items: Sequence[T]) -> T:
        """One of ``items``, uniformly."""
        return items[self.below(len(items))]

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """A copy of ``items`` in random order (Fisher-Yates)."""
        result = list(items)
        for i in range(len(result) - 1, 0, -1):
            j = self.below(i + 1)
            result[i], result[j] = result[j], result[i]
        return result
