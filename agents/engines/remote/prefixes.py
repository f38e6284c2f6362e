"""Where a new session goes: to the server that has read most of its prompt, unless others have much less to do.

Servers keep what they have read in blocks, each known by all that stands before it. The tries of a group begin with the
same prompt, so they are read once where they meet, and once more at every server that they are strewn over.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping

import numpy as np

BLOCK = 16  # tokens; vLLM's own
MOST_BLOCKS = 200_000  # that are remembered, those that were longest unused forgotten first
LEAD = 8  # sessions that a server may have more than the one with the fewest, and a quarter of that one's


class PrefixTable:
    """Which servers have read which beginnings since they were given their weights."""

    def __init__(self, most: int = MOST_BLOCKS):
        self.most = most
        self._readers: OrderedDict[bytes, set[int]] = OrderedDict()  # by the digest of a block and all before it

    def choose(self, ids: np.ndarray, sessions: Mapping[int, int], refused: Collection[int] = ()) -> int:
        """The server for a new session with the prompt ``ids``, which it will have read then.

        sessions: how many each server has. refused: servers that are taken only where there is no other.
        """
        least = min(sessions.values())
        held = self.held(ids)

        def rank(number: int) -> tuple[bool, bool, int, int, int]:
            full = sessions[number] > least + LEAD + least // 4
            # Instructions that all prompts begin with are soon everywhere, and worth no detour.
            known = held.get(number, 0)
            return number in refused, full, -known if 2 * known >= len(ids) else 0, sessions[number], number

        chosen = min(sessions, key=rank)
        self._note(ids, chosen)
        return chosen

    def held(self, ids: np.ndarray) -> dict[int, int]:
        """Tokens of the beginning of ``ids`` that servers have read, by their number."""
        found: dict[int, int] = {}
        for count, key in enumerate(_blocks(ids), 1):
            readers = self._readers.get(key)
            if not readers:
                break
            for number in readers:
                found[number] = count * BLOCK
        return found

    def clear(self) -> None:
        """There are new weights: nothing that was read is of use."""
        self._readers.clear()

    def forget(self, number: int) -> None:
        """A server is gone, with what it had read."""
        for readers in self._readers.values():
            readers.discard(number)

    def _note(self, ids: np.ndarray, number: int) -> None:
        for key in _blocks(ids):
            self._readers.setdefault(key, set()).add(number)
            self._readers.move_to_end(key)
        while len(self._readers) > self.most:
            self._readers.popitem(last=False)


def _blocks(ids: np.ndarray) -> Iterator[bytes]:
    """A digest for each whole block, of it and all before it."""
    chain = hashlib.blake2b(digest_size=16)
    tokens = np.ascontiguousarray(ids, np.int32)
    for begin in range(0, len(tokens) - BLOCK + 1, BLOCK):
        chain.update(tokens[begin : begin + BLOCK].tobytes())
        yield chain.digest()
