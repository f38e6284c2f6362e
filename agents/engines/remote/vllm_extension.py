"""A backend for vLLM's weight transfer that reads safetensors files, inside a vLLM server's workers.

vLLM imports this module in every worker (``--worker-extension-cls``) before it creates the transfer engine of
``--weight-transfer-config``. The backend needs neither GPU nor process group: each update names a file.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from gagpo.agents.engines.remote.transfer import BACKEND


@dataclass
class FileInit(WeightTransferInitInfo):
    """parameters: number of the model's tensors."""

    parameters: int


@dataclass
class FileUpdate(WeightTransferUpdateInfo):
    """path: a safetensors file with part of the model."""

    path: str


class FileReceiver(WeightTransferEngine[FileInit, FileUpdate]):
    """Loads the files of an update; an incomplete update fails at its end."""

    init_info_cls = FileInit
    update_info_cls = FileUpdate

    def init_transfer_engine(self, init_info: FileInit) -> None:
        self.parameters = init_info.parameters

    def start_weight_update(self) -> None:
        self.loaded = 0
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, object]) -> None:
        """Load one file; vLLM's own method also waits for an accelerator, which may not exist."""
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: FileUpdate) -> None:
        path = Path(update_info.path)
        with safe_open(path, framework="pt") as file:
            names = list(file.keys())
            self.model.load_weights((name, file.get_tensor(name)) for name in names)
        self.loaded += len(names)

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)
        _repack_heads(self.model)
        if self.loaded != self.parameters:
            raise RuntimeError(f"{self.loaded} of {self.parameters} tensors arrived")

    def shutdown(self) -> None:
        """Do nothing: no memory is held between updates."""


def _repack_heads(model: torch.nn.Module) -> None:
    """Rebuild what the output layers of vLLM's model derive from their weights.

    Reloading does so for layers that receive weights. An output layer tied to the input embedding receives none, and on
    a CPU its packed copy would keep the old ones.
    """
    for module in model.modules():
        if isinstance(module, ParallelLMHead):
            module.quant_method.process_weights_after_loading(module)


class WorkerExtension:
    """Named on vLLM's command line, so that workers import this module."""


if BACKEND not in WeightTransferEngineFactory._registry:
    WeightTransferEngineFactory.register_engine(BACKEND, FileReceiver)
