"""Requirements of settings on the machine, checked when a run begins: settings can be read on any machine."""

from __future__ import annotations

import os
from importlib.metadata import version
from pathlib import Path

from gagpo.base.hub import NAME, why_unavailable
from gagpo.base.nearest import nearest
from gagpo.envs.arguments import require_arguments
from gagpo.model.pretrained import folder_of
from gagpo.settings.formats import is_open, with_formats
from gagpo.settings.resolve import resolve
from gagpo.settings.run import RunSettings, SettingsError
from gagpo.trackers import require_trackers


def require_machine(settings: RunSettings) -> None:
    """Raise GagpoError if this machine lacks the device, the threads or a package that the run needs."""
    require_threads(settings.threads)
    require_device(settings.device)
    require_environments(settings)
    require_trackers(settings.trackers)
    settings.engine.options.require_machine()


def require_environments(settings: RunSettings) -> None:
    """Raise GagpoError if an environment is unknown, lacks a package, or has an unknown or missing argument."""
    for env in settings.all_environments:
        require_arguments(env.environment.id, env.environment.kwargs)


def require_device(name: str) -> None:
    """Raise SettingsError if torch cannot compute on the device ``name``."""
    device_type = name.partition(":")[0]
    if device_type == "cpu":
        return
    reason = ""
    if device_type == "cuda" and version("torch").endswith("+cpu"):  # without the import, which takes a second
        reason = "Torch not compiled with CUDA enabled"
    else:
        import torch

        try:
            torch.empty(0, device=name)
        except (RuntimeError, AssertionError, NotImplementedError) as error:
            reason = str(error).strip().splitlines()[0][:200]
    if reason:
        raise SettingsError(f"device {name!r} cannot be used here ({reason})", advice="set device=cpu")


def require_threads(count: int) -> None:
    """Raise SettingsError for more threads than cores."""
    cores = os.cpu_count() or 1
    if count > cores:
        raise SettingsError(
            f"threads={count} is more than this machine's {cores} cores",
            key="threads",
            advice="threads=0 uses one per core",
        )


def require_model(model: str) -> None:
    """Raise SettingsError if ``model`` is neither a starter nor a model folder nor a possible hub name."""
    folder = Path(folder_of(model))
    is_path = folder.parts[:1] in (("runs",), ("data",)) or (folder.parent.is_dir() and folder.parent != Path())
    if folder.is_dir():
        if not any((folder / name).is_file() for name in ("config.json", "adapter_config.json")):
            raise SettingsError("is neither a run (no config.yaml) nor a model folder (no config.json)", where=model)
    elif folder.exists():
        raise SettingsError("is a file", where=model, advice="name the folder of a run or of a model")
    elif is_path or not NAME.fullmatch(model):
        raise SettingsError(
            f"there is no run or model {model}: the folder does not exist",
            advice=f"{_near(folder)}`gagpo list` shows those that exist",
        )
    elif reason := why_unavailable(model):
        raise SettingsError(
            f"there is no run or model folder {model}", advice=f"{_near(folder)}as a hub name, {reason}"
        )


def _near(folder: Path) -> str:
    """The folders with similar names, below the innermost parent that exists."""
    ancestor = next(parent for parent in folder.parents if parent.is_dir())
    patterns = ("*",) if ancestor == folder.parent else ("*", "*/*")
    folders = [str(path) for pattern in patterns for path in ancestor.glob(pattern) if path.is_dir()]
    near = nearest(str(folder), folders, cutoff=0.7)
    return f"nearest: {', '.join(near)}; " if near else ""


def with_machine_formats(settings: RunSettings, width: int | None = None) -> RunSettings:
    """The settings with the number formats that this machine computes fast wherever they say ``auto``.

    For commands that make no run; a run stores what was chosen, see :meth:`gagpo.runs.run_folder.RunFolder`.

    width: the model's hidden size, if known.
    """
    if not is_open(settings):
        return settings
    from gagpo.model.chosen_format import formats_for  # torch takes a second to import

    chosen = formats_for(settings.device, width)
    return resolve(with_formats(settings, chosen.training, chosen.sampling))
