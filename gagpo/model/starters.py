"""Models that come with the package: ``starter:NAME`` wherever a model is named.

A starter is a Hugging Face folder with half-precision weights and two more files: ``recipe.yaml``, the settings it was
made with, and ``manifest.json``, its results, the commands that made it, and the SHA-256 of every other file. Large
files are packed as ``FILE.xz``, and unpacked to ``$GAGPO_DATA/unpacked`` when the starter is first used.

A starter may be a LoRA adapter in peft's format instead. Its manifest then names the pretrained model that it is added
to whenever it is loaded; ``gagpo.model.pretrained`` fetches that model once.
"""

from __future__ import annotations

import hashlib
import json
import lzma
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gagpo.base import durable, lock, manifest
from gagpo.base.errors import InvalidArgument
from gagpo.base.folders import data_folder

PREFIX = "starter:"
FORMAT = "gagpo starter 1"
MANIFEST = manifest.NAME
SETTINGS = "recipe.yaml"
PACKED = ".xz"
LOCK_SECONDS = 60.0  # another process may be unpacking the same starter, which takes a second


@dataclass(frozen=True)
class Starter:
    """folder: its packed files. manifest: contents of ``manifest.json``."""

    name: str
    folder: Path
    manifest: dict[str, Any]

    @property
    def settings(self) -> Path:
        """The settings of the run that made it, YAML."""
        return self.folder / SETTINGS

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(path.stat().st_size for path in self.folder.iterdir() if path.is_file())

    @property
    def base(self) -> str | None:
        """The pretrained model that an adapter is added to; None for a whole model."""
        return self.manifest.get("base")


def root() -> Path:
    """The folder that holds a folder per starter."""
    return Path(__file__).parents[1] / "starters"


def names() -> list[str]:
    """The names of all starters, sorted."""
    return sorted(path.parent.name for path in root().glob(f"*/{MANIFEST}"))


def is_starter(model: str) -> bool:
    """Whether ``model`` names a starter, existing or not."""
    return model.startswith(PREFIX)


def folder_of(model: str) -> str:
    """The Hugging Face folder of ``starter:NAME``, verified; any other name as it is. Raises: InvalidArgument."""
    return str(_unpacked(find(model))) if is_starter(model) else model


def find(model: str) -> Starter:
    """The starter called ``model`` (``starter:NAME``), verified by SHA-256.

    Raises: InvalidArgument for an unknown name and for a missing, damaged or surplus file.
    """
    name = model.removeprefix(PREFIX)
    if name not in names():
        choices = ", ".join(PREFIX + starter for starter in names()) or "none"
        raise InvalidArgument(f"there is no starter {name!r}", advice=f"choose one of {choices}")
    starter = read(root() / name)
    try:
        manifest.compare(starter.folder, starter.manifest["files"])
    except manifest.ManifestError as error:
        raise InvalidArgument(error, advice="install the package again") from None
    return starter


def read(folder: Path) -> Starter:
    """The starter in ``folder``, of which only the manifest is checked."""
    path = folder / MANIFEST
    try:
        manifest_values = json.loads(path.read_text(encoding="utf-8"))
        if manifest_values["format"] != FORMAT or not all(
            Path(file).name == file and isinstance(digest, str) for file, digest in manifest_values["files"].items()
        ):
            raise ValueError("not a manifest of this version")
        if not isinstance(manifest_values.get("base"), str | None):
            raise ValueError("base is not a name")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidArgument(f"cannot be read ({error})", where=path, advice="install the package again") from None
    return Starter(folder.name, folder, manifest_values)


def _unpacked(starter: Starter) -> Path:
    """The starter's files, each unpacked, in a folder whose name has their hash; made if it is missing or damaged."""
    version = hashlib.sha256(json.dumps(starter.manifest["files"]).encode()).hexdigest()[:8]
    folder = data_folder() / "unpacked" / f"{starter.name}-{version}"
    if _is_whole(folder):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with lock.alone(folder.with_name(f".{folder.name}.lock"), LOCK_SECONDS, f"unpacking {folder}"):
        if not _is_whole(folder):
            with durable.replacing_folder(folder) as unpacked:
                for name in starter.manifest["files"]:
                    data = (starter.folder / name).read_bytes()
                    packed = name.endswith(PACKED)
                    (unpacked / name.removesuffix(PACKED)).write_bytes(lzma.decompress(data) if packed else data)
                manifest.write(unpacked)
    return folder


def _is_whole(folder: Path) -> bool:
    try:
        manifest.verify(folder)
    except manifest.ManifestError:
        return False
    return True
