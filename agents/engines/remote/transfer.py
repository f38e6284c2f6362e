"""Send weights to vLLM servers as safetensors files, in a folder that trainer and servers both see.

On one machine a folder in memory (``/dev/shm``) is fast.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file

from gagpo.agents.engines.remote.client import Client, ReplicaError
from gagpo.base import durable
from gagpo.model.adapters import base_tensors
from gagpo.model.dtypes import dtype_of
from gagpo.model.weights import NamedTensor, checked

BACKEND = "gagpo_file"  # name of this transfer among vLLM's own
FILE_BYTES = 2**30  # of one file, which is held in memory


async def _start(client: Client, deadline: float) -> None:
    """Start a transfer, after ending one that an earlier trainer left open."""
    try:
        await client.post("/start_weight_update", None, deadline)
    except ReplicaError:
        with contextlib.suppress(ReplicaError):
            await client.post("/finish_weight_update", None, deadline)
        await client.post("/start_weight_update", None, deadline)


class FileTransfer:
    """Writes all weights into ``folder``, from which an extension in the servers' workers reads them.

    A new version is complete before it gets its name. The last version is kept for servers that restart.

    bytes: size of the last version.
    """

    def __init__(self, model: torch.nn.Module, dtype: str, folder: Path):
        self._shapes = {name: tuple(tensor.shape) for name, tensor in base_tensors(model)}
        self._dtype = dtype_of(dtype)
        self._folder = folder
        self._files: list[Path] = []
        self.bytes = 0

    async def send(self, client: Client, version: str, deadline: float) -> None:
        """Have a server load the last version. deadline: seconds for each step. Raises: ReplicaError.

        Every call returns when all workers of the server have finished that step. The version is named in the last
        one: from then on the server's answers carry it, and the client rejects answers that do not.
        """
        await client.post("/init_weight_transfer_engine", {"init_info": {"parameters": len(self._shapes)}}, deadline)
        await _start(client, deadline)
        for file in self._files:
            await client.post("/update_weights", {"update_info": {"path": str(file)}}, deadline)
        await client.post("/finish_weight_update", {"weight_version": version}, deadline)

    def write(self, tensors: Iterable[NamedTensor], version: str) -> None:
        """Write a version, for :meth:`send`. Raises: WeightsError for tensors of another model."""
        folder = self._folder / version.replace(":", "-")
        names: list[str] = []
        num_bytes = 0
        with durable.replacing_folder(folder, flushed=False) as unfinished:
            for number, part in enumerate(_parts(checked(tensors, self._shapes), self._dtype)):
                names.append(f"{number:04d}.safetensors")
                num_bytes += sum(tensor.nbytes for tensor in part.values())
                save_file(part, str(unfinished / names[-1]), metadata={"format": "pt"})
        self.close()
        self._files = [folder / name for name in names]
        self.bytes = num_bytes

    def close(self) -> None:
        """Remove the files."""
        for folder in {file.parent for file in self._files}:
            shutil.rmtree(folder, ignore_errors=True)
        self._files = []


def _parts(tensors: Iterable[NamedTensor], dtype: torch.dtype) -> Iterator[dict[str, torch.Tensor]]:
    """Tensors on the CPU in groups of about :data:`FILE_BYTES`."""
    part: dict[str, torch.Tensor] = {}
    num_bytes = 0
    for name, tensor in tensors:
        part[name] = tensor.detach().to("cpu", dtype).contiguous()
        num_bytes += part[name].nbytes
        if num_bytes >= FILE_BYTES:
            yield part
            part = {}  # the writer has the old one; only one group is in memory at a time
            num_bytes = 0
    if part:
        yield part
