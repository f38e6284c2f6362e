"""The processes of one trainer (ranks), and the collective calls they make.

A process that trains alone is the only rank, and every call then returns its own argument.

Numbers and JSON travel over gloo on the host, and tensors of a forward pass over torch's own group. So a thread can
have a channel of its own, and an exchange of plain data needs no GPU.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.distributed_c10d import PrefixStore, Store

from gagpo.base.errors import GagpoError, Terminated
from gagpo.base.rank import LOCAL_RANK, LOCAL_WORLD_SIZE, started_as_rank
from gagpo.distributed.errors import RankFailed, RankLost, RanksDiffer
from gagpo.distributed.meeting import MEETING_SECONDS, meet, not_found
from gagpo.distributed.watch import Watch
from gagpo.objectives.layout import Normaliser

if TYPE_CHECKING:
    from gagpo.model.sharding import Unsharded

T = TypeVar("T")
Summable = TypeVar("Summable", Normaliser, np.ndarray, float)

PATIENCE = 3600.0  # seconds that a collective call may take: ranks wait for the slowest one's episodes


@dataclass(frozen=True)
class Ranks:
    """One process of a trainer, and its channel to the others.

    rank: 0 to ``world_size - 1``; only rank 0 (``first``) writes files and reports.
    world_size: number of ranks.
    local: its number on its machine, 0 to ``local_world_size - 1``.
    local_world_size: number of ranks on its machine.
    replicas: copies of the sharded weights, each over consecutive ranks: one on each machine, unless a machine has one
        rank.
    group: torch's process group; None if alone.
    watch: tells a dead rank from a slow one; None if alone.

    Every method that gathers, sums or waits must be called by all ranks in the same order.
    """

    rank: int = 0
    world_size: int = 1
    local: int = 0
    local_world_size: int = 1
    replicas: int = 1
    group: dist.ProcessGroup | None = None
    watch: Watch | None = None

    @property
    def alone(self) -> bool:
        return self.world_size == 1

    @property
    def first(self) -> bool:
        return self.rank == 0

    # Plain data -------------------------------------------------------------------------------------------------------

    def gathered_bytes(self, value: bytes) -> list[bytes]:
        """The values of all ranks, in the order of the ranks."""
        if self.alone:
            return [value]
        with self._naming_lost_ranks():  # two calls: all ranks must pass tensors of one size
            sizes = [torch.zeros(1, dtype=torch.long) for _ in range(self.world_size)]
            dist.all_gather(sizes, torch.tensor([len(value)]), group=self.group)
            longest = max(1, *(int(size) for size in sizes))
            padded = torch.zeros(longest, dtype=torch.uint8)
            if value:
                padded[: len(value)] = torch.frombuffer(bytearray(value), dtype=torch.uint8)
            values = [torch.empty(longest, dtype=torch.uint8) for _ in range(self.world_size)]
            dist.all_gather(values, padded, group=self.group)
        return [tensor.numpy()[: int(size)].tobytes() for tensor, size in zip(values, sizes, strict=True)]

    def gathered(self, value: Any) -> list[Any]:
        """The JSON values of all ranks, in the order of the ranks."""
        if self.alone:
            return [value]
        return [json.loads(text) for text in self.gathered_bytes(json.dumps(value).encode())]

    def of_first(self, call: Callable[[], T]) -> T:
        """The result of ``call``, made on the first rank only: a JSON value.

        If it is interrupted, all ranks are. If it fails, the first rank raises its error and the others
        :class:`RankFailed`, so that no rank waits for one that has given up.
        """
        if self.alone:
            return call()
        value: T | None = None
        error: BaseException | None = None
        try:
            value = call() if self.first else None
        except BaseException as caught:
            error = caught
        outcomes = self.gathered([error and type(error).__name__, value])
        self.raise_together(error, [outcome[0] for outcome in outcomes])
        return cast(T, outcomes[0][1])

    def raise_together(self, error: BaseException | None, names: Sequence[str | None]) -> None:
        """Raise this rank's error, or the one that follows from the errors of the others.

        error: of this rank.
        names: the type of each rank's error; None for a rank without one.
        """
        if error is not None and isinstance(error, Exception):
            raise error
        failed = [rank for rank, name in enumerate(names) if name is not None and name not in _INTERRUPTIONS]
        if failed:
            raise RankFailed(f"rank {failed[0]} of {self.world_size} failed") from error
        for name in names:
            if name is not None:
                raise error or _INTERRUPTIONS[name]()

    def agree(self, name: str, value: T) -> T:
        """``value``, a JSON value; raises :class:`RanksDiffer` unless it is the same on all ranks."""
        for rank, rank_value in enumerate(self.gathered(value)):
            if not self.alone and rank_value != json.loads(json.dumps(value)):
                raise RanksDiffer(
                    f"ranks {self.rank} and {rank} differ in {name}",
                    advice="all machines need the same software and hardware",
                )
        return value

    # Numbers ----------------------------------------------------------------------------------------------------------

    def total(self, value: Summable) -> Summable:
        """The sum over ranks; of arrays elementwise."""
        if self.alone:
            return value
        total: Normaliser | np.ndarray | float
        if isinstance(value, Normaliser):
            counts = self._sum(np.asarray([value.tokens, value.actions, value.rows], np.int64))
            total = Normaliser(*(int(count) for count in counts))
        elif isinstance(value, np.ndarray):
            total = self._sum(value)
        else:
            total = float(self._sum(np.asarray([value], np.float64))[0])
        return total  # type: ignore[return-value]

    def _sum(self, array: np.ndarray) -> np.ndarray:
        total = torch.from_numpy(np.array(array))  # a copy: the reduction writes into it
        with self._naming_lost_ranks():
            dist.all_reduce(total, group=self.group)
        return total.numpy()

    # Waiting ----------------------------------------------------------------------------------------------------------

    def barrier(self) -> None:
        """Wait until every rank is here, for an hour at most."""
        self.gathered_bytes(b"")  # a gathering, whose error names the lost rank

    def channel(self) -> Ranks:
        """The same ranks over another process group, for another thread. All ranks must open theirs in one order."""
        if self.alone:
            return self
        with self._naming_lost_ranks():
            return replace(self, group=_gloo_group())

    @contextmanager
    def _naming_lost_ranks(self) -> Iterator[None]:
        """Turn torch's error about a rank that did not answer into :class:`RankLost`."""
        try:
            yield
        except RuntimeError as error:
            if isinstance(error, GagpoError):
                raise
            # torch's error names no rank. The watch does, but may need until the next missed heartbeat to know.
            reason = self.watch.lost_rank() if self.watch else ""
            raise RankLost(reason or f"the ranks lost each other: {' '.join(str(error).split())[:200]}") from error

    def device(self, name: str) -> str:
        """The device of this rank, if the settings say ``cuda`` for all."""
        if self.alone or name != "cuda":
            return name
        torch.cuda.set_device(self.local)
        return f"cuda:{self.local}"

    def mesh(self, device: str = "cpu") -> DeviceMesh | None:
        """All ranks on the type of ``device``, for sharded tensors; None if alone.

        With several replicas it has two dimensions, of which tensors are sharded over the second: weights are gathered
        over the links of one machine, and only gradients cross the network.
        """
        if self.alone:
            return None
        return _mesh(torch.device(device).type, self.replicas, self.world_size // self.replicas)

    def sharding(self, unsharded: Unsharded) -> Ranks:
        """These ranks with a copy of the shards on each machine, or with shards over all (``least``)."""
        return replace(self, replicas=1) if unsharded == "least" else self

    def threads(self, requested: int) -> int:
        """Torch threads of this rank; 0 requests its share of the machine's cores."""
        return requested or max(1, (os.cpu_count() or 1) // self.local_world_size)


_INTERRUPTIONS: Mapping[str, Callable[[], BaseException]] = {
    "KeyboardInterrupt": KeyboardInterrupt,
    "SystemExit": lambda: Terminated(143),
    "Terminated": lambda: Terminated(143),
}


@functools.cache  # each mesh opens process groups, and checkpoints ask for one again and again
def _mesh(device_type: str, replicas: int, shards: int) -> DeviceMesh:
    if replicas == 1:
        return init_device_mesh(device_type, (shards,))
    return init_device_mesh(device_type, (replicas, shards), mesh_dim_names=("replicate", "shard"))


def replicas_of(world_size: int, local_world_size: int) -> int:
    """Copies of the sharded weights: one for each machine, if all machines have the same number of ranks above one."""
    if local_world_size == 1 or world_size % local_world_size:
        return 1
    return world_size // local_world_size


def _gloo_group() -> Any:
    return dist.new_group(backend="gloo", timeout=timedelta(seconds=PATIENCE))


@contextmanager
def joined(deadline: float = 60.0, meeting: float = MEETING_SECONDS) -> Iterator[Ranks]:
    """The ranks that this process was started with; a single rank if it was started alone.

    deadline: seconds without a heartbeat after which a rank counts as dead, which ends this process too.
    meeting: seconds for the ranks to find each other.
    """
    if not started_as_rank():
        yield Ranks()
        return
    store, watched, rank, world_size = meet(meeting)
    try:
        with Watch(watched, rank, world_size, deadline) as watch:
            ranks = _opened(store, rank, world_size, watch)
            try:
                yield ranks
            except RuntimeError as error:
                if not _is_communication_error(error):
                    raise
                with ranks._naming_lost_ranks():  # in a forward or backward pass, where torch itself communicates
                    raise
            ranks.barrier()
    finally:
        _destroy_groups()


def _opened(store: Store, rank: int, world_size: int, watch: Watch) -> Ranks:
    """The ranks with their channels open; raises :class:`RankLost`."""
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    group_store = PrefixStore("gagpo", store)
    timeout = timedelta(seconds=PATIENCE)
    try:
        dist.init_process_group(backend, store=group_store, rank=rank, world_size=world_size, timeout=timeout)
    except (RuntimeError, ValueError, dist.DistError) as error:
        raise not_found(error) from None
    local = int(os.environ[LOCAL_RANK])
    local_world_size = int(os.environ.get(LOCAL_WORLD_SIZE, world_size))
    replicas = replicas_of(world_size, local_world_size)
    return Ranks(rank, world_size, local, local_world_size, replicas, _gloo_group(), watch)


def _is_communication_error(error: RuntimeError) -> bool:
    """Whether torch says that it could not reach another rank."""
    return isinstance(error, dist.DistError) or any(word in str(error) for word in ("gloo", "NCCL", "closed by peer"))


def _destroy_groups() -> None:
    """Close the channels that were opened; a lost rank must not keep this process from ending."""
    _mesh.cache_clear()
    try:
        if dist.is_initialized():
            dist.destroy_process_group()
    except (RuntimeError, ValueError):
        return
