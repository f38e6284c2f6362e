"""Send a LoRA adapter to vLLM servers apart from the weights below it.

The base is sent once, and the adapter with every update: for Qwen2.5-7B and rank 32 these are 15 and 0.3 GB.
A server that rejects the adapter gets all weights with the adapter merged, from then on.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from gagpo.agents.engines.peers import Peers, from_first_on_machine
from gagpo.agents.engines.remote.client import Client, ReplicaError
from gagpo.agents.engines.remote.transfer import Run, Transfer, at_all
from gagpo.base import durable
from gagpo.base.tables import ascii_only
from gagpo.model.adapters import AdapterForm
from gagpo.model.weights import NamedTensor, PolicyTensors, checked

LOG = logging.getLogger("gagpo")

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Values of vLLM's ``--max-lora-rank``."""


def max_rank(rank: int) -> int | None:
    """The smallest of vLLM's limits that admits an adapter of ``rank``; None if it is too large for all."""
    return next((limit for limit in RANKS if limit >= rank), None)


@dataclass
class _Server:
    """What a server holds.

    adapter: name of the adapter on top of the base; None if it does not have the base.
    merges: it rejected an adapter, so it gets merged weights.
    """

    adapter: str | None = None
    merges: bool = False


class AdapterTransfer:
    """A :class:`gagpo.agents.engines.remote.transfer.Transfer` of an adapter alone, for tensors of a policy.

    Each update gives the adapter a new name, which requests use, so a server without it rejects them. A server that
    does not have its last adapter was restarted, and gets the base again.

    whole: brings the base, and merged weights.
    folder: where the first rank of the machine writes the adapter; None on its other ranks.
    deadline: seconds for each step of a server.
    """

    def __init__(
        self, form: AdapterForm, whole: Transfer, folder: Path | None, peers: Peers, run: Run, deadline: float
    ):
        self._form = form
        self._whole = whole
        self._folder = folder
        self._peers = peers
        self._run = run
        self._deadline = deadline
        self._written: Path | None = None
        self._servers: dict[str, _Server] = {}  # by url
        self.bytes = 0

    @property
    def has_base(self) -> bool:
        """Whether every server holds the base below the adapter."""
        return all(server.adapter is not None for server in self._servers.values())

    def update(
        self, tensors: Iterable[NamedTensor], version: str, clients: Sequence[Client]
    ) -> list[ReplicaError | None]:
        """See :class:`gagpo.agents.engines.remote.transfer.Transfer`. Other tensors than a policy's are sent whole."""
        for client in clients:
            self._servers.setdefault(client.url, _Server())
        if not isinstance(tensors, PolicyTensors) or tensors.adapter_form is None:
            return self._send_merged(tensors, version, clients)
        faults: dict[str, ReplicaError | None] = dict.fromkeys((client.url for client in clients), None)
        loading = [client for client in clients if not self._servers[client.url].merges]
        self._unload(loading)
        self._send_base(tensors, version, loading, faults)
        self._send_adapter(tensors, version, [client for client in loading if faults[client.url] is None], faults)
        merging = [client for client in clients if self._servers[client.url].merges]
        if any(self._peers.gathered(bool(merging))):
            merged = self._whole.update(tensors, version, merging)
            faults |= {client.url: fault for client, fault in zip(merging, merged, strict=True)}
            self.bytes += self._whole.bytes
        return [faults[client.url] for client in clients]

    def _send_merged(
        self, tensors: Iterable[NamedTensor], version: str, clients: Sequence[Client]
    ) -> list[ReplicaError | None]:
        """Send all weights; no server has the base afterwards."""
        self._unload(clients)
        for client in clients:
            client.adapter = None
            self._servers[client.url].adapter = None
        faults = self._whole.update(tensors, version, clients)
        self.bytes = self._whole.bytes
        return faults

    def _unload(self, clients: Sequence[Client]) -> None:
        """Unload the last adapter, since a server has room for one; a server without it has lost the base too."""
        holding = [client for client in clients if self._servers[client.url].adapter is not None]

        async def unload(client: Client) -> None:
            name = {"lora_name": self._servers[client.url].adapter}
            await client.post("/v1/unload_lora_adapter", name, self._deadline)

        for client, fault in zip(holding, self._run(at_all(holding, unload)), strict=True):
            if fault is not None:
                self._servers[client.url].adapter = None

    def _send_base(
        self, tensors: PolicyTensors, version: str, clients: Sequence[Client], faults: dict[str, ReplicaError | None]
    ) -> None:
        """Send the base to servers without it, if a server of any rank has none."""
        lacking = [client for client in clients if self._servers[client.url].adapter is None]
        self.bytes = 0
        if not any(self._peers.gathered(bool(lacking))):
            return
        # Another name than the version: a server with the base alone must not answer for the policy.
        sent = self._whole.update(tensors.base(), f"{version}:base", lacking)
        faults |= {client.url: fault for client, fault in zip(lacking, sent, strict=True)}
        self.bytes = self._whole.bytes

    def _send_adapter(
        self, tensors: PolicyTensors, version: str, clients: Sequence[Client], faults: dict[str, ReplicaError | None]
    ) -> None:
        """Have servers load the adapter; one that answers and does not load it is marked to get merged weights."""
        folder = self._shared(tensors, version)
        name = f"gagpo-{version.replace(':', '-')}"

        async def load(client: Client) -> None:
            await client.post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": folder}, self._deadline)
            await client.post("/update_weight_version", {"new_version": version}, self._deadline)

        for client, fault in zip(clients, self._run(at_all(clients, load)), strict=True):
            server = self._servers[client.url]
            server.adapter = name if fault is None else None
            client.adapter = server.adapter
            if fault is not None and self._is_healthy(client):
                server.merges = True
                reason = ascii_only(str(fault))[:300]
                LOG.warning("the vLLM server %s gets the adapter merged into all weights: %s", client.url, reason)
            else:
                faults[client.url] = fault

    def _is_healthy(self, client: Client) -> bool:
        """Whether a server that failed to load an adapter still answers."""
        (fault,) = self._run(at_all([client], lambda client: client.healthy(self._deadline)))
        return fault is None

    def _shared(self, tensors: PolicyTensors, version: str) -> str:
        """The folder with the adapter, once the first rank of this machine has written it."""
        error: Exception | None = None
        try:
            content = dict(checked(tensors.adapter(), self._form.shapes))
            if self._folder is not None:
                self._write(content, self._folder / f"adapter-{version.replace(':', '-')}")
        except Exception as caught:
            error = caught
        folder, self.bytes = from_first_on_machine(self._peers, error, [str(self._written), self.bytes])
        return str(folder)

    def _write(self, content: dict[str, torch.Tensor], folder: Path) -> None:
        with durable.replacing_folder(folder, flushed=False) as unfinished:
            self._form.write_for_engine(unfinished, content)
        self._remove()
        self._written = folder
        self.bytes += sum(file.stat().st_size for file in folder.glob("*.safetensors"))

    def release(self) -> None:
        """Free what the base and merged weights took. Those of the adapter stay: vLLM may read them again."""
        self._whole.release()

    def _remove(self) -> None:
        written, self._written = self._written, None
        if written is not None:
            durable.remove(written)

    def close(self) -> None:
        self._remove()
        self._whole.close()
