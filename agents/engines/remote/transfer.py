"""Bringing weights to servers, by their own calls, whatever carries the numbers.

``file``: a folder that trainer and server both see; for CPUs, and where nothing faster reaches. ``nccl``: a broadcast
from the trainer's GPU to a server's GPUs. ``ipc``: memory of a GPU that trainer and server share. The latter two are in
:mod:`gagpo.agents.engines.remote.device_transfer`, those of SGLang in
:mod:`gagpo.agents.engines.remote.kinds.sglang_transfer`.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeVar
from urllib.parse import urlsplit

import torch
from safetensors.torch import save_file

from gagpo.agents.engines.adapters import base_tensors
from gagpo.agents.engines.base import NamedTensor
from gagpo.agents.engines.remote.client import Client
from gagpo.agents.engines.remote.wire import ReplicaError, RequestRefused
from gagpo.agents.engines.weights import WeightsError
from gagpo.agents.precision import dtype_of, name_of
from gagpo.base import durable
from gagpo.base.errors import InvalidArgument

FILE_BYTES = 2**30  # of one file, and so of what is held in memory beside the model

T = TypeVar("T")


class Run(Protocol):
    """Does a coroutine's work in the clients' loop and gives its result."""

    def __call__(self, work: Coroutine[None, None, T]) -> T: ...


class Transfer(Protocol):
    """Carries the weights of one model. keeps: it has those sent last, and can send them once more."""

    keeps: bool

    def send(
        self, tensors: Iterable[NamedTensor] | None, version: str, clients: Sequence[Client], run: Run, deadline: float
    ) -> list[ReplicaError | None]:
        """Bring new weights to servers, within ``deadline`` seconds a step; what went wrong at each of them.

        Each tensor is looked at once, and all of them are, whatever becomes of the servers. None: those sent last once
        more, where they are still at hand. Raises :class:`WeightsError` for tensors of another model.
        """
        ...

    def close(self) -> None:
        """Remove what is left of the weights."""
        ...


class Round:
    """One update of several servers, in steps that all of them take; one that fails at a step is left out of the rest.

    faults: what went wrong at each, None so far for those that are well.
    """

    def __init__(
        self, clients: Sequence[Client], run: Run, deadline: float, faults: Sequence[ReplicaError | None] | None = None
    ):
        self._clients, self._run, self._deadline = clients, run, deadline
        self.faults: list[ReplicaError | None] = list(faults or [None] * len(clients))

    def order(self, path: str, body: Mapping[str, object] | None) -> None:
        """Have all servers do the same."""
        self._all(lambda client: client.order(path, body, self._deadline))

    def start(self) -> None:
        """Begin to take weights; an update that an earlier trainer left open is ended first."""
        self._all(lambda client: _start(client, self._deadline))

    def _all(self, ask: Callable[[Client], Coroutine[None, None, None]]) -> None:
        async def one(place: int) -> None:
            try:
                await ask(self._clients[place])
            except ReplicaError as fault:
                self.faults[place] = fault
            except RequestRefused as error:
                self.faults[place] = ReplicaError(str(error))

        async def at_once() -> None:
            await asyncio.gather(*(one(place) for place, fault in enumerate(self.faults) if fault is None))

        self._run(at_once())


class FolderTransfer(ABC):
    """Writes weights into ``folder``, where the server's workers read them. The last version stays for servers that
    come back; a new one is complete before it has its name."""

    keeps = True

    def __init__(self, model: torch.nn.Module, dtype: str, folder: Path):
        self._shapes = {name: tuple(tensor.shape) for name, tensor in base_tensors(model)}
        self._dtype = dtype_of(dtype)
        self._folder = folder
        self._files: list[Path] = []

    def send(
        self, tensors: Iterable[NamedTensor] | None, version: str, clients: Sequence[Client], run: Run, deadline: float
    ) -> list[ReplicaError | None]:
        """See :class:`Transfer`."""
        if tensors is not None:
            self._write(tensors, version)
        update = Round(clients, run, deadline)
        self._announce(update, version)
        return update.faults

    @abstractmethod
    def _announce(self, update: Round, version: str) -> None:
        """Have the servers of an update read the files, and call them ``version``."""

    def _write(self, tensors: Iterable[NamedTensor], version: str) -> None:
        place = self._folder / version.replace(":", "-")
        names = []
        with durable.replacing_folder(place, flushed=False) as unfinished:
            for number, part in enumerate(_parts(checked(tensors, self._shapes), self._dtype)):  # one is held at a time
                names.append(f"{number:04d}.safetensors")
                save_file(part, str(unfinished / names[-1]), metadata={"format": "pt"})
        for old in {file.parent for file in self._files}:
            shutil.rmtree(old, ignore_errors=True)
        self._files = [place / name for name in names]

    def close(self) -> None:
        for folder in {file.parent for file in self._files}:
            shutil.rmtree(folder, ignore_errors=True)
        self._files = []


class FileTransfer(FolderTransfer):
    """By vLLM's calls of weight transfer, which our own extension in its workers answers file by file."""

    def _announce(self, update: Round, version: str) -> None:
        update.order("/init_weight_transfer_engine", {"init_info": {"parameters": len(self._shapes)}})
        update.start()
        for file in self._files:
            update.order("/update_weights", {"update_info": {"path": str(file)}})
        update.order("/finish_weight_update", {"weight_version": version})


def checked(tensors: Iterable[NamedTensor], shapes: Mapping[str, tuple[int, ...]]) -> Iterator[NamedTensor]:
    """The tensors as they pass; :class:`WeightsError` where they are not those of ``shapes``, each once."""
    missing = dict(shapes)
    for name, tensor in tensors:
        shape = missing.pop(name, None)
        if shape != tuple(tensor.shape):
            known = "is unknown or came twice" if shape is None else f"has shape {shape} in the engine"
            raise WeightsError(f"parameter {name!r} of shape {tuple(tensor.shape)} {known}")
        yield name, tensor
    if missing:
        raise WeightsError(f"{len(missing)} parameters were not sent to the engine, the first {min(missing)!r}")


async def _start(client: Client, deadline: float) -> None:
    """Begin an update; one that an earlier trainer left open is ended first."""
    try:
        await client.order("/start_weight_update", None, deadline)
    except (ReplicaError, RequestRefused):
        with contextlib.suppress(ReplicaError, RequestRefused):
            await client.order("/finish_weight_update", None, deadline)
        await client.order("/start_weight_update", None, deadline)


def _parts(tensors: Iterable[NamedTensor], dtype: torch.dtype) -> Iterator[dict[str, torch.Tensor]]:
    part: dict[str, torch.Tensor] = {}
    held = 0
    for name, tensor in tensors:  # a part is handed on when it is large enough
        part[name] = tensor.detach().to("cpu", dtype).contiguous()
        held += part[name].nbytes
        if held >= FILE_BYTES:
            yield part
            part, held = {}, 0
    if part:
        yield part


def device_transfer(way: str, model: torch.nn.Module, dtype: str, device: torch.device) -> Transfer:
    """What carries weights from a GPU to vLLM's; InvalidArgument where the trainer's ``device`` is none."""
    require_gpu(way, device)
    from gagpo.agents.engines.remote.device_transfer import BroadcastTransfer, SharedMemoryTransfer

    return (SharedMemoryTransfer if way == "ipc" else BroadcastTransfer)(model, dtype, device)


def require_gpu(way: str, device: torch.device) -> None:
    """InvalidArgument where weights cannot leave ``device`` by ``way``."""
    if device.type != "cuda":
        raise InvalidArgument(
            f"engine.options.transfer={way} needs a model on a GPU, it is on {name_of(device)}; use file"
        )


def address_towards(url: str) -> str:
    """This machine's address as the machine of ``url`` sees it; nothing is sent."""
    parts = urlsplit(url)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((parts.hostname, parts.port or 80))
        return str(probe.getsockname()[0])


def free_port(host: str) -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
