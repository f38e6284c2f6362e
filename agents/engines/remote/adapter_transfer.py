"""Bringing an adapter to servers that take one: its own tensors with each update, the weights below them once.

The adapter lies in a folder as peft writes it, under a name of its own for each update; requests name it, so that a
server that does not have it refuses them. A server has the base as soon as it has taken it; one that no longer knows
the adapter that it had was started again, and is given both.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from gagpo.agents.engines.adapters import AdapterShape
from gagpo.agents.engines.base import NamedTensor
from gagpo.agents.engines.remote.client import Client
from gagpo.agents.engines.remote.kinds.base import ServerKind
from gagpo.agents.engines.remote.transfer import Round, Run, Transfer, checked
from gagpo.agents.engines.remote.wire import ReplicaError
from gagpo.agents.engines.vllm_arguments import MOST_RANK
from gagpo.base import durable
from gagpo.base.errors import InvalidArgument


def adapter_name(version: str) -> str:
    """What servers know the adapter of these weights by."""
    return f"gagpo-{version.replace(':', '-')}"


def sends_adapter(send: str, adapter: AdapterShape | None, transfer: str | None, alone: bool) -> bool:
    """Whether an adapter is sent in place of all weights. alone: the model is whole in this process."""
    if send not in ("auto", "adapter", "weights"):
        raise InvalidArgument(f"engine.options.send is auto, adapter or weights, got {send!r}")
    if send == "adapter":
        if adapter is None:
            raise InvalidArgument(
                "engine.options.send=adapter needs an adapter that is trained here: set lora, or "
                "send=weights; with rollout.ahead one process only"
            )
        if transfer not in (None, "file"):
            raise InvalidArgument(f"engine.options.send=adapter goes by file, and transfer is {transfer!r}")
        return True
    # Ranks cannot find out together that a server takes none, so only who is alone tries.
    return send == "auto" and adapter is not None and alone and transfer in (None, "file") and adapter.rank <= MOST_RANK


class AdapterTransfer:
    """Sends what is under an adapter by ``below``, and the adapter itself as files in ``folder``.

    base: gives the weights without the adapter, for the first update.
    """

    keeps = True

    def __init__(
        self,
        shape: AdapterShape,
        below: Transfer,
        base: Callable[[], Iterable[NamedTensor]],
        kind: ServerKind,
        folder: Path,
    ):
        self._shape, self._below, self._kind, self._folder = shape, below, kind, folder
        self._base: Callable[[], Iterable[NamedTensor]] | None = base
        self._place: Path | None = None
        self._held: dict[str, str] = {}  # by url: the adapter that a server has, over the base

    def send(
        self, tensors: Iterable[NamedTensor] | None, version: str, clients: Sequence[Client], run: Run, deadline: float
    ) -> list[ReplicaError | None]:
        """See :class:`gagpo.agents.engines.remote.transfer.Transfer`; the tensors are those of the adapter."""
        if tensors is not None:
            self._write(tensors, version)
        self._forget_old(clients, run, deadline)
        lacking = [client for client in clients if client.url not in self._held]
        faults: dict[str, ReplicaError | None] = {}
        if lacking or self._base is not None:  # the base leaves every rank at the same update
            base, self._base = (self._base() if self._base is not None else None), None
            sent = self._below.send(base, version, lacking, run, deadline)
            faults = {client.url: fault for client, fault in zip(lacking, sent, strict=True)}
        name = adapter_name(version)
        update = Round(clients, run, deadline, [faults.get(client.url) for client in clients])
        update.order(*self._kind.load_adapter(name, self._place or self._folder))
        update.order(*self._kind.name_weights(version))
        for client, fault in zip(clients, update.faults, strict=True):
            if fault is None:
                self._held[client.url] = name
            else:
                self._held.pop(client.url, None)
        return update.faults

    def _forget_old(self, clients: Sequence[Client], run: Run, deadline: float) -> None:
        """Have servers let go of the adapter that they have; one that does not know it has lost the base as well."""
        for name in sorted(set(self._held.values())):
            having = [client for client in clients if self._held.get(client.url) == name]
            update = Round(having, run, deadline)
            update.order(*self._kind.unload_adapter(name))
            for client, fault in zip(having, update.faults, strict=True):
                if fault is not None:
                    del self._held[client.url]

    def forget(self) -> None:
        """No server has any weights: their memory was freed."""
        self._held.clear()

    def _write(self, tensors: Iterable[NamedTensor], version: str) -> None:
        place = self._folder / f"adapter-{version.replace(':', '-')}"
        with durable.replacing_folder(place, flushed=False) as unfinished:
            held = {
                name: tensor.detach().to("cpu").contiguous() for name, tensor in checked(tensors, self._shape.tensors)
            }
            self._shape.write(unfinished, held)
        self._remove()
        self._place = place

    def _remove(self) -> None:
        if self._place is not None:
            shutil.rmtree(self._place, ignore_errors=True)
            self._place = None

    def close(self) -> None:
        """Remove adapter and weights from the disk."""
        self._remove()
        self._below.close()
