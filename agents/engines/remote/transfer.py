"""Send weights to vLLM servers as safetensors files, in a folder that trainer and servers both see.

On one machine a folder in memory (``/dev/shm``) is fast. With a LoRA adapter, the weights below it are sent once and
the adapter alone with each update.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file

from gagpo.agents.engines.adapters import base_tensors
from gagpo.agents.engines.base import NamedTensor
from gagpo.agents.engines.remote.client import Client, ReplicaError
from gagpo.agents.engines.weights import AdapterShape, checked
from gagpo.agents.precision import dtype_of
from gagpo.base import durable

FILE_BYTES = 2**30  # of one file, which is held in memory

Run = Callable[[Coroutine[None, None, None]], None]
"""Runs a coroutine in the clients' event loop and waits for it."""


class Round:
    """One update of several servers in common steps; a server that fails a step skips the rest.

    faults: the error of each server, None if it has not failed.
    """

    def __init__(
        self, clients: Sequence[Client], run: Run, deadline: float, faults: Sequence[ReplicaError | None] | None = None
    ):
        self._clients, self._run, self._deadline = clients, run, deadline
        self.faults: list[ReplicaError | None] = list(faults or [None] * len(clients))

    def order(self, path: str, body: Mapping[str, object] | None) -> None:
        """Make the same call at all servers."""
        self._all(lambda client: client.order(path, body, self._deadline))

    def start(self) -> None:
        """Start the transfer, after ending one that an earlier trainer left open."""
        self._all(lambda client: _start(client, self._deadline))

    def _all(self, ask: Callable[[Client], Coroutine[None, None, None]]) -> None:
        async def one(place: int) -> None:
            try:
                await ask(self._clients[place])
            except ReplicaError as fault:
                self.faults[place] = fault

        async def at_once() -> None:
            await asyncio.gather(*(one(place) for place, fault in enumerate(self.faults) if fault is None))

        self._run(at_once())


async def _start(client: Client, deadline: float) -> None:
    try:
        await client.order("/start_weight_update", None, deadline)
    except ReplicaError:
        with contextlib.suppress(ReplicaError):
            await client.order("/finish_weight_update", None, deadline)
        await client.order("/start_weight_update", None, deadline)


class FileTransfer:
    """Writes all weights into ``folder``, from which an extension in the servers' workers reads them.

    A new version is complete before it gets its name. The last version is kept for servers that restart.
    """

    def __init__(self, model: torch.nn.Module, dtype: str, folder: Path):
        self._shapes = {name: tuple(tensor.shape) for name, tensor in base_tensors(model)}
        self._dtype = dtype_of(dtype)
        self._folder = folder
        self._files: list[Path] = []

    def send(
        self, tensors: Iterable[NamedTensor] | None, version: str, clients: Sequence[Client], run: Run, deadline: float
    ) -> list[ReplicaError | None]:
        """Send weights to servers; returns the error of each server, None for success.

        tensors: all are read once, even if servers fail. None sends the last ones again.
        version: name of the weights.
        deadline: seconds for each step.

        Raises: WeightsError for tensors of another model.
        """
        if tensors is not None:
            self._write(tensors, version)
        update = Round(clients, run, deadline)
        update.order("/init_weight_transfer_engine", {"init_info": {"parameters": len(self._shapes)}})
        update.start()
        for file in self._files:
            update.order("/update_weights", {"update_info": {"path": str(file)}})
        update.order("/finish_weight_update", {"weight_version": version})
        return update.faults

    def _write(self, tensors: Iterable[NamedTensor], version: str) -> None:
        place = self._folder / version.replace(":", "-")
        names = []
        with durable.replacing_folder(place, flushed=False) as unfinished:
            for number, part in enumerate(_parts(checked(tensors, self._shapes), self._dtype)):
                names.append(f"{number:04d}.safetensors")
                save_file(part, str(unfinished / names[-1]), metadata={"format": "pt"})
        self.close()
        self._files = [place / name for name in names]

    def close(self) -> None:
        """Remove the files."""
        for folder in {file.parent for file in self._files}:
            shutil.rmtree(folder, ignore_errors=True)
        self._files = []


def _parts(tensors: Iterable[NamedTensor], dtype: torch.dtype) -> Iterator[dict[str, torch.Tensor]]:
    part: dict[str, torch.Tensor] = {}
    held = 0
    for name, tensor in tensors:
        part[name] = tensor.detach().to("cpu", dtype).contiguous()
        held += part[name].nbytes
        if held >= FILE_BYTES:
            yield part
            part, held = {}, 0
    if part:
        yield part


def adapter_name(version: str) -> str:
    """The servers' name for the adapter of these weights."""
    return f"gagpo-{version.replace(':', '-')}"


class AdapterTransfer:
    """Sends the weights below an adapter once, by ``below``, and the adapter as peft's files in ``folder``.

    Each update gives the adapter a new name, which requests use, so a server without it rejects them. A server that
    does not know its last adapter was restarted and gets the base again.

    base: returns the weights without the adapter.
    """

    def __init__(
        self, shape: AdapterShape, below: FileTransfer, base: Callable[[], Iterable[NamedTensor]], folder: Path
    ):
        self._shape, self._below, self._folder = shape, below, folder
        self._base: Callable[[], Iterable[NamedTensor]] | None = base
        self._place: Path | None = None
        self._held: dict[str, str] = {}  # by url: the adapter of a server that has the base

    def send(
        self, tensors: Iterable[NamedTensor] | None, version: str, clients: Sequence[Client], run: Run, deadline: float
    ) -> list[ReplicaError | None]:
        """See :meth:`FileTransfer.send`; the tensors are those of the adapter."""
        if tensors is not None:
            self._write(tensors, version)
        self._unload(clients, run, deadline)
        lacking = [client for client in clients if client.url not in self._held]
        faults: dict[str, ReplicaError | None] = {}
        if lacking:
            base, self._base = (self._base() if self._base is not None else None), None
            sent = self._below.send(base, version, lacking, run, deadline)
            faults = {client.url: fault for client, fault in zip(lacking, sent, strict=True)}
        name = adapter_name(version)
        update = Round(clients, run, deadline, [faults.get(client.url) for client in clients])
        update.order("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(self._place)})
        update.order("/update_weight_version", {"new_version": version})
        for client, fault in zip(clients, update.faults, strict=True):
            if fault is None:
                self._held[client.url] = name
            else:
                self._held.pop(client.url, None)
        return update.faults

    def _unload(self, clients: Sequence[Client], run: Run, deadline: float) -> None:
        """Unload the last adapter; a server that does not know it has lost the base too."""
        for name in sorted(set(self._held.values())):
            having = [client for client in clients if self._held.get(client.url) == name]
            update = Round(having, run, deadline)
            update.order("/v1/unload_lora_adapter", {"lora_name": name})
            for client, fault in zip(having, update.faults, strict=True):
                if fault is not None:
                    del self._held[client.url]

    def _write(self, tensors: Iterable[NamedTensor], version: str) -> None:
        place = self._folder / f"adapter-{version.replace(':', '-')}"
        with durable.replacing_folder(place, flushed=False) as unfinished:
            self._shape.write(unfinished, tensors)
        self._remove()
        self._place = place

    def _remove(self) -> None:
        if self._place is not None:
            shutil.rmtree(self._place, ignore_errors=True)
            self._place = None

    def close(self) -> None:
        """Remove the files of the adapter and of the base."""
        self._remove()
        self._below.close()


def free_port(host: str) -> int:
    """A port that is free at the moment."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
