"""The list of a folder's files with their SHA-256, so that damage is noticed before a file is used."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path

from gagpo.base.errors import GagpoError
from gagpo.base.regular_file import read_bytes

NAME = "manifest.json"
_FORMAT = "gagpo manifest 2"
_DIGEST = re.compile("[0-9a-f]{64}")


class ManifestError(GagpoError, ValueError):
    """A file is missing, added or damaged; the message names it."""


def digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def files_of(folder: Path) -> list[Path]:
    """Every file below ``folder`` except the manifest, sorted."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / NAME)


def write(folder: Path) -> None:
    """Write the manifest of all files below ``folder``."""
    entries = {str(path.relative_to(folder)): digest(path) for path in files_of(folder)}
    (folder / NAME).write_text(_text(entries), encoding="utf-8")


def _text(entries: Mapping[str, str]) -> str:
    record: dict[str, object] = {"format": _FORMAT, "files": dict(entries)}
    record["sha256"] = hashlib.sha256(json.dumps(record).encode()).hexdigest()
    return json.dumps(record, indent=1) + "\n"


def has_one(folder: Path) -> bool:
    """Whether ``folder`` holds a manifest, maybe damaged: any file of that name that is not of another format."""
    try:
        record = json.loads(read_bytes(folder / NAME))
    except FileNotFoundError:
        return False
    except (OSError, ValueError, RecursionError):
        return True
    return not isinstance(record, dict) or record.get("format", _FORMAT) == _FORMAT


def verify(folder: Path) -> None:
    """Compare the manifest with its own hash, then every file with the manifest; raises :class:`ManifestError`."""
    path = folder / NAME
    try:
        text = read_bytes(path).decode()
        record = json.loads(text)
        entries = dict(record["files"])
        if text != _text(entries) or not all(_DIGEST.fullmatch(value) for value in entries.values()):
            raise ValueError
    except OSError as error:
        raise ManifestError(f"cannot be read ({error.strerror}): the folder cannot be checked", where=path) from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ManifestError("is damaged: it is not a list of files with their SHA-256", where=path) from None
    require_no_links(folder)
    compare(folder, entries)


def require_no_links(folder: Path) -> None:
    """Raise :class:`ManifestError` unless everything below ``folder`` is a file or a folder.

    A folder from somebody else may link to private files of this machine, which a copy or an upload would then contain.
    """
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            raise ManifestError(
                f"is a link, which could lead out of {folder.name}", where=path, advice="put the file itself there"
            )
        if not path.is_file() and not path.is_dir():
            raise ManifestError("is not a regular file", where=path, advice="remove it")


def compare(folder: Path, entries: Mapping[str, str]) -> None:
    """Compare the files below ``folder`` with their SHA-256; :class:`ManifestError` names the first that differs."""
    present = {str(path.relative_to(folder)): path for path in files_of(folder)}
    for name in sorted(entries.keys() | present.keys()):
        if name not in present:
            raise ManifestError("is missing", where=folder / name)
        if name not in entries:
            raise ManifestError("does not belong here: the manifest does not list it", where=folder / name)
        if digest(present[name]) != entries[name]:
            raise ManifestError("is damaged: it is not what was written (SHA-256 differs)", where=folder / name)
