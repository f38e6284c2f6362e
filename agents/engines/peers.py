"""The other processes of a trainer, as far as an engine needs them.

A protocol and not the trainer's own class: engines stand below the trainer, and import nothing of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class Peers(Protocol):
    """The ranks that sample together and share servers and weight files.

    rank: of this process, 0 to ``world_size - 1``.
    world_size: number of ranks.
    local: its number on its machine, 0 to ``local_world_size - 1``. The ranks of a machine have successive numbers.
    local_world_size: number of ranks on its machine.

    All ranks call the methods in the same order.
    """

    @property
    def rank(self) -> int: ...

    @property
    def world_size(self) -> int: ...

    @property
    def local(self) -> int: ...

    @property
    def local_world_size(self) -> int: ...

    def gathered(self, value: Any) -> list[Any]:
        """The JSON values of all ranks, in the order of the ranks."""

    def raise_together(self, error: BaseException | None, names: Sequence[str | None]) -> None:
        """Raise this rank's error, or one about the ranks whose errors have these names; None: no error."""


class NoPeers:
    """The peers of a process that samples alone."""

    rank = 0
    world_size = 1
    local = 0
    local_world_size = 1

    def gathered(self, value: Any) -> list[Any]:
        return [value]

    def raise_together(self, error: BaseException | None, names: Sequence[str | None]) -> None:
        if error is not None:
            raise error


def first_on_machine(peers: Peers) -> int:
    """The rank that writes the files of this machine."""
    return peers.rank - peers.local


def from_first_on_machine(peers: Peers, error: Exception | None, value: Any) -> Any:
    """The JSON value of the first rank of this machine; all ranks call it together.

    error: what went wrong at this rank. Raises it, or an error about the other ranks that had one.
    """
    outcomes = peers.gathered([error and type(error).__name__, value])
    peers.raise_together(error, [name for name, _ in outcomes])
    return outcomes[first_on_machine(peers)][1]
