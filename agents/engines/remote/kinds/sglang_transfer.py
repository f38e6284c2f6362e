"""Bringing weights to SGLang servers: by a folder that they read, or by a process group of trainer and server.

``file``: ``/update_weights_from_disk``. ``nccl`` and ``gloo``: the trainer is rank 0 of a group that the server joins
(``/init_weights_update_group``) and broadcasts bucket by bucket (``/update_weights_from_distributed``) within
``/begin_weight_update`` and ``/end_weight_update``, which SGLang 0.5.23 asks for. Trainer and server need versions of
torch that form a group the same way; a group is made as ``init_custom_process_group`` of SGLang makes it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d as c10d
from torch.distributed.rendezvous import rendezvous

from gagpo.agents.engines.base import NamedTensor
from gagpo.agents.engines.remote.client import Client
from gagpo.agents.engines.remote.device_transfer import GONE, Broadcast, ConnectedTransfer
from gagpo.agents.engines.remote.transfer import (
    FolderTransfer,
    Round,
    Run,
    address_towards,
    free_port,
    require_gpu,
)
from gagpo.agents.engines.remote.wire import MalformedAnswer, ReplicaError, RequestRefused, UnsuitableServer

BUCKET_BYTES = 2**28  # of the weights that one call announces


class DiskTransfer(FolderTransfer):
    """A folder of safetensors files, which the server reads in place of its own weights."""

    def _announce(self, update: Round, version: str) -> None:
        body = {"model_path": str(self._files[0].parent), "load_format": "safetensors", "weight_version": version}
        update.order("/update_weights_from_disk", {**body, "flush_cache": True})


class GroupTransfer(ConnectedTransfer):
    """A broadcast within a process group with each server.

    backend: ``nccl`` from a GPU, ``gloo`` from the host's memory.
    """

    def __init__(self, model: torch.nn.Module, dtype: str, device: torch.device, backend: str):
        if backend == "nccl":
            require_gpu(backend, device)
        super().__init__(model, dtype, device if backend == "nccl" else torch.device("cpu"))
        self._backend = backend

    def send(
        self, tensors: Iterable[NamedTensor] | None, version: str, clients: Sequence[Client], run: Run, deadline: float
    ) -> list[ReplicaError | None]:
        """See :class:`gagpo.agents.engines.remote.transfer.Transfer`."""
        if tensors is None:
            return [ReplicaError(GONE) for _ in clients]
        begun = Round(clients, run, deadline)
        begun.order("/begin_weight_update", {})
        well = [client for client, fault in zip(clients, begun.faults, strict=True) if fault is None]
        sent = iter(self._broadcast(tensors, well, run, deadline))
        faults = [next(sent) if fault is None else fault for fault in begun.faults]
        ended = Round(clients, run, deadline, faults)
        ended.order("/end_weight_update", {})
        for client in well[:1]:  # the call is the same for all
            ended.order(*client.kind.name_weights(version))
        return ended.faults

    def _connect(self, client: Client, run: Run, deadline: float, broadcast: Broadcast) -> Any:
        return _UpdateGroup(client, run, deadline, self._backend, broadcast)


class _UpdateGroup:
    """The group of the trainer and one server. Used by a thread of its own, in which it may wait."""

    def __init__(self, client: Client, run: Run, deadline: float, backend: str, broadcast: Broadcast):
        self._client, self._run, self._deadline = client, run, deadline
        self._broadcast = broadcast
        workers = _workers(run(client.look_up("/server_info", deadline)), client.url)
        address, port = address_towards(client.url), free_port("")
        self._name = f"gagpo-{port}"
        body = {"master_address": address, "master_port": port, "rank_offset": 1, "world_size": 1 + workers}
        body |= {"group_name": self._name, "backend": backend}
        # Each side waits for the other: the group is made beside the call, whose refusal ends the wait for it.
        made = _Beside(lambda: _process_group(backend, address, port, 1 + workers, self._name, deadline))
        self._order("/init_weights_update_group", body)
        self._group = made.result(deadline)

    def send_weights(self) -> None:
        """Broadcast what the connection passes on, a bucket at a time."""
        for bucket in _buckets(self._broadcast.taken()):
            body = {
                "names": [name for name, _ in bucket],
                "dtypes": [str(tensor.dtype).rpartition(".")[2] for _, tensor in bucket],
                "shapes": [list(tensor.shape) for _, tensor in bucket],
                "group_name": self._name,
                "flush_cache": True,
            }
            sent = [dist.broadcast(tensor, src=0, group=self._group, async_op=True) for _, tensor in bucket]
            self._order("/update_weights_from_distributed", body)
            for work in sent:
                work.wait(timedelta(seconds=self._deadline))

    def _order(self, path: str, body: dict[str, Any]) -> None:
        self._run(self._client.order(path, body, self._deadline))

    def shutdown(self) -> None:
        """Leave the group, at the server too."""
        with suppress(ReplicaError, RequestRefused):
            self._order("/destroy_weights_update_group", {"group_name": self._name})
        dist.destroy_process_group(self._group)


class _Beside:
    """Work that is done in a thread of its own."""

    def __init__(self, work: Callable[[], Any]):
        self._result: Any = None
        self._error: BaseException | None = None
        self._call = work
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            self._result = self._call()
        except BaseException as error:
            self._error = error

    def result(self, deadline: float) -> Any:
        """What it gave; raises what went wrong."""
        self._thread.join(deadline)
        if self._error is not None:
            raise self._error
        if self._thread.is_alive():
            raise TimeoutError(f"it took more than {deadline:g} s")
        return self._result


def _process_group(backend: str, address: str, port: int, size: int, name: str, deadline: float) -> Any:
    """Rank 0 of a group beside the trainer's own ones, in which rank 1 and on are another program's."""
    timeout = timedelta(seconds=deadline)
    host = f"[{address}]" if ":" in address else address
    store, rank, size = next(iter(rendezvous(f"tcp://{host}:{port}", 0, size, timeout=timeout)))
    store.set_timeout(timeout)
    named: Any = name  # torch has a type of its own for it
    group, _ = c10d._new_process_group_helper(
        size, rank, [], c10d.Backend(backend), c10d.PrefixStore(name, store), group_name=named, timeout=timeout
    )
    c10d._world.pg_group_ranks[group] = {place: place for place in range(size)}
    return group


def _workers(told: dict[str, object], url: str) -> int:
    """How many processes of a server join a group: those that share its layers."""
    for name in ("pp_size", "dp_size"):
        if told.get(name, 1) != 1:
            raise UnsuitableServer(
                f"{url} has {name} {told[name]!r:.40}, and a process group needs 1: use transfer=file"
            )
    size = told.get("tp_size", 1)
    if type(size) is not int or not 1 <= size <= 4096:
        raise MalformedAnswer(f"{url} says that its tp_size is {size!r:.40}")
    return size


def _buckets(tensors: Iterable[NamedTensor]) -> Iterator[list[tuple[str, Tensor]]]:
    bucket: list[tuple[str, Tensor]] = []
    held = 0
    for name, tensor in tensors:  # a bucket is handed on when it is large enough
        bucket.append((name, tensor.contiguous()))
        held += tensor.nbytes
        if held >= BUCKET_BYTES:
            yield bucket
            bucket, held = [], 0
    if bucket:
        yield bucket
