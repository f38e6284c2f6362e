"""Bringing weights to servers, by vLLM's own calls (init, start, update, finish) whatever carries the numbers.

``file``: a folder that trainer and server both see; for CPUs, and where nothing faster reaches. ``nccl``: a broadcast
from the trainer's GPU to a server's GPUs. ``ipc``: memory of a GPU that trainer and server share. The latter two are
vLLM's backends, driven by vLLM's trainer side.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import threading
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

import torch
from safetensors.torch import save_file

from gagpo.agents.engines.adapters import base_tensors
from gagpo.agents.engines.base import NamedTensor
from gagpo.agents.engines.remote.client import Client
from gagpo.agents.engines.remote.wire import MalformedAnswer, ReplicaError, ReplicaUnreachable, RequestRefused
from gagpo.agents.engines.weights import WeightsError
from gagpo.agents.precision import dtype_of, name_of
from gagpo.envs import durable
from gagpo.envs.errors import InvalidArgument, MissingPackage

KINDS = ("file", "nccl", "ipc")
FILE_BYTES = 2**30  # of one file, and so of what is held in memory beside the model

T = TypeVar("T")


class Run(Protocol):
    """Does a coroutine's work in the clients' loop and gives its result."""

    def __call__(self, work: Coroutine[None, None, T]) -> T: ...


class Transfer(Protocol):
    """Carries the weights of one model."""

    def take(self, tensors: Iterable[NamedTensor], version: str) -> None:
        """Look at new weights, each tensor once; :class:`WeightsError` for those of another model."""
        ...

    def send(self, clients: Sequence[Client], run: Run, deadline: float) -> list[ReplicaError | None]:
        """Bring what was taken last to servers, within ``deadline`` seconds each; what went wrong at each of them."""
        ...

    def close(self) -> None:
        """Remove what is left of the weights."""
        ...


class FileTransfer:
    """Writes weights into ``folder``, where the server's workers read them. The last version stays for servers that
    come back; a new one is complete before it has its name."""

    def __init__(self, model: torch.nn.Module, dtype: str, folder: Path):
        self._shapes = {name: tuple(tensor.shape) for name, tensor in base_tensors(model)}
        self._dtype = dtype_of(dtype)
        self._folder = folder
        self._version = ""
        self._files: list[Path] = []

    def take(self, tensors: Iterable[NamedTensor], version: str) -> None:
        place = self._folder / version.replace(":", "-")
        names = []
        with durable.replacing_folder(place, flushed=False) as unfinished:
            for number, part in enumerate(_parts(self._checked(tensors), self._dtype)):  # one is held at a time
                names.append(f"{number:04d}.safetensors")
                save_file(part, str(unfinished / names[-1]))
        for old in {file.parent for file in self._files}:
            shutil.rmtree(old, ignore_errors=True)
        self._files, self._version = [place / name for name in names], version

    def _checked(self, tensors: Iterable[NamedTensor]) -> Iterator[NamedTensor]:
        missing = dict(self._shapes)
        for name, tensor in tensors:  # each is checked as it passes
            shape = missing.pop(name, None)
            if shape != tuple(tensor.shape):
                known = "is unknown or came twice" if shape is None else f"has shape {shape} in the engine"
                raise WeightsError(f"parameter {name!r} of shape {tuple(tensor.shape)} {known}")
            yield name, tensor
        if missing:
            raise WeightsError(f"{len(missing)} parameters were not sent to the engine, the first {min(missing)!r}")

    def send(self, clients: Sequence[Client], run: Run, deadline: float) -> list[ReplicaError | None]:
        async def all_at_once() -> list[ReplicaError | None]:
            return list(await asyncio.gather(*(self._send(client, deadline) for client in clients)))

        return run(all_at_once())

    async def _send(self, client: Client, deadline: float) -> ReplicaError | None:
        info = {"parameters": len(self._shapes)}
        try:
            await client.order("/init_weight_transfer_engine", {"init_info": info}, deadline)
            await _start(client, deadline)
            for file in self._files:
                await client.order("/update_weights", {"update_info": {"path": str(file)}}, deadline)
            await client.order("/finish_weight_update", {"weight_version": self._version}, deadline)
        except ReplicaError as fault:
            return fault
        except RequestRefused as error:
            return ReplicaError(str(error))
        return None

    def close(self) -> None:
        for folder in {file.parent for file in self._files}:
            shutil.rmtree(folder, ignore_errors=True)
        self._files = []


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


class DeviceTransfer:
    """vLLM's own trainer side, ``nccl`` or ``ipc``, with one connection for each server.

    The tensors are read once for every server, from the iterable that was taken; so that is kept, and must be one that
    can be read again (a model's ``named_tensors`` made anew).
    """

    def __init__(self, model: torch.nn.Module, dtype: str, kind: str):
        try:
            from vllm.distributed.weight_transfer import base, clients, factory
        except ImportError as error:
            raise MissingPackage(
                f"engine.options.transfer={kind} needs vLLM in the trainer's environment too ({error}); install the "
                "extra vllm, or use transfer=file"
            ) from None
        self._vllm = (base, clients, factory)
        self._kind, self._dtype = kind, dtype_of(dtype)
        self._device = next(model.parameters()).device
        self._metadata = [
            base.ParamMeta(name, self._dtype, tuple(tensor.shape)) for name, tensor in base_tensors(model)
        ]
        self._tensors: list[NamedTensor] = []
        self._version = ""
        self._engines: dict[str, Any] = {}  # by url

    def take(self, tensors: Iterable[NamedTensor], version: str) -> None:
        """Keep the tensors, not copies: they are the trainer's own parameters, but for merged or gathered ones."""
        self._tensors, self._version = list(tensors), version
        sent = [(name, tuple(tensor.shape)) for name, tensor in self._tensors]
        if sent != [(meta.name, meta.shape) for meta in self._metadata]:
            raise WeightsError("the tensors that were sent are not the parameters of the engine's model, in its order")

    def send(self, clients: Sequence[Client], run: Run, deadline: float) -> list[ReplicaError | None]:
        """One server after another, so that one that fails takes no other along."""
        return [self._send(client, run, deadline) for client in clients]

    def _send(self, client: Client, run: Run, deadline: float) -> ReplicaError | None:
        """In a thread, since a broadcast to a server that died in the middle of it never returns."""
        failure: list[BaseException] = []

        def work() -> None:
            try:
                if client.url not in self._engines:
                    self._engines[client.url] = self._connect(client, run, deadline)
                self._engines[client.url].send_weights()
            except BaseException as error:
                failure.append(error)

        thread = threading.Thread(target=work, name=f"weights to {client.url}", daemon=True)
        thread.start()
        thread.join(deadline)
        if thread.is_alive() or failure:
            self._engines.pop(client.url, None)
            said = f"took more than {deadline:g} s" if thread.is_alive() else f"failed: {failure[0]}"
            return ReplicaUnreachable(f"sending weights to {client.url} {said}")
        try:
            run(client.order("/update_weight_version", {"new_version": self._version}, deadline))
        except (ReplicaError, RequestRefused) as error:
            return ReplicaError(str(error))
        return None

    def _connect(self, client: Client, run: Run, deadline: float) -> Any:
        base, clients, factory = self._vllm
        transfer = self

        class NamedWeights(base.WeightSource):  # type: ignore[misc, name-defined]
            def metadata(self) -> list[object]:
                return transfer._metadata

            def __iter__(self) -> Iterator[NamedTensor]:
                for name, tensor in transfer._tensors:
                    yield name, tensor.detach().to(transfer._device, transfer._dtype)

        control = clients.HTTPVLLMWeightSyncClient(client.url, timeout=deadline)
        return factory.WeightTransferTrainerFactory.trainer_init(
            self._init_info(client, run, deadline), client=control, source=NamedWeights()
        )

    def _init_info(self, client: Client, run: Run, deadline: float) -> object:
        if self._kind == "ipc":
            from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo

            return IPCTrainerInitInfo(rank=0, packed=True)
        from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

        workers = run(client.look_up("/get_world_size", deadline)).get("world_size")
        if type(workers) is not int or not 1 <= workers <= 4096:
            raise MalformedAnswer(f"{client.url} says that it has {workers!r:.40} workers")
        address, port = address_towards(client.url), free_port("")
        return NCCLTrainerInitInfo(rank=0, master_address=address, master_port=port, world_size=1 + workers)

    def close(self) -> None:
        for engine in self._engines.values():
            with contextlib.suppress(Exception):
                engine.shutdown()
        self._engines = {}
        self._tensors = []


def make_transfer(kind: str, model: torch.nn.Module, dtype: str, folder: Path) -> Transfer:
    """The transfer called ``kind``; InvalidArgument where the trainer's device cannot do it."""
    if kind not in KINDS:
        raise InvalidArgument(f"engine.options.transfer is one of {', '.join(KINDS)}, got {kind!r}")
    device = next(model.parameters()).device
    if kind == "file":
        return FileTransfer(model, dtype, folder)
    if device.type != "cuda":
        raise InvalidArgument(
            f"engine.options.transfer={kind} needs a model on a GPU, it is on {name_of(device)}; use file"
        )
    return DeviceTransfer(model, dtype, kind)


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
