"""Write files so that a kill, a crash or a full disk leaves the old or the new file, never half of one."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

STREAMS = (Path("/dev"), Path("/dev/fd"))
"""Folders of names for a process's streams and for devices, which root could replace."""


@contextmanager
def replacing(path: Path, flushed: bool = True) -> Iterator[Path]:
    """A temporary file next to ``path`` to write to; at the end it replaces ``path``.

    After an error the temporary file is removed and ``path`` is unchanged. An OSError without a file name (a full disk)
    is raised again with that of ``path``. A device or a pipe is never replaced, it gets the content.

    flushed: wait for the disk. Without it a power cut may leave an empty file.
    """
    if is_special(path):
        with _copied_to(path) as temporary:
            yield temporary
        return
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


def is_special(path: Path) -> bool:
    """Whether ``path`` is a device, a pipe or a socket: root would replace ``/dev/null`` for the whole machine."""
    if path.absolute().parent in STREAMS and path.exists():  # /dev/stdout may lead to a file
        return True
    return path.exists() and not path.is_file() and not path.is_dir()


@contextmanager
def _copied_to(special: Path) -> Iterator[Path]:
    """A temporary file whose content is written to a device or pipe at the end."""
    with tempfile.TemporaryDirectory() as folder:
        temporary = Path(folder) / special.name
        yield temporary
        try:
            # Without O_NONBLOCK the opening of a pipe that nobody reads would never end.
            handle = os.open(special, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK)
            os.set_blocking(handle, True)
            with temporary.open("rb") as content, os.fdopen(handle, "wb") as target:
                shutil.copyfileobj(content, target)
        except OSError as error:
            raise naming(error, special) from None


@contextmanager
def replacing_folder(folder: Path, flushed: bool = True, within: Path | None = None) -> Iterator[Path]:
    """A temporary folder to fill; at the end it replaces ``folder``, which is whole or absent at any time.

    Its files have the permissions of newly created ones.

    flushed: see :func:`replacing`.
    within: where the temporary folder is made, on the same disk; by default next to ``folder``.
    """
    parent = within or folder.parent
    parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".part", dir=parent))
    try:
        yield temporary
        make_readable(temporary)
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


def make_readable(folder: Path) -> None:
    """Give a folder and what is in it the permissions that the umask gives to new files: usually 755 and 644.

    ``mkdtemp`` and the writer of safetensors let only this user read what they create.
    """
    mask = _umask()
    for path in [folder, *folder.rglob("*")]:
        if path.is_symlink():
            continue
        executable = 0o111 if path.is_dir() else path.stat().st_mode & 0o111
        path.chmod((0o666 | executable) & ~mask)


def _umask() -> int:
    """The umask of this process. ``os.umask`` would have to set it, which other threads would notice."""
    try:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        return int(next(line for line in status.splitlines() if line.startswith("Umask:")).split()[1], 8)
    except (OSError, StopIteration, ValueError):  # not Linux
        mask = os.umask(0o077)
        os.umask(mask)
        return mask


def write_text(path: Path, text: str) -> None:
    """Write ``text`` (UTF-8) durably; see :func:`replacing`."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def append_line(path: Path, line: str) -> None:
    """Append ``line`` whole or not at all; an OSError names the file."""
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
    """Wait until a file, or the list of a folder's names, is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove(folder: Path) -> None:
    """Remove a folder; it is renamed first, so that it never seems whole while files are missing."""
    doomed = folder.with_name(f".{folder.name}.{os.getpid()}.old")
    with suppress(OSError):
        folder.rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)


def remove_leftovers(folder: Path, alone: bool = False) -> None:
    """Remove temporary files, and folders half removed, that killed processes have left in ``folder``.

    alone: no other process writes to the folder. Otherwise only what names a process that has ended is removed.
    """
    for path in [*folder.glob(".*.part"), *folder.glob(".*.old")]:
        writer = path.name.split(".")[-2]
        if alone or (writer.isdecimal() and not _is_running(int(writer))):
            with suppress(OSError):
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _is_running(process: int) -> bool:
    """Whether another process with this id runs on this machine."""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # somebody else's
        return True
    return process != os.getpid()


def naming(error: OSError, path: Path) -> OSError:
    """``error`` with the name of the file."""
    return OSError(error.errno, error.strerror or str(error), str(path))
