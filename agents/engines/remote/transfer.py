"""Send weights to vLLM servers as safetensors files, in a folder that trainer and servers both see.

The ranks of a machine have the same weights, so its first rank writes them and all name the same files to their
servers. The files are removed when the last server has read them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from safetensors.torch import save_file

from gagpo.agents.engines.peers import Peers, from_first_on_machine
from gagpo.agents.engines.remote.client import Client, ReplicaError
from gagpo.base import durable
from gagpo.base.background import Background
from gagpo.model.adapters import base_tensors
from gagpo.model.disk_errors import disk_errors
from gagpo.model.dtypes import dtype_of
from gagpo.model.weights import NamedTensor, checked

T = TypeVar("T")
Run = Callable[[Coroutine[Any, Any, Any]], Any]
"""Runs calls to servers in the router's loop, and waits for them."""

BACKEND = "gagpo_file"  # name of this transfer among vLLM's own
FILE_BYTES = 2**29  # of one file; two are in memory, one of which is being written


class Transfer(Protocol):
    """A way of bringing weights to servers.

    bytes: size of the last update: written to files, or sent to each server.
    has_base: whether every server holds weights that the next update builds on, so that one that sleeps keeps them.
    """

    bytes: int

    @property
    def has_base(self) -> bool: ...

    def update(
        self, tensors: Iterable[NamedTensor], version: str, clients: Sequence[Client]
    ) -> list[ReplicaError | None]:
        """Bring ``tensors`` to the servers of ``clients``; returns what went wrong at each.

        All ranks call it together, each with the servers that it updates, and all read the tensors to their end.
        """

    def release(self) -> None:
        """Free what the update took, when the servers of all ranks have loaded it."""

    def close(self) -> None:
        """Free everything; may be called twice."""


async def start_update(client: Client, deadline: float) -> None:
    """Start an update, after ending one that an earlier trainer left open."""
    try:
        await client.post("/start_weight_update", None, deadline)
    except ReplicaError:
        with contextlib.suppress(ReplicaError):
            await client.post("/finish_weight_update", None, deadline)
        await client.post("/start_weight_update", None, deadline)


async def at_all(
    clients: Sequence[Client], call: Callable[[Client], Coroutine[Any, Any, None]]
) -> list[ReplicaError | None]:
    """Make ``call`` for all servers at the same time; returns what went wrong at each."""

    async def fault_at(client: Client) -> ReplicaError | None:
        try:
            await call(client)
        except ReplicaError as error:
            return error
        return None

    return await asyncio.gather(*map(fault_at, clients))


class FileTransfer:
    """A :class:`Transfer` by files, which an extension in the servers' workers reads.

    folder: where the first rank of the machine writes; None on its other ranks.
    deadline: seconds for one file to be written, and for each step of a server.
    """

    has_base = False  # each update brings all weights

    def __init__(
        self, model: torch.nn.Module, dtype: str, folder: Path | None, peers: Peers, run: Run, deadline: float
    ):
        self._shapes = {name: tuple(tensor.shape) for name, tensor in base_tensors(model)}
        self._dtype = dtype_of(dtype)
        self._folder = folder
        self._peers = peers
        self._run = run
        self._deadline = deadline
        self._written: Path | None = None
        self.bytes = 0

    def update(
        self, tensors: Iterable[NamedTensor], version: str, clients: Sequence[Client]
    ) -> list[ReplicaError | None]:
        """See :class:`Transfer`.

        Raises: WeightsError for tensors of another model; OSError if they cannot be written.
        """
        files = self._shared(tensors, version)

        async def send(client: Client) -> None:
            await self._send(client, files, version)

        # This thread waits here. The servers read the files at the same time, each in its own processes.
        faults: list[ReplicaError | None] = self._run(at_all(clients, send))
        return faults

    def _shared(self, tensors: Iterable[NamedTensor], version: str) -> list[str]:
        """The files of this machine, once its first rank has written them."""
        error: Exception | None = None
        files: list[str] = []
        stream = iter(checked(tensors, self._shapes))
        try:
            if self._folder is not None:
                files = self._write(stream, version, self._folder)
        except Exception as caught:
            error = caught
        # Ranks gather sharded weights together: one that stopped reading would leave the others waiting.
        for _ in stream:
            pass
        files, self.bytes = from_first_on_machine(self._peers, error, [files, self.bytes])
        return files

    def _write(self, tensors: Iterable[NamedTensor], version: str, parent: Path) -> list[str]:
        """Write all tensors; a full disk or one that hangs is an error, and leaves nothing."""
        self.release()
        folder = parent / version.replace(":", "-")
        names: list[str] = []
        num_bytes = 0
        # Writing overlaps with gathering the next tensors, and a disk that hangs is noticed at the deadline.
        writing = Background("writing weights for the servers", self._deadline)
        with durable.replacing_folder(folder, flushed=False) as unfinished:
            for number, shard in enumerate(_parts(tensors, self._dtype)):
                names.append(f"{number:04d}.safetensors")
                num_bytes += sum(tensor.nbytes for tensor in shard.values())
                writing.start(_saving(shard, unfinished / names[-1]))
            writing.wait()
        self._written = folder
        self.bytes = num_bytes
        return [str(folder / name) for name in names]

    async def _send(self, client: Client, files: Sequence[str], version: str) -> None:
        """Have a server load the files. Raises: ReplicaError.

        Every call returns when all workers of the server have finished that step. The version is named in the last
        one: from then on the server's answers carry it, and the client rejects answers that do not.
        """
        init_info = {"init_info": {"parameters": len(self._shapes)}}
        await client.post("/init_weight_transfer_engine", init_info, self._deadline)
        await start_update(client, self._deadline)
        for file in files:
            await client.post("/update_weights", {"update_info": {"path": file}}, self._deadline)
        await client.post("/finish_weight_update", {"weight_version": version}, self._deadline)

    def release(self) -> None:
        """Remove the files."""
        written, self._written = self._written, None
        if written is not None:
            durable.remove(written)

    def close(self) -> None:
        self.release()


def _saving(tensors: dict[str, torch.Tensor], file: Path) -> Callable[[], None]:
    """A job that writes ``tensors``."""

    def save() -> None:
        with disk_errors(file):
            save_file(tensors, str(file), metadata={"format": "pt"})

    return save


def _parts(tensors: Iterable[NamedTensor], dtype: torch.dtype) -> Iterator[dict[str, torch.Tensor]]:
    """Tensors on the CPU in groups of about :data:`FILE_BYTES`."""
    shard: dict[str, torch.Tensor] = {}
    num_bytes = 0
    for name, tensor in tensors:
        shard[name] = tensor.detach().to("cpu", dtype).contiguous()
        num_bytes += shard[name].nbytes
        if num_bytes >= FILE_BYTES:
            yield shard
            shard = {}  # the writer has the old one
            num_bytes = 0
    if shard:
        yield shard
