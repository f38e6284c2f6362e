"""The list of a folder's files with their SHA-256, so that damage is noticed before anything is made of it."""

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
_EARLIER = "gagpo manifest 1"  # without the hash of the list itself


class ManifestError(GagpoError, ValueError):
    """A file that is missing, added or not what it was when it was written; the message names it."""


def digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def files_of(folder: Path) -> list[Path]:
    """Every file below ``folder`` but the manifest, sorted."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / NAME)


def write(folder: Path) -> None:
    """Write the manifest of all files that lie below ``folder`` now."""
    entries = {str(path.relative_to(folder)): digest(path) for path in files_of(folder)}
    (folder / NAME).write_text(_text(entries), encoding="utf-8")


def _text(entries: Mapping[str, str], form: str = _FORMAT) -> str:
    record: dict[str, object] = {"format": form, "files": dict(entries)}
    if form == _FORMAT:
        record["sha256"] = hashlib.sha256(json.dumps(record).encode()).hexdigest()
    return json.dumps(record, indent=1) + "\n"


def has_one(folder: Path) -> bool:
    """Whether ``folder`` holds a manifest: a file of that name, unless it is plainly something else's."""
    try:
        record = json.loads(read_bytes(folder / NAME))
    except FileNotFoundError:
        return False
    except OSError:
        return True  # no file at all
    except (ValueError, RecursionError):
        return True  # damaged, which :func:`verify` says
    return not isinstance(record, dict) or record.get("format", _FORMAT) in (_FORMAT, _EARLIER)


def verify(folder: Path) -> None:
    """Compare every file with the manifest; raises :class:`ManifestError` naming the first that differs.

    The manifest itself comes first: no other file is blamed for what it does not say byte for byte as it was written.
    """
    path = folder / NAME
    try:
        text = read_bytes(path).decode()
        record = json.loads(text)
        entries = dict(record["files"])
        if record["format"] not in (_FORMAT, _EARLIER) or text != _text(entries, record["format"]):
            raise ValueError
        if not all(_DIGEST.fullmatch(value) for value in entries.values()):
            raise ValueError
    except OSError as error:
        raise ManifestError(f"{path} cannot be read ({error.strerror}): nothing proves the files beside it") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ManifestError(f"{path} is damaged: it is not a list of files with their SHA-256") from None
    compare(folder, entries)


def compare(folder: Path, entries: Mapping[str, str]) -> None:
    """Compare the files below ``folder`` with their SHA-256; :class:`ManifestError` names the first that differs."""
    present = {str(found.relative_to(folder)): found for found in files_of(folder)}
    for name in sorted(entries.keys() | present.keys()):  # there, listed, and as it was
        if name not in present:
            raise ManifestError(f"{folder / name} is missing")
        if name not in entries:
            raise ManifestError(f"{folder / name} does not belong here: the manifest does not list it")
        if digest(present[name]) != entries[name]:
            raise ManifestError(f"{folder / name} is damaged: it is not what was written (SHA-256 differs)")
