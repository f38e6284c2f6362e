"""Weights from the trainer's GPU to servers' GPUs, a bucket at a time: shared memory of a GPU, or a broadcast.

The trainer's thread reads the tensors, which several ranks may gather together: whatever happens at a server, all of
them are read, so that no rank waits for another's server. What has been handed on is not kept.
"""

from __future__ import annotations

import base64
import contextlib
import pickle
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from gagpo.agents.engines.adapters import base_tensors
from gagpo.agents.engines.base import NamedTensor, claim_device
from gagpo.agents.engines.remote.client import Client
from gagpo.agents.engines.remote.transfer import Round, Run, address_towards, checked, free_port
from gagpo.agents.engines.remote.wire import MalformedAnswer, ReplicaError, ReplicaUnreachable
from gagpo.agents.precision import dtype_of
from gagpo.base.errors import MissingPackage

BUCKET_BYTES = 2**28  # of the weights that are on their way at a time; a larger tensor is a bucket of its own
HELD = 2  # tensors that wait for a broadcast
PUT_SECONDS = 0.05  # between two looks whether a broadcast still goes on

GONE = "the weights lie in parts on all ranks, which meet at the next update: it takes them then"


class SharedMemoryTransfer:
    """CUDA's interprocess memory, for servers on the trainer's own GPU, in vLLM's format of packed buffers.

    One buffer is exported in each update and filled again and again; a server has copied a bucket out of it when it
    answers. vLLM's own trainer side merges the handles of all processes that torch knows, which suits servers that
    span all GPUs: here every rank has a server of its own.

    device: of the trainer's weights. export: gives the name of a buffer's GPU and what another process opens it by.
    """

    keeps = False

    def __init__(
        self,
        model: torch.nn.Module,
        dtype: str,
        device: torch.device,
        export: Callable[[Tensor], tuple[str, tuple[Any, ...]]] | None = None,
    ):
        self._shapes = {name: tuple(tensor.shape) for name, tensor in base_tensors(model)}
        self._dtype, self._device = dtype_of(dtype), device
        self._export = export or exported

    def send(
        self, tensors: Iterable[NamedTensor] | None, version: str, clients: Sequence[Client], run: Run, deadline: float
    ) -> list[ReplicaError | None]:
        """See :class:`gagpo.agents.engines.remote.transfer.Transfer`."""
        if tensors is None:
            return [ReplicaError(GONE) for _ in clients]
        update = Round(clients, run, deadline)
        update.order("/init_weight_transfer_engine", {"init_info": {"packed": True}})
        update.start()
        largest = max(torch.Size(shape).numel() for shape in self._shapes.values()) * self._dtype.itemsize
        buffer = torch.empty(max(BUCKET_BYTES, largest), dtype=torch.uint8, device=self._device)
        uuid, handle = self._export(buffer)
        pickled = base64.b64encode(pickle.dumps({uuid: handle})).decode()
        for bucket in buckets(buffer, checked(tensors, self._shapes), self._dtype):
            names, shapes, sizes = zip(*bucket, strict=True)
            update.order(
                "/update_weights",
                {
                    "update_info": {
                        "names": names,
                        "dtype_names": [str(self._dtype).rpartition(".")[2]] * len(names),
                        "shapes": shapes,
                        "tensor_sizes": sizes,
                        "ipc_handles_pickled": pickled,
                    }
                },
            )
        update.order("/finish_weight_update", {"weight_version": version})
        del buffer
        if self._device.type == "cuda":
            torch.cuda.ipc_collect()  # what the servers have let go of
        return update.faults

    def close(self) -> None:
        """Nothing is held between updates."""


def buckets(
    buffer: Tensor, tensors: Iterable[NamedTensor], dtype: torch.dtype
) -> Iterator[list[tuple[str, tuple[int, ...], int]]]:
    """Names, shapes and bytes of what lies in ``buffer`` (bytes), each time that it is full, and at the end.

    It is filled with the tensors in ``dtype``, one after the other, and read before the next bucket is asked for.
    """
    bucket: list[tuple[str, tuple[int, ...], int]] = []
    used = 0
    for name, tensor in tensors:
        flat = tensor.detach().to(buffer.device, dtype).contiguous().view(-1).view(torch.uint8)
        if bucket and used + len(flat) > len(buffer):
            _settle(buffer.device)
            yield bucket
            bucket, used = [], 0
        buffer[used : used + len(flat)].copy_(flat)
        bucket.append((name, tuple(tensor.shape), len(flat)))
        used += len(flat)
    _settle(buffer.device)
    yield bucket


def _settle(device: torch.device) -> None:
    """Another process sees what is in a buffer, not what is queued for it."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


def exported(buffer: Tensor) -> tuple[str, tuple[Any, ...]]:
    """The name of a CUDA buffer's GPU, whatever number it has here, and torch's arguments to open it elsewhere."""
    from torch.multiprocessing.reductions import reduce_tensor

    return str(torch.cuda.get_device_properties(buffer.device).uuid), reduce_tensor(buffer)[1]


class ConnectedTransfer(ABC):
    """Weights by a connection to each server, which lasts from update to update.

    A broadcast to a server that died in the middle of it never returns, so each goes on in a thread, which takes the
    tensors as the trainer's thread reads them; one that fails takes no other along.
    """

    keeps = False

    def __init__(self, model: torch.nn.Module, dtype: str, device: torch.device):
        self._dtype, self._device = dtype_of(dtype), device
        self._shapes = {name: tuple(tensor.shape) for name, tensor in base_tensors(model)}
        self._connections: dict[str, Broadcast] = {}  # by url

    @abstractmethod
    def _connect(self, client: Client, run: Run, deadline: float, broadcast: Broadcast) -> Any:
        """What sends to a server, see :class:`Broadcast`. Called in the connection's thread, in which it may wait."""

    def _broadcast(
        self, tensors: Iterable[NamedTensor], clients: Sequence[Client], run: Run, deadline: float
    ) -> list[ReplicaError | None]:
        """Send to all of these servers; what went wrong at each of them. A connection that failed is given up."""
        sending = [self._begun(client, run, deadline) for client in clients]
        passed(sending, checked(tensors, self._shapes), self._device, self._dtype)
        for one in sending:
            if one.fault:
                self._connections.pop(one.url).drop()
        return [one.fault for one in sending]

    def _begun(self, client: Client, run: Run, deadline: float) -> Broadcast:
        known = self._connections.get(client.url)
        if known is None:
            known = self._connections[client.url] = Broadcast(client.url, self._device)
            known.connect = lambda broadcast: self._connect(client, run, deadline, broadcast)
        known.begin(deadline)
        return known

    def close(self) -> None:
        """End the connections."""
        for one in self._connections.values():
            with contextlib.suppress(Exception):
                one.close()
        self._connections = {}


class BroadcastTransfer(ConnectedTransfer):
    """NCCL from the trainer's GPU to those of each server, by vLLM's own trainer side."""

    def __init__(self, model: torch.nn.Module, dtype: str, device: torch.device):
        try:
            from vllm.distributed.weight_transfer import base, factory
            from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo
        except ImportError as error:
            raise MissingPackage(
                f"engine.options.transfer=nccl needs vLLM in the trainer's environment too ({error}); install the "
                "extra vllm, or use transfer=file"
            ) from None
        super().__init__(model, dtype, device)
        self._vllm, self._info = (base, factory), NCCLTrainerInitInfo

    def send(
        self, tensors: Iterable[NamedTensor] | None, version: str, clients: Sequence[Client], run: Run, deadline: float
    ) -> list[ReplicaError | None]:
        """See :class:`gagpo.agents.engines.remote.transfer.Transfer`."""
        if tensors is None:
            return [ReplicaError(GONE) for _ in clients]
        named = Round(clients, run, deadline, self._broadcast(tensors, clients, run, deadline))
        named.order("/update_weight_version", {"new_version": version})
        return named.faults

    def _connect(self, client: Client, run: Run, deadline: float, broadcast: Broadcast) -> Any:
        base, factory = self._vllm
        transfer = self

        class Passing(base.WeightSource):  # type: ignore[misc, name-defined]
            """What passes in this update; metadata of all of it, in its order."""

            def metadata(self) -> list[object]:
                return [base.ParamMeta(name, transfer._dtype, shape) for name, shape in transfer._shapes.items()]

            def __iter__(self) -> Iterator[NamedTensor]:
                return broadcast.taken()

        workers = run(client.look_up("/get_world_size", deadline)).get("world_size")
        if type(workers) is not int or not 1 <= workers <= 4096:
            raise MalformedAnswer(f"{client.url} says that it has {workers!r:.40} workers")
        address, port = address_towards(client.url), free_port("")
        info = self._info(rank=0, master_address=address, master_port=port, world_size=1 + workers)
        orders = _Orders(lambda path, body: run(client.order(path, body, deadline)))
        return factory.WeightTransferTrainerFactory.trainer_init(info, client=orders, source=Passing())


class _Orders:
    """The calls of vLLM's trainer side to a server, by our own client: vLLM's would go through a proxy.

    order: has the server do what a path and a JSON body say.
    """

    def __init__(self, order: Callable[[str, dict[str, object] | None], None]):
        self._order = order

    def init_weight_transfer_engine(self, init_info: object) -> None:
        self._order("/init_weight_transfer_engine", {"init_info": init_info})

    def start_weight_update(self) -> None:
        self._order("/start_weight_update", None)

    def update_weights(self, update_info: object) -> None:
        self._order("/update_weights", {"update_info": update_info})

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._order("/finish_weight_update", None if weight_version is None else {"weight_version": weight_version})

    def shutdown_weight_transfer_engine(self) -> None:
        self._order("/shutdown_weight_transfer_engine", None)


def passed(
    sending: Sequence[Broadcast], tensors: Iterable[NamedTensor], device: torch.device, dtype: torch.dtype
) -> None:
    """Hand all tensors to the connections of an update, and wait until each has ended or failed."""
    for name, tensor in tensors:
        part = tensor.detach().to(device, dtype)
        if device.type == "cuda":  # it is read on streams of other threads
            torch.cuda.current_stream(device).synchronize()
        for one in sending:
            one.put((name, part))
    for one in sending:
        one.end()


class Broadcast:
    """A connection to one server, and the thread of the update under way.

    connect: makes what sends, which has the methods ``send_weights`` and ``shutdown``.
    """

    def __init__(self, url: str, device: torch.device):
        self.url, self.device = url, device
        self.connect: Callable[[Broadcast], Any] = lambda _: None
        self.fault: ReplicaError | None = None
        self._engine: Any = None

    def begin(self, deadline: float) -> None:
        """Begin an update; every step of it has ``deadline`` seconds."""
        self.deadline, self.fault = deadline, None
        self._error: BaseException | None = None
        self._passing: queue.Queue[NamedTensor | None] = queue.Queue(HELD)
        self._thread = threading.Thread(target=self._work, name=f"weights to {self.url}", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            claim_device(self.device)  # a thread begins on the first GPU, whatever the one that started it is on
            self._engine = self._engine or self.connect(self)
            self._engine.send_weights()
        except BaseException as error:
            self._error = error

    def taken(self) -> Iterator[NamedTensor]:
        """In the thread: what is put, as it comes."""
        while (item := self._passing.get(timeout=self.deadline)) is not None:
            if item[1].is_cuda:  # freed by the other thread, read on a stream of this one
                item[1].record_stream(torch.cuda.current_stream(item[1].device))
            yield item
            del item

    def put(self, item: NamedTensor | None) -> None:
        """Hand on a tensor, or None for the end; nothing is done once the server is given up."""
        until = time.monotonic() + self.deadline
        while self.fault is None:
            try:
                return self._passing.put(item, timeout=PUT_SECONDS)
            except queue.Full:
                self._look(until)
        return None

    def end(self) -> None:
        """Wait until the server has all of it."""
        self.put(None)
        if self.fault is None:
            self._thread.join(self.deadline)
            self._look(0.0)

    def _look(self, until: float) -> None:
        """Give the server up where its thread failed, or is not done in time."""
        if self._error is not None:
            self.fault = ReplicaUnreachable(f"sending weights to {self.url} failed: {self._error}")
        elif self._thread.is_alive() and time.monotonic() > until:
            self.fault = ReplicaUnreachable(f"sending weights to {self.url} took more than {self.deadline:g} s")

    def drop(self) -> None:
        """Forget what sends, which failed and may never answer."""
        self._engine = None

    def close(self) -> None:
        if self._engine is not None:
            self._engine.shutdown()
