"""Rows of tables, from local files and from Hugging Face data sets, with errors that say what to do."""

from __future__ import annotations

import csv
import json
import os
import socket
import urllib.parse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gagpo.base.errors import GagpoError

MAX_LINE = 10_000_000
"""Longest line of a JSONL file, in characters."""


class BadRow(GagpoError, ValueError):
    """A row without a usable problem or answer; the message names source and row."""


class DataMissing(GagpoError, ValueError):
    """A data set that is neither on this machine nor reachable; the message holds the command that fetches it."""


def file_rows(path: Path) -> Iterator[tuple[int, object]]:
    """Rows with their numbers, from 1; a row that cannot be read comes as the exception that says why."""
    if not path.is_file():
        raise DataMissing(
            f"no file {path}: write one JSON object per line with 'problem' and 'answer', or fix the path"
        )
    readers = {".parquet": _parquet_rows, ".csv": _csv_rows}
    try:
        yield from readers.get(path.suffix, _json_rows)(path)
    except OSError as error:
        raise BadRow(f"{path}: cannot be read ({error.strerror or _one_line(error)})") from None


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def _csv_rows(path: Path) -> Iterator[tuple[int, object]]:
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        rows = csv.DictReader(file)
        number = 0
        while True:
            number += 1
            try:
                yield number, next(rows)
            except StopIteration:
                return
            except csv.Error as error:  # a field above the reader's limit, a stray null byte
                yield number, ValueError(f"after line {rows.line_num}: not CSV ({error})")


def _json_rows(path: Path) -> Iterator[tuple[int, object]]:
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        if path.suffix == ".json" and file.read(1) == "[":
            file.seek(0)
            try:
                rows = json.load(file)
            except (ValueError, RecursionError) as error:  # ValueError: a number of more than 4,300 digits, too
                raise BadRow(f"{path}: not a JSON array ({_one_line(error)})") from None
            yield from enumerate(rows, 1)
            return
        file.seek(0)
        for number, line in enumerate(file, 1):
            # A bad line is a row of its own, so that the others keep their numbers.
            if not line.strip():
                continue
            if len(line) > MAX_LINE:
                yield number, ValueError(f"the line is longer than {MAX_LINE} characters")
                continue
            try:
                yield number, json.loads(line)
            except (ValueError, RecursionError) as error:
                yield number, ValueError(f"not a JSON object ({_one_line(error)})")


def _parquet_rows(path: Path) -> Iterator[tuple[int, object]]:
    try:
        import pyarrow.parquet
    except ImportError:
        raise DataMissing(f"reading {path} needs pyarrow: pip install 'gagpo[data]'") from None
    number = 0
    batches: Iterator[Any] | None = None
    while True:
        try:
            batches = batches or pyarrow.parquet.ParquetFile(path).iter_batches(1024)
            rows = next(batches).to_pylist()
        except StopIteration:
            return
        # What a damaged file brings about is of many classes: the library's own, OSError, UnicodeDecodeError.
        except (pyarrow.lib.ArrowException, OSError, ValueError, OverflowError, MemoryError, KeyError) as error:
            place = f" after row {number}" if number else ""
            raise BadRow(f"{path}: not a Parquet file{place} ({_one_line(error)})") from None
        for row in rows:
            number += 1
            yield number, row


def hub_tables(path: str, config: str | None) -> Mapping[str, Any]:
    """The tables of a data set by split name: from the cache where they are there, else fetched."""
    try:
        import datasets
    except ImportError:
        raise DataMissing(f"reading {path} needs the datasets package: pip install 'gagpo[data]'") from None
    was_offline, verbosity = datasets.config.HF_HUB_OFFLINE, datasets.logging.get_verbosity()
    # The cache first: no waiting for the network at every start, and the same rows as the last time.
    for offline in (True, False):
        if not offline and (was_offline or not _reachable(datasets.config.HF_ENDPOINT)):
            reason = "offline mode is set" if was_offline else f"no connection to {datasets.config.HF_ENDPOINT}"
            break
        datasets.config.HF_HUB_OFFLINE = offline
        datasets.logging.set_verbosity_error()  # it would warn that it uses its cache, which is what was asked for
        try:
            return dict(datasets.load_dataset(path, config))
        except Exception as error:  # the library raises errors of a dozen unrelated classes here
            reason = " ".join(str(error).split())[:160] or type(error).__name__
        finally:
            datasets.config.HF_HUB_OFFLINE = was_offline
            datasets.logging.set_verbosity(verbosity)
    arguments = f"'{path}'" + (f", '{config}'" if config else "")
    raise DataMissing(
        f"data set {path} is not on this machine and could not be fetched ({reason}); where there is a network, "
        f'fetch it with: python -c "from datasets import load_dataset; load_dataset({arguments})"'
    )


def _reachable(endpoint: str) -> bool:
    """Whether a host answers within three seconds; taken for granted where a proxy stands in between."""
    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return True
    address = urllib.parse.urlsplit(endpoint)
    try:
        socket.create_connection((address.hostname or "", address.port or 443), timeout=3).close()
    except OSError:
        return False
    return True
