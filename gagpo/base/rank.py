"""The rank of this process: the environment variables by which torchrun and other launchers number processes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

RANK = "RANK"
WORLD_SIZE = "WORLD_SIZE"
LOCAL_RANK = "LOCAL_RANK"
LOCAL_WORLD_SIZE = "LOCAL_WORLD_SIZE"
MASTER_ADDR = "MASTER_ADDR"
MASTER_PORT = "MASTER_PORT"

REQUIRED = (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT)
"""Environment variables that torchrun sets; any other launcher must set them too."""


@dataclass(frozen=True)
class Rank:
    """A process among all processes of a run and among those on its machine, as torchrun counts them.

    rank: 0 to ``world_size - 1``.
    world_size: number of ranks.
    local: its number on its machine, 0 to ``local_world_size - 1``.
    local_world_size: number of ranks on its machine.
    """

    rank: int = 0
    world_size: int = 1
    local: int = 0
    local_world_size: int = 1

    @classmethod
    def of(cls, variables: Mapping[str, str]) -> Rank:
        """Read the environment variables of a launcher; a process without them is alone."""
        return cls(
            int(variables.get(RANK, "0")),
            int(variables.get(WORLD_SIZE, "1")),
            int(variables.get(LOCAL_RANK, "0")),
            int(variables.get(LOCAL_WORLD_SIZE, "1")),
        )

    def variables(self, address: str, port: int) -> dict[str, str]:
        """The environment variables of this rank. address, port: where the ranks meet."""
        return {
            RANK: str(self.rank),
            WORLD_SIZE: str(self.world_size),
            LOCAL_RANK: str(self.local),
            LOCAL_WORLD_SIZE: str(self.local_world_size),
            MASTER_ADDR: address,
            MASTER_PORT: str(port),
        }


def started_as_rank() -> bool:
    """Whether a launcher (ours, torchrun or another) started this process as one of several."""
    return all(name in os.environ for name in REQUIRED) and os.environ[WORLD_SIZE] != "1"
