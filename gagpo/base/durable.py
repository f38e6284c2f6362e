"""Writing files so that a kill, a crash or a full disk leaves the old one or the new one, never half of one."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def replacing(path: Path, flushed: bool = True) -> Iterator[Path]:
    """A temporary name beside ``path`` to write to; at the end it is flushed to disk and takes the place of ``path``.

    When anything goes wrong the temporary file is removed and ``path`` is as it was. An OSError that names no file (a
    full disk) is raised again with the name of ``path``. Without ``flushed`` a power cut may leave an empty file: for
    what is soon made again.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield temporary
        if flushed:
            flush(temporary)
        os.replace(temporary, path)
        if flushed:
            flush(path.parent)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError) and error.filename is None:
            raise naming(error, path) from None
        raise


@contextmanager
def replacing_folder(folder: Path, flushed: bool = True, within: Path | None = None) -> Iterator[Path]:
    """A new folder to fill; at the end it takes the place of ``folder``, as :func:`replacing` says.

    It lies ``within`` a folder of the same disk (beside ``folder``), and its name begins with a dot and ends in
    ``.part``. ``folder`` is whole or absent, whenever the process is killed.
    """
    place = within or folder.parent
    place.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".part", dir=place))
    try:
        yield temporary
        temporary.chmod(0o755)  # it was made for this user alone
        if flushed:
            for path in [*temporary.rglob("*"), temporary]:
                flush(path)
        folder.parent.mkdir(parents=True, exist_ok=True)
        if folder.exists():
            remove(folder)
        temporary.rename(folder)
        if flushed:
            flush(folder.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def write_text(path: Path, text: str) -> None:
    """Write ``text`` (UTF-8) durably; see :func:`replacing`."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def append_line(path: Path, line: str) -> None:
    """Append ``line`` in one write; of a full disk nothing of it stays, and OSError names the file."""
    try:
        with path.open("ab") as file:
            end = file.tell()
            try:
                file.write(line.encode() + b"\n")
                file.flush()
            except OSError:
                with suppress(OSError):
                    os.truncate(path, end)
                raise
    except OSError as error:
        raise naming(error, path) from None


def flush(path: Path) -> None:
    """Wait until a file, or a folder's list of names, is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove(folder: Path) -> None:
    """Remove a folder that counts as whole while it has its name: it loses the name first."""
    doomed = folder.with_name(f".{folder.name}.{os.getpid()}.old")
    with suppress(OSError):
        folder.rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)


def naming(error: OSError, path: Path) -> OSError:
    """``error`` with the file it is about."""
    return OSError(error.errno, error.strerror or str(error), str(path))
