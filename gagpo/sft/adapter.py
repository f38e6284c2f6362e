"""The adapter of supervised fine-tuning with ``sft.lora``: where it starts, and where it is kept.

A model folder holds the merged model, which every command reads, and the adapter alone in its subfolder ``adapter``:
SFT continues an adapter, and a shipped model may be one.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase

from gagpo.base import durable
from gagpo.model import adapters
from gagpo.model.loading import load_model
from gagpo.model.pretrained import folder_of
from gagpo.settings import SftSettings
from gagpo.sft.small_model import save_folder

FOLDER = "adapter"
ALPHA = 32.0  # of a new adapter: its output is scaled by alpha / rank


@dataclass(frozen=True)
class Trained:
    """A model in training. base: of its adapter; None if all weights are trained."""

    model: torch.nn.Module
    base: adapters.Base | None = None

    def save(self, tokenizer: PreTrainedTokenizerBase, folder: Path, texts: Mapping[str, str]) -> None:
        """Write the model's folder: merged, with the adapter in a subfolder. texts: of further files, by name."""
        base = self.base
        if base is None:
            save_folder(self.model, tokenizer, folder, texts)
            return
        merged = adapters.merge(copy.deepcopy(self.model))
        save_folder(
            merged, tokenizer, folder, texts, more=lambda place: adapters.save(self.model, base, place / FOLDER)
        )


def keep_base(sft: SftSettings, work: Path) -> None:
    """Copy the base's adapter to ``work`` if SFT is to continue it: if it has the rank that is to be trained."""
    durable.remove(work / FOLDER)  # of an interrupted start from another base
    if sft.base_model is None or sft.lora is None:
        return
    source = adapter_of(sft.base_model)
    if source is None or adapters.config_of(source).rank != sft.lora:
        return
    with durable.replacing_folder(work / FOLDER) as folder_under_way:
        for name in (adapters.CONFIG, adapters.WEIGHTS, adapters.BASE):
            if (source / name).exists():
                shutil.copy(source / name, folder_under_way / name)


def adapter_of(model: str) -> Path | None:
    """The adapter of a model: the folder itself or a starter's, or the subfolder that SFT wrote; None without one."""
    folder = Path(folder_of(model))
    return next((candidate for candidate in (folder, folder / FOLDER) if adapters.is_adapter(candidate)), None)


def with_adapter(model: torch.nn.Module, sft: SftSettings, work: Path, device: str) -> Trained:
    """The model to train: with a new adapter, with the one that ``work`` keeps, or without ``sft.lora`` as it is."""
    if sft.lora is None:
        return Trained(model)
    if adapters.is_adapter(work / FOLDER):
        return read(work / FOLDER, device)
    assert sft.base_model is not None  # checked with the settings
    base = adapters.Base.of(sft.base_model, model)
    adapters.inject(model, sft.lora, ALPHA, adapters.ALL_LINEAR, sft.seed)
    return Trained(model, base)


def stored(folder: Path, device: str) -> Trained:
    """A model that :meth:`Trained.save` wrote, its adapter not merged."""
    if adapters.is_adapter(folder / FOLDER):
        return read(folder / FOLDER, device)
    return Trained(load_model(str(folder)))


def read(folder: Path, device: str) -> Trained:
    """The adapter of ``folder`` in its base model, not merged."""
    name, revision = adapters.base_of(folder)
    model = load_model(name, device=device, revision=revision)
    base = adapters.Base.of(name, model)
    adapters.read_into(model, folder)
    return Trained(model, base)
