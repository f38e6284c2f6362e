"""Send weights from the trainer's GPU to those of servers by NCCL, with vLLM's own weight transfer engine.

vLLM's trainer side speaks the protocol of :mod:`gagpo.agents.engines.remote.transfer`: ``init`` connects the workers of
all servers and this process to one group, and each update is ``start``, ``update`` and ``finish``. A tensor is
broadcast once, whatever the number of servers. No file is written, and a bucket of tensors is on its way at a time.

A server that is gone before an update is left out of the group. One that goes while tensors are on their way takes the
others along: their workers wait in the broadcast and answer no more, so they are restarted.

Threads: the trainer's thread reads the tensors, which several ranks may gather together. Another one broadcasts what
it puts into the queue, because a broadcast to a server that died never returns. After a fault nothing more is put into
the queue, and the thread is given up.

vLLM's other way, CUDA IPC to servers on the trainer's own GPU, is not used: over HTTP its handles are a pickle, which a
server only reads with ``VLLM_ALLOW_INSECURE_SERIALIZATION=1``. Whoever reaches its port could then run code there.
Such servers read files from shared memory.
"""

from __future__ import annotations

import json
import queue
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import torch

from gagpo.agents.engines.base import claim_device
from gagpo.agents.engines.remote.client import Client, MalformedAnswer, ReplicaError, ReplicaUnreachable
from gagpo.agents.engines.remote.transfer import Run, at_all, start_update
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
            f"engine.options.transfer=nccl needs vLLM in the trainer's environment too ({error})",
            key="engine.options.transfer",
            advice="pip install -c constraints.txt -e '.[vllm]', or set engine.options.transfer=files",
        ) from None
    return VLLMClasses(WeightSource, ParamMeta, NCCLTrainerInitInfo, WeightTransferTrainerFactory)


class NcclTransfer:
    """A :class:`gagpo.agents.engines.remote.transfer.Transfer` by NCCL, for servers on other GPUs than the trainer's.

    A group lasts from update to update; one that failed, or has other servers, is made anew in the next.

    device: of the trainer.
    deadline: seconds for each step of a server.
    """

    has_base = False  # each update brings all weights

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
        self._group: ServerGroup | None = None
        self.bytes = 0

    def update(
        self, tensors: Iterable[NamedTensor], version: str, clients: Sequence[Client]
    ) -> list[ReplicaError | None]:
        """See :class:`gagpo.agents.engines.remote.transfer.Transfer`.

        Raises: WeightsError for tensors of another model.
        """
        workers: dict[str, int] = {}
        faults = self._at_all(clients, lambda client: self._count_workers(client, workers))
        group = self._group_of([client for client in clients if client.url in workers], workers)
        try:
            self._pass_on(checked(tensors, self._shapes), group)
        except BaseException:
            if group is not None:
                group.give_up("the update was ended")
            self._group = None
            raise
        if group is not None:
            faults |= group.result(time.monotonic() + self._deadline)
            if group.fault is not None:
                self._group = None
        updated = [client for client in clients if client.url not in faults]
        faults |= self._at_all(
            updated, lambda client: client.post("/update_weight_version", {"new_version": version}, self._deadline)
        )
        return [faults.get(client.url) for client in clients]

    def _at_all(
        self, clients: Sequence[Client], call: Callable[[Client], Coroutine[Any, Any, None]]
    ) -> dict[str, ReplicaError]:
        """Make ``call`` for all servers at the same time; returns what went wrong, by url."""
        faults = self._run(at_all(clients, call))
        return {client.url: fault for client, fault in zip(clients, faults, strict=True) if fault is not None}

    async def _count_workers(self, client: Client, workers: dict[str, int]) -> None:
        """Enter the number of a server's workers, if it can take part in an update."""
        if client.hangs:  # one that was started again by hand answers, and others would wait for one that does not
            await client.post("/shutdown_weight_transfer_engine", None, self._deadline)
            client.hangs = False
        answer = await client.get("/get_world_size", self._deadline)
        count: object = None
        with suppress(ValueError, AttributeError):
            count = json.loads(answer).get("world_size")
        if type(count) is not int or not 1 <= count <= MAX_WORKERS:
            raise MalformedAnswer(f"answers {count!r:.40}", where=f"{client.url}/get_world_size")
        workers[client.url] = count

    def _group_of(self, clients: Sequence[Client], workers: Mapping[str, int]) -> ServerGroup | None:
        """The group of these servers, which begins an update; that of the last one if it is the same."""
        if self._group is not None and self._group.clients != list(clients):
            self.close()
        if not clients:
            return None
        if self._group is None:
            self._group = ServerGroup(clients, self._device, self._deadline, self._connect(clients, workers))
        self._group.begin()
        return self._group

    def _pass_on(self, tensors: Iterable[NamedTensor], group: ServerGroup | None) -> None:
        """Put all tensors, and their end, into the queue of the group."""
        self.bytes = 0
        for name, tensor in tensors:
            if group is None:
                continue  # read all the same: the ranks gather sharded weights together
            copy = tensor.detach().to(self._device, self._dtype).contiguous()
            self.bytes += copy.nbytes
            if copy.is_cuda:  # it is read on the stream of another thread
                torch.cuda.current_stream(self._device).synchronize()
            group.put((name, copy))
        if group is not None:
            group.put(None)

    def _connect(self, clients: Sequence[Client], workers: Mapping[str, int]) -> Callable[[ServerGroup], Any]:
        """What connects a group. It is called in the group's thread, which waits for the servers' workers."""

        def connect(group: ServerGroup) -> Any:
            addresses = [address_towards(client.url) for client in clients]
            # A server on this machine reaches the address that others need, but not the other way round.
            address = next((each for each in addresses if not each.startswith("127.")), addresses[0])
            size = 1 + sum(workers[client.url] for client in clients)
            info = self._classes.init_info(rank=0, master_address=address, master_port=free_port(""), world_size=size)
            calls = GroupCalls(group, [workers[client.url] for client in clients], self._run, self._deadline)
            return self._classes.factory.trainer_init(info, client=calls, source=self._source(group))

        return connect

    def _source(self, group: ServerGroup) -> Any:
        """What passes in an update, as vLLM reads it: metadata of all tensors in their order, then the tensors."""
        metadata = [self._classes.meta(name, self._dtype, shape) for name, shape in self._shapes.items()]

        class Passing(self._classes.source):  # type: ignore[misc, name-defined]
            def metadata(self) -> list[Any]:
                return metadata

            def __iter__(self) -> Iterator[NamedTensor]:
                return group.incoming()

        return Passing()

    def release(self) -> None:
        """Do nothing: no memory is held between updates."""

    def close(self) -> None:
        """End the connections."""
        if self._group is not None:
            self._group.close()
        self._group = None


class ServerGroup:
    """Servers whose workers form a group with this process, and the thread of the update under way.

    fault: what went wrong in this update, for the servers that have no fault of their own.
    faults: those of single servers, by url.
    """

    def __init__(
        self,
        clients: Sequence[Client],
        device: torch.device,
        deadline: float,
        connect: Callable[[ServerGroup], Any],
    ):
        self.clients = list(clients)
        self.fault: ReplicaError | None = None
        self.faults: dict[str, ReplicaError] = {}
        self._device = device
        self._deadline = deadline
        self._connect = connect
        self._sender: Any = None
        self._error: BaseException | None = None
        self._queue: queue.Queue[NamedTensor | None] = queue.Queue(QUEUED)
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Start the thread of an update."""
        self._queue = queue.Queue(QUEUED)
        self._thread = threading.Thread(target=self._send, name="weights to servers", daemon=True)
        self._thread.start()

    def _send(self) -> None:
        try:
            claim_device(self._device)  # new threads start on the first GPU
            if self._sender is None:
                self._sender = self._connect(self)
            self._sender.send_weights()
        except BaseException as error:  # the trainer's thread reports it
            self._error = error

    def incoming(self) -> Iterator[NamedTensor]:
        """In the group's thread: what is put, as it comes. Raises: ReplicaError once the update is given up."""
        while True:
            try:
                item = self._queue.get(timeout=POLL_SECONDS)
            except queue.Empty:  # the trainer gathers
                if self.fault is not None:
                    raise self.fault from None
                continue
            if item is None:
                return
            if item[1].is_cuda:  # freed by the trainer's thread, read on a stream of this one
                item[1].record_stream(torch.cuda.current_stream(item[1].device))
            yield item

    def put(self, item: NamedTensor | None) -> None:
        """Hand on a tensor, or None for the end; does nothing in an update that has failed."""
        until = time.monotonic() + self._deadline
        while self.fault is None:
            try:
                return self._queue.put(item, timeout=POLL_SECONDS)
            except queue.Full:
                self._find_fault(until)
        return None

    def result(self, until: float) -> dict[str, ReplicaError]:
        """Wait until the servers have everything; returns what went wrong, by url.

        until: at the latest, in monotonic seconds.
        """
        while self.fault is None and self._thread is not None and self._thread.is_alive():
            self._thread.join(POLL_SECONDS)
            self._find_fault(until)
        if self._error is not None:
            self._find_fault(until)
        fault = self.fault
        if fault is None:
            return {}
        for client in self.clients:
            client.hangs = True
        return {client.url: self.faults.get(client.url, fault) for client in self.clients}

    def give_up(self, reason: str) -> None:
        """Have the thread end."""
        urls = ", ".join(client.url for client in self.clients)
        self.fault = self.fault or ReplicaUnreachable(f"sending weights to {urls}: {reason}")

    def _find_fault(self, until: float) -> None:
        """Give the update up if a server or the thread has failed, or it is not done ``until`` then."""
        if self.faults:
            self.give_up(f"the broadcast lost a server: {next(iter(self.faults.values()))}")
        elif self._error is not None:
            reason = " ".join(str(self._error).split())[:200] or type(self._error).__name__
            self.give_up(f"NCCL failed: {reason}")
        elif self._thread is not None and self._thread.is_alive():
            if time.monotonic() > until:
                self.give_up(f"it took more than {self._deadline:g} s")
        elif not self._queue.empty():
            self.give_up("it took no more tensors before the last one")

    def close(self) -> None:
        if self._sender is not None:
            self._sender.shutdown()


class GroupCalls:
    """The calls of vLLM's trainer side to all servers at once, by our clients.

    vLLM's own client speaks to one server, through a proxy, without a limit.

    workers: of each server.
    """

    def __init__(self, group: ServerGroup, workers: Sequence[int], run: Run, deadline: float):
        self._group = group
        self._offsets = dict(
            zip((client.url for client in group.clients), accumulate(workers, initial=0), strict=False)
        )
        self._run = run
        self._deadline = deadline

    def _at_all(self, call: Callable[[Client], Coroutine[Any, Any, None]]) -> None:
        async def noting_fault(client: Client) -> None:
            try:
                await call(client)
            except ReplicaError as error:  # at once, while the other servers wait for it
                self._group.faults[client.url] = error
                raise

        errors = self._run(at_all(self._group.clients, noting_fault))
        for error in filter(None, errors):
            raise error

    def _post(self, path: str, body: dict[str, object] | None = None) -> None:
        self._at_all(lambda client: client.post(path, body, self._deadline))

    def init_weight_transfer_engine(self, init_info: Mapping[str, Any]) -> None:
        """Give each server the ranks of its workers: after those of this process and of the servers before it."""

        async def init(client: Client) -> None:
            offset = init_info["rank_offset"] + self._offsets[client.url]
            body = {"init_info": {**init_info, "rank_offset": offset}}
            await client.post("/init_weight_transfer_engine", body, self._deadline)

        self._at_all(init)

    def start_weight_update(self) -> None:
        self._at_all(lambda client: start_update(client, self._deadline))

    def update_weights(self, update_info: object) -> None:
        self._post("/update_weights", {"update_info": update_info})

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._post("/finish_weight_update", None if weight_version is None else {"weight_version": weight_version})

    def shutdown_weight_transfer_engine(self) -> None:
        self._post("/shutdown_weight_transfer_engine")


def address_towards(url: str) -> str:
    """The address of this machine on the way to the server at ``url``; no packet is sent."""
    split_url = urlsplit(url)
    family, socket_kind, protocol, _, address = socket.getaddrinfo(
        split_url.hostname, split_url.port or 80, type=socket.SOCK_DGRAM
    )[0]
    with socket.socket(family, socket_kind, protocol) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])
