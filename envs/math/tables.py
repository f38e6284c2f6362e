"""Read rows of local files and Hugging Face data sets."""

from __future__ import annotations

import csv
import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gagpo.base.errors import GagpoError
from gagpo.base.hub import reachable

MAX_LINE = 10_000_000
"""Longest line of a JSONL file, in characters."""


class BadRow(GagpoError, ValueError):
    """A row without a usable problem or answer; the message names source and row."""


class DataMissing(GagpoError, ValueError):
    """A data set that is neither cached nor reachable; the message contains the command that downloads it."""


def file_rows(path: Path) -> Iterator[tuple[int, object]]:
    """Rows with their numbers, from 1. A row that cannot be read is yielded as its exception."""
    if not path.is_file():
        raise DataMissing(f"no file {path}: write one JSON object per line with 'problem' and 'answer'")
    readers = {".parquet": _parquet_rows, ".csv": _csv_rows}
    try:
        yield from readers.get(path.suffix, _json_rows)(path)
    except OSError as error:
        raise BadRow(f"{path}: cannot be read ({error.strerror or _single_line(error)})") from None


def _single_line(error: BaseException, max_length: int = 300) -> str:
    return " ".join(str(error).split())[:max_length] or type(error).__name__


def _csv_rows(path: Path) -> Iterator[tuple[int, object]]:
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        rows = csv.DictReader(file)
        for number in itertools.count(1):
            try:
                yield number, next(rows)
            except StopIteration:
                return
            except csv.Error as error:  # a field above the reader's limit, a stray null byte
                yield number, ValueError(f"after line {rows.line_num}: not CSV ({error})")


def _json_rows(path: Path) -> Iterator[tuple[int, object]]:
    with path.open(encoding="utf-8-sig", errors="surrogateescape") as file:
        if path.suffix == ".json" and file.read(1) == "[":
            file.seek(0)
            try:
                rows = json.load(file)
            except (ValueError, RecursionError) as error:  # ValueError also for a number of more than 4,300 digits
                raise BadRow(f"{path}: not a JSON array ({_single_line(error)})") from None
            yield from enumerate(rows, 1)
            return
        file.seek(0)
        for number, line in enumerate(file, 1):
            # A bad line counts as a row, so the others keep their numbers.
            if not line.strip():
                continue
            if len(line) > MAX_LINE:
                yield number, ValueError(f"the line is longer than {MAX_LINE} characters")
                continue
            try:
                yield number, json.loads(line)
            except (ValueError, RecursionError) as error:
                yield number, ValueError(f"not a JSON object ({_single_line(error)})")


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
        # Damaged files raise errors of many classes.
        except (pyarrow.lib.ArrowException, OSError, ValueError, OverflowError, MemoryError, KeyError) as error:
            place = f" after row {number}" if number else ""
            raise BadRow(f"{path}: not a Parquet file{place} ({_single_line(error)})") from None
        for row in rows:
            number += 1
            yield number, row


def hub_tables(path: str, config: str | None) -> Mapping[str, Any]:
    """The tables of a data set by split name, from the cache or else downloaded."""
    try:
        import datasets
    except ImportError:
        raise DataMissing(f"reading {path} needs the datasets package: pip install 'gagpo[data]'") from None
    was_offline = datasets.config.HF_HUB_OFFLINE
    verbosity = datasets.logging.get_verbosity()
    # The cache first: no waiting for the network, and the same rows as last time.
    for offline in (True, False):
        if not offline and (was_offline or not reachable(datasets.config.HF_ENDPOINT)):
            if was_offline:
                reason = "offline mode is set"
            else:
                reason = f"no connection to {datasets.config.HF_ENDPOINT}"
            break
        datasets.config.HF_HUB_OFFLINE = offline
        datasets.logging.set_verbosity_error()  # else it warns that it uses its cache
        try:
            return dict(datasets.load_dataset(path, config))
        except Exception as error:  # the library raises errors of a dozen unrelated classes here
            reason = _single_line(error, 160)
        finally:
            datasets.config.HF_HUB_OFFLINE = was_offline
            datasets.logging.set_verbosity(verbosity)
    arguments = f"'{path}'" + (f", '{config}'" if config else "")
    raise DataMissing(
        f"data set {path} is not on this machine and could not be downloaded ({reason}); with a network connection, "
        f'run: python -c "from datasets import load_dataset; load_dataset({arguments})"'
    )
