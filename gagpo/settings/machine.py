"""What settings ask of the machine they are used on: asked when a run begins, so that they can be read anywhere."""

from __future__ import annotations

import os
import re
from importlib.metadata import version
from pathlib import Path

from gagpo.agents.starters import folder_of
from gagpo.settings.run import RunSettings, SettingsError


def require_machine(settings: RunSettings) -> None:
    """SettingsError where device or threads cannot be had here."""
    require_threads(settings.threads)
    require_device(settings.device)


def require_device(name: str) -> None:
    """SettingsError when torch cannot compute on the device called ``name`` here."""
    kind = name.partition(":")[0]
    if kind == "cpu":
        return
    reason = ""
    if kind == "cuda" and version("torch").endswith("+cpu"):  # said by the metadata, in place of a second of importing
        reason = "Torch not compiled with CUDA enabled"
    else:
        import torch

        try:
            torch.empty(0, device=name)
        except (RuntimeError, AssertionError, NotImplementedError) as error:
            reason = str(error).strip().splitlines()[0][:200]
    if reason:
        raise SettingsError(f"device {name!r} cannot be used here ({reason}); set device=cpu")


def require_threads(count: int) -> None:
    """SettingsError for more threads than cores: each takes a stack, and a process without room for one dies."""
    cores = os.cpu_count() or 1
    if count > cores:
        raise SettingsError(f"threads={count} and this machine has {cores} cores; threads=0 takes one per core")


def require_model(model: str) -> None:
    """SettingsError for a model that cannot be one: no starter, no folder with a config, and no name of the hub's."""
    folder = Path(folder_of(model))
    ours = folder.parts[:1] in (("runs",), ("data",)) or (folder.parent.is_dir() and folder.parent != Path())
    if folder.is_dir():
        if not any((folder / name).is_file() for name in ("config.json", "adapter_config.json")):
            raise SettingsError(f"{model} is neither a run (no config.yaml) nor a model folder (no config.json)")
    elif folder.exists():
        raise SettingsError(f"{model} is a file: name the folder of a run or of a model")
    elif ours or not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", model):
        raise SettingsError(
            f"there is no run and no model {model}: the folder does not exist (`gagpo list` names those at hand)"
        )
