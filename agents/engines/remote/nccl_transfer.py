"""Send weights from the trainer's GPU to those of servers by NCCL, with vLLM's own weight transfer engine.

vLLM's trainer side speaks the protocol of :mod:`gagpo.agents.engines.remote.transfer`: ``init`` connects a server's
workers to this process once, and each update is ``start``, ``update`` and ``finish``. No file is written, and a bucket
of tensors is on its way at a time.

Threads: the trainer's thread reads the tensors, which several ranks may gather together. Each server has a thread that
broadcasts what the trainer's thread puts into its queue, because a broadcast to a server that died never returns. A
server that fails takes no other along: nothing more is put into its queue, and its thread is given up.
"""

from __future__ import annotations

import json
import queue
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import torch

from gagpo.agents.engines.base import claim_device
from gagpo.agents.engines.remote.client import Client, MalformedAnswer, ReplicaError, ReplicaUnreachable
from gagpo.agents.engines.remote.transfer import Run, at_all
from gagpo.base.child import free_port
from gagpo.base.errors import MissingPackage
from gagpo.model.adapters import base_tensors
from gagpo.model.dtypes import dtype_of
from gagpo.model.weights import NamedTensor, checked

BACKEND = "nccl"
QUEUED = 2  # tensors that wait for a broadcast
POLL_SECONDS = 0.05  # between two looks whether a server still takes tensors
MAX_WORKERS = 4096  # of a server; more is a malformed answer


class VLLMClasses(NamedTuple):
    """What is used of vLLM's trainer side.

    source: base class of what is sent.
    meta: name, format and shape of a tensor.
    init_info: addresses and sizes of the group of processes.
    factory: connects to a server, and returns what sends.
    """

    source: Any
    meta: Any
    init_info: Any
    factory: Any


def vllm_classes() -> VLLMClasses:
    """Import vLLM's trainer side. Raises: MissingPackage."""
    try:
        from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource
        from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory
        from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo
    except ImportError as error:
        raise MissingPackage(
            f"engine.options.transfer=nccl needs vLLM in the trainer's environment too ({error}): "
            "pip install -c constraints.txt -e '.[vllm]', or set engine.options.transfer=files",
            key="engine.options.transfer",
        ) from None
    return VLLMClasses(WeightSource, ParamMeta, NCCLTrainerInitInfo, WeightTransferTrainerFactory)


class NcclTransfer:
    """A :class:`gagpo.agents.engines.remote.transfer.Transfer` by NCCL, for servers on other GPUs than the trainer's.

    A connection lasts from update to update; one that failed is made anew in the next.

    device: of the trainer.
    deadline: seconds for each step of a server.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        dtype: str,
        device: torch.device,
        run: Run,
        deadline: float,
        classes: VLLMClasses | None = None,
    ):
        self._classes = classes or vllm_classes()
        self._shapes = {name: tuple(tensor.shape) for name, tensor in base_tensors(model)}
        self._dtype = dtype_of(dtype)
        self._device = device
        self._run = run
        self._deadline = deadline
        self._connections: dict[str, ServerConnection] = {}  # by url
        self.bytes = 0

    def update(
        self, tensors: Iterable[NamedTensor], version: str, clients: Sequence[Client]
    ) -> list[ReplicaError | None]:
        """See :class:`gagpo.agents.engines.remote.transfer.Transfer`.

        Raises: WeightsError for tensors of another model.
        """
        sending = [self._begin(client) for client in clients]
        try:
            self._pass_on(checked(tensors, self._shapes), sending)
        except BaseException:
            for connection in sending:
                connection.give_up("the update was ended")
            self._connections = {}
            raise
        until = time.monotonic() + self._deadline
        faults = [connection.result(until) for connection in sending]
        for client, fault in zip(clients, faults, strict=True):
            if fault is not None:
                self._connections.pop(client.url)
        return self._name_version(version, clients, faults)

    def _pass_on(self, tensors: Iterable[NamedTensor], sending: Sequence[ServerConnection]) -> None:
        """Put all tensors, and their end, into the queues of the servers."""
        self.bytes = 0
        for name, tensor in tensors:
            if not sending:
                continue  # read all the same: the ranks gather sharded weights together
            copy = tensor.detach().to(self._device, self._dtype).contiguous()
            self.bytes += copy.nbytes
            if copy.is_cuda:  # it is read on the streams of other threads
                torch.cuda.current_stream(self._device).synchronize()
            for connection in sending:
                connection.put((name, copy))
        for connection in sending:
            connection.put(None)

    def _name_version(
        self, version: str, clients: Sequence[Client], faults: Sequence[ReplicaError | None]
    ) -> list[ReplicaError | None]:
        """Name the new weights at the servers that took them; returns the faults of all."""

        async def name(client: Client) -> None:
            await client.post("/update_weight_version", {"new_version": version}, self._deadline)

        updated = [client for client, fault in zip(clients, faults, strict=True) if fault is None]
        later = dict(zip((client.url for client in updated), self._run(at_all(updated, name)), strict=True))
        return [fault or later[client.url] for client, fault in zip(clients, faults, strict=True)]

    def _begin(self, client: Client) -> ServerConnection:
        """Begin an update of a server, over the connection of the last one if there is one."""
        connection = self._connections.get(client.url)
        if connection is None:
            connection = self._connections[client.url] = ServerConnection(client, self)
        connection.begin()
        return connection

    def connect(self, client: Client, passing: ServerConnection) -> Any:
        """What sends to a server. Called in the server's thread, which waits for the server's workers."""
        workers = json.loads(self._run(client.get("/get_world_size", self._deadline))).get("world_size")
        if type(workers) is not int or not 1 <= workers <= MAX_WORKERS:
            raise MalformedAnswer(f"{client.url}/get_world_size answers {workers!r:.40}")
        info = self._classes.init_info(
            rank=0, master_address=address_towards(client.url), master_port=free_port(""), world_size=1 + workers
        )
        calls = ServerCalls(client, self._run, self._deadline)
        return self._classes.factory.trainer_init(info, client=calls, source=self._source(passing))

    def _source(self, passing: ServerConnection) -> Any:
        """What passes in an update, as vLLM reads it: metadata of all tensors in their order, then the tensors."""
        metadata = [self._classes.meta(name, self._dtype, shape) for name, shape in self._shapes.items()]

        class Passing(self._classes.source):  # type: ignore[misc, name-defined]
            def metadata(self) -> list[Any]:
                return metadata

            def __iter__(self) -> Iterator[NamedTensor]:
                return passing.incoming()

        return Passing()

    def release(self) -> None:
        """Do nothing: no memory is held between updates."""

    def close(self) -> None:
        """End the connections."""
        for connection in self._connections.values():
            connection.close()
        self._connections = {}


class ServerConnection:
    """A connection to one server, and the thread of the update under way.

    fault: what went wrong in this update.
    """

    def __init__(self, client: Client, transfer: NcclTransfer):
        self.url = client.url
        self.fault: ReplicaError | None = None
        self._client = client
        self._transfer = transfer
        self._deadline = transfer._deadline
        self._sender: Any = None
        self._error: BaseException | None = None
        self._queue: queue.Queue[NamedTensor | None] = queue.Queue(QUEUED)
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Start the thread of an update."""
        self.fault = None
        self._error = None
        self._queue = queue.Queue(QUEUED)
        thread = threading.Thread(target=self._send, name=f"weights to {self.url}", daemon=True)
        thread.start()
        self._thread = thread

    def _send(self) -> None:
        try:
            claim_device(self._transfer._device)  # new threads start on the first GPU
            if self._sender is None:
                self._sender = self._transfer.connect(self._client, self)
            self._sender.send_weights()
        except BaseException as error:  # the trainer's thread reports it
            self._error = error

    def incoming(self) -> Iterator[NamedTensor]:
        """In the server's thread: what is put, as it comes. Raises: ReplicaError once the server is given up."""
        while True:
            try:
                item = self._queue.get(timeout=POLL_SECONDS)
            except queue.Empty:  # the trainer gathers, or waits for another server
                if self.fault is not None:
                    raise self.fault from None
                continue
            if item is None:
                return
            if item[1].is_cuda:  # freed by the trainer's thread, read on a stream of this one
                item[1].record_stream(torch.cuda.current_stream(item[1].device))
            yield item

    def put(self, item: NamedTensor | None) -> None:
        """Hand on a tensor, or None for the end; does nothing for a server that has failed."""
        until = time.monotonic() + self._deadline
        while self.fault is None:
            try:
                return self._queue.put(item, timeout=POLL_SECONDS)
            except queue.Full:
                self._find_fault(until)
        return None

    def result(self, until: float) -> ReplicaError | None:
        """Wait until the server has everything; returns what went wrong. until: at the latest, in monotonic seconds."""
        if self.fault is None and self._thread is not None:
            self._thread.join(max(0.0, until - time.monotonic()))
            if self._error is not None or self._thread.is_alive():
                self._find_fault(0.0)
        return self.fault

    def give_up(self, reason: str) -> None:
        """Have the server's thread end."""
        self.fault = self.fault or ReplicaUnreachable(f"sending weights to {self.url}: {reason}")

    def _find_fault(self, until: float) -> None:
        """Give the server up if its thread has failed, has ended early, or is not done ``until`` then."""
        if self._error is not None:
            reason = " ".join(str(self._error).split())[:200] or type(self._error).__name__
            self.give_up(f"NCCL failed: {reason}")
        elif time.monotonic() > until:
            self.give_up(f"it took more than {self._deadline:g} s")
        elif self._thread is not None and not self._thread.is_alive():
            self.give_up("it took no more tensors before the last one")

    def close(self) -> None:
        if self._sender is not None:
            self._sender.shutdown()


class ServerCalls:
    """The calls of vLLM's trainer side to a server, by our client: vLLM's would go through a proxy, without a limit."""

    def __init__(self, client: Client, run: Run, deadline: float):
        self._client = client
        self._run = run
        self._deadline = deadline

    def _post(self, path: str, body: dict[str, object] | None = None) -> None:
        self._run(self._client.post(path, body, self._deadline))

    def init_weight_transfer_engine(self, init_info: object) -> None:
        self._post("/init_weight_transfer_engine", {"init_info": init_info})

    def start_weight_update(self) -> None:
        self._post("/start_weight_update")

    def update_weights(self, update_info: object) -> None:
        self._post("/update_weights", {"update_info": update_info})

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._post("/finish_weight_update", None if weight_version is None else {"weight_version": weight_version})

    def shutdown_weight_transfer_engine(self) -> None:
        self._post("/shutdown_weight_transfer_engine")


def address_towards(url: str) -> str:
    """The address of this machine on the way to the server at ``url``; no packet is sent."""
    parts = urlsplit(url)
    family, socket_kind, protocol, _, address = socket.getaddrinfo(
        parts.hostname, parts.port or 80, type=socket.SOCK_DGRAM
    )[0]
    with socket.socket(family, socket_kind, protocol) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])
