"""Read tables of rows: JSONL, JSON, CSV, TSV and Parquet files, and folders of them in the hub's layout."""

from __future__ import annotations

import codecs
import csv
import itertools
import json
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gagpo.base.errors import GagpoError, InvalidArgument
from gagpo.base.regular_file import open_bytes

SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet")
"""In any case, such as ``.CSV``."""
_PACKED = (".gz", ".bz2", ".xz", ".zst", ".zip", ".7z", ".tar", ".tgz", ".xlsx", ".xls", ".ods", ".arrow", ".feather")
MAX_LINE = 10_000_000
"""Longest line of a JSONL file, in characters."""
MAX_DEPTH = 3
"""Levels of folders below a data set's folder that are searched: ``NAME/data/train/part.parquet`` has three."""
MAX_NAMED = 12
"""Columns that an error lists."""
SPLIT_WORDS = {
    "train": "train",
    "training": "train",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "dev": "validation",
    "test": "test",
    "testing": "test",
    "eval": "test",
    "evaluation": "test",
}
"""Words in the names of files and folders, and in a column of splits, by the split that they name."""
_CLOSE_QUOTES = 'close each quote, and write "" for a quote inside a cell'
_DESCRIPTIONS = {"dataset_dict.json", "dataset_info.json", "dataset_infos.json", "state.json"}
"""Files that describe a data set and hold no rows."""

Row = Mapping[str, Any]


class BadRow(GagpoError, ValueError):
    """A file or a row that cannot be used; the message names the file and the row."""


class DataMissing(GagpoError, ValueError):
    """Data that is not on this machine; the message says how to get it."""


# Files ----------------------------------------------------------------------------------------------------------------


def file_rows(path: Path, expected: str = "'problem' and 'answer'") -> Iterator[tuple[int, object]]:
    """Rows with their numbers, from 1. A row that cannot be read is yielded as its exception.

    expected: the columns of a row, for the message about a missing file.

    Raises:
        DataMissing: there is no such file, or no package that reads it.
        BadRow: the file as a whole cannot be read, such as a CSV file in which a quote is not closed.
    """
    if not path.is_file():
        wanted_form = "a header and one row" if suffix_of(path) in (".csv", ".tsv") else "one JSON object"
        raise DataMissing(f"no file {path}", advice=f"write {wanted_form} per line with {expected}")
    readers = {".parquet": _parquet_rows, ".csv": _csv_rows, ".tsv": _csv_rows}
    require_readable(path)
    try:
        _require_utf8(path)
        yield from readers.get(suffix_of(path), _json_rows)(path)
    except OSError as error:
        raise BadRow(f"cannot be read ({error.strerror or single_line(error)})", where=path) from None


def suffix_of(path: Path) -> str:
    """The suffix of a file in lower case: spreadsheet programs write ``.CSV`` too."""
    return path.suffix.lower()


def require_readable(path: Path) -> None:
    """Raise BadRow for a file that exists and is of a type that is not read, such as ``rows.jsonl.gz``."""
    if suffix_of(path) in _PACKED and path.is_file():
        raise BadRow(
            f"files of type {path.suffix} are not read",
            where=path,
            advice=f"unpack or save it as {', '.join(SUFFIXES)}",
        )


def single_line(error: BaseException, max_length: int = 300) -> str:
    """The message of ``error`` on one line, or its class."""
    return " ".join(str(error).split())[:max_length] or type(error).__name__


def _require_utf8(path: Path) -> None:
    """Raise BadRow for UTF-16, which spreadsheet programs write as "Unicode text"."""
    with open_bytes(path) as file:
        if file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            raise BadRow("the file is UTF-16", where=path, advice="save it as UTF-8")


def _csv_rows(path: Path) -> Iterator[tuple[int, object]]:
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        delimiter = _delimiter(path, file.readline())
        file.seek(0)
        record = _RecordLines(file)
        rows = csv.DictReader(record, delimiter=delimiter)
        try:
            names = [name.strip() for name in rows.fieldnames or ()]
        except csv.Error as error:
            raise BadRow(f"the header is not CSV ({error})", where=path) from None
        if not record.has_closed_quotes(delimiter):
            raise BadRow("the header is not CSV (a quote is not closed)", where=path, advice=_CLOSE_QUOTES)
        counts = Counter(names)  # a file may have any number of columns
        repeated = next((name for name in names if counts[name] > 1 and name), None)
        if repeated is not None:
            raise BadRow(f"the column {repeated[:80]!r} occurs twice in the header", where=path, advice="rename one")
        for number in itertools.count(1):
            record.clear()
            reason = "a quote is not closed"
            try:
                row = next(rows)
            except StopIteration:
                return
            except csv.Error as error:  # a field above the reader's limit, a stray null byte
                if len(record.lines()) == 1:
                    yield number, ValueError(f"after line {rows.line_num}: not CSV ({error})")
                    continue
                row = None
                reason = f"not CSV ({error})"
            if row is None or not record.has_closed_quotes(delimiter):
                # Where the following rows begin is unknown, so the file as a whole cannot be read.
                line = f"in the row that begins in line {rows.reader.line_num - len(record.lines()) + 1}"
                raise BadRow(f"{reason} {line}", where=f"{path}, row {number}", advice=_CLOSE_QUOTES)
            surplus = row.pop(None, None) or ()
            if any(cell.strip() for cell in surplus):
                count = len(names) + len(surplus)
                message = f"{count} cells for {len(names)} columns; put cells that contain {delimiter!r} into quotes"
                yield number, ValueError(message)
            else:
                yield number, row


class _RecordLines:
    """The lines of a CSV file, which keeps those of the record that is being read."""

    def __init__(self, file: Iterator[str]):
        self._file = file
        self._lines: list[str] = []
        self._is_at_end = False

    def __iter__(self) -> _RecordLines:
        return self

    def __next__(self) -> str:
        line = next(self._file, None)
        if line is None:
            self._is_at_end = True
            raise StopIteration
        self._lines.append(line)
        return line

    def clear(self) -> None:
        """Begin the next record."""
        self._lines.clear()

    def lines(self) -> list[str]:
        """The lines of the record, without blank ones before it."""
        return list(itertools.dropwhile(lambda line: not line.strip("\r\n"), self._lines))

    def has_closed_quotes(self, delimiter: str) -> bool:
        """Whether the quotes of a record that has been read are closed at the ends of its cells.

        A record of one line is read as it stands, because it takes no other row's cells.
        """
        lines = self.lines()
        # The reader asks for a line after the last one only where a quote is open.
        if self._is_at_end and lines:
            return False
        if len(lines) < 2:
            return True
        # The strict reader also refuses blanks after a closing quote, which do no harm.
        trimmed = (re.sub(rf'"[ \t]+(?=[{delimiter}\r\n]|$)', '"', line) for line in lines)
        try:
            return bool(list(csv.reader(trimmed, delimiter=delimiter, strict=True)))
        except csv.Error:
            return False


def _delimiter(path: Path, header: str) -> str:
    """What separates the cells. Where a comma is the decimal mark, spreadsheet programs write semicolons."""
    if suffix_of(path) == ".tsv":
        return "\t"
    if "," in header:
        return ","
    return next((mark for mark in ";\t" if mark in header), ",")


def _json_rows(path: Path) -> Iterator[tuple[int, object]]:
    with path.open(encoding="utf-8-sig", errors="surrogateescape") as file:
        characters = iter(lambda: file.read(1), "")
        if suffix_of(path) == ".json" and next(itertools.dropwhile(str.isspace, characters), "") == "[":
            file.seek(0)
            try:
                rows = json.load(file)
            except (ValueError, RecursionError) as error:  # ValueError also for a number of more than 4,300 digits
                raise BadRow(f"not a JSON array ({single_line(error)})", where=path) from None
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
                yield number, ValueError(f"not a JSON object ({single_line(error)})")


def _parquet_rows(path: Path) -> Iterator[tuple[int, object]]:
    try:
        import pyarrow.parquet
    except ImportError:
        raise DataMissing(
            f"reading {path} needs pyarrow", advice="pip install -c constraints.txt -e '.[data]'"
        ) from None
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
            row_name = f" after row {number}" if number else ""
            raise BadRow(f"not a Parquet file{row_name} ({single_line(error)})", where=path) from None
        for row in rows:
            number += 1
            yield number, row


# Columns --------------------------------------------------------------------------------------------------------------


def checked_columns(columns: object, fields: Sequence[str] = ()) -> dict[str, str]:
    """``columns`` as a mapping from our names to the data's.

    fields: the names that it may map; () for any.

    Raises: InvalidArgument saying what to type.
    """
    example = f"columns={{{(fields or ('question',))[0]}: NAME}}"
    if columns is None:
        return {}
    if not isinstance(columns, Mapping):
        raise InvalidArgument(f"columns must be a mapping such as {example} (got {columns!r:.80})", key="columns")
    for name, column in columns.items():
        if fields and name not in fields:
            raise InvalidArgument(
                f"columns: unknown field {name!r:.80}", key="columns", advice=f"choose one of {', '.join(fields)}"
            )
        if not isinstance(name, str) or not isinstance(column, str) or not column:
            raise InvalidArgument(
                f"columns.{name!s:.80} must be the name of a column (got {column!r:.80})", key=f"columns.{name!s:.80}"
            )
    return dict(columns)


def find_column(row: Row, names: Sequence[str]) -> str | None:
    """The first of ``names`` that is a column with a value, else the first column; None if the row has none of them.

    A name that is not spelled so exactly is found without regard to case and surrounding spaces.
    """
    lower = {column.strip().lower(): column for column in reversed(list(row)) if isinstance(column, str)}
    present = [name for name in names if name in row]
    present += [lower[name.strip().lower()] for name in names if name.strip().lower() in lower]
    return next((column for column in present if row[column] is not None), next(iter(present), None))


def renamed(row: Row, columns: Mapping[str, str]) -> Row:
    """``row`` with the columns called by our names. columns: our names, each with the data's.

    Raises: InvalidArgument naming the missing column and the row's.

    >>> renamed({"Q": "2 + 3?", "A": "5", "id": 1}, {"question": "Q", "answer": "A"})
    {'id': 1, 'question': '2 + 3?', 'answer': '5'}
    """
    if not columns:
        return row
    found_columns = {name: find_column(row, (column,)) for name, column in columns.items()}
    for name, place in found_columns.items():
        if place is None:
            raise InvalidArgument(f"no column {columns[name]!r:.80}", advice=columns_text(row))
    return {
        **{name: value for name, value in row.items() if name not in {*found_columns.values(), *found_columns}},
        **{name: row[place] for name, place in found_columns.items() if place is not None},
    }


def columns_text(row: Row) -> str:
    """The columns of a row, for errors.

    >>> columns_text({"Q": "2 + 3?", "A": "5"})
    "the row has 'Q', 'A'"
    """
    names = ", ".join(repr(str(name)[:80]) for name in list(row)[:MAX_NAMED])
    more = f" and {len(row) - MAX_NAMED} more" if len(row) > MAX_NAMED else ""
    return f"the row has {names or 'no columns'}{more}"


def without_nan(value: object) -> object:
    """None for NaN, which Parquet files written from data frames hold in place of missing values."""
    return None if isinstance(value, float) and math.isnan(value) else value


# Folders --------------------------------------------------------------------------------------------------------------


def split_in(name: str) -> str | None:
    """The split that a name contains as a word.

    >>> split_in("train-00000-of-00002.parquet"), split_in("my_dev"), split_in("latest.csv")
    ('train', 'validation', None)
    """
    tokens = re.split(r"[^a-z]+", name.lower())
    return next((SPLIT_WORDS[word] for word in tokens if word in SPLIT_WORDS), None)


def folder_splits(folder: Path, config: str | None = None, argument: str = "") -> dict[str | None, list[Path]]:
    """The files of rows in a folder by split, in the layouts of Hugging Face data sets; None for files of no split.

    A file's split is a word in its name, else in that of its folder: ``test.csv``, ``test/part-1.jsonl`` and
    ``data/train-00000-of-00002.parquet`` have one. If any file has a split, those without are not read.

    config: the configuration, which is the name of a folder, where there are several.
    argument: for the message, the argument that takes ``{path: FOLDER, config: NAME}``; "" if none does.

    Raises:
        DataMissing: the folder contains no such files.
        InvalidArgument: it has several configurations and ``config`` names none of them.
    """
    files = sorted(_tables_below(folder, MAX_DEPTH))
    if not files:
        raise DataMissing(f"no data in {folder}", advice=f"write a file that ends in {', '.join(SUFFIXES)} into it")
    split_of = {path: _split_of(path, folder) for path in files}
    if any(split_of.values()):
        files = [path for path in files if split_of[path]]
    config_of = {path: _config_of(path, folder) for path in files}
    configs = sorted(set(config_of.values()))
    if config is not None and configs != [""]:
        files = [path for path in files if config_of[path] == config]
    if not files or (config is None and len(configs) > 1 and _has_several(config_of, split_of)):
        wrong = "has several configurations" if config is None else f"has no configuration {config!r}"
        raise InvalidArgument(wrong, where=folder, advice=_choice_of_configs(folder, config_of, argument))
    splits: dict[str | None, list[Path]] = {}
    for path in files:
        splits.setdefault(split_of[path], []).append(path)
    return splits


def _tables_below(folder: Path, depth: int) -> Iterator[Path]:
    """The files of rows in a folder and ``depth`` levels of folders below it, without hidden ones."""
    try:
        entries = [path for path in folder.iterdir() if not path.name.startswith(".")]
    except OSError as error:
        raise BadRow(f"cannot be read ({error.strerror or single_line(error)})", where=folder) from None
    for path in entries:
        if path.is_dir() and depth:
            yield from _tables_below(path, depth - 1)
        elif suffix_of(path) in SUFFIXES and path.name not in _DESCRIPTIONS and path.is_file():
            yield path


def _split_of(path: Path, folder: Path) -> str | None:
    parents = path.relative_to(folder).parts[:-1]
    return next(filter(None, map(split_in, (path.stem, *reversed(parents)))), None)


def _config_of(path: Path, folder: Path) -> str:
    """The name of the configuration: the folders that name no split."""
    folders = path.relative_to(folder).parts[:-1]
    return "/".join(name for name in folders if name != "data" and split_in(name) is None)


def _has_several(config_of: Mapping[Path, str], split_of: Mapping[Path, str | None]) -> bool:
    """Whether two configurations have files of the same split."""
    pairs = {(split_of[path], config) for path, config in config_of.items()}
    return len({split for split, _ in pairs}) < len(pairs)


def _choice_of_configs(folder: Path, config_of: Mapping[Path, str], argument: str) -> str:
    """Say how to choose one of the configurations: by its name, else by its folder or a file."""
    configs = sorted(set(config_of.values()))
    if argument:
        names = ", ".join(name or "." for name in configs)
        return f"choose one of {names} with {argument}={{path: {folder}, config: NAME}}"
    choices = []
    for config in configs[:MAX_NAMED]:
        files = [path for path in config_of if config_of[path] == config]
        parent = Path(os.path.commonpath([path.parent for path in files]))
        choices.append(str(parent if parent != folder else files[0]))
    more = f" and {len(configs) - MAX_NAMED} more" if len(configs) > MAX_NAMED else ""
    return f"name the folder or file of one of them: {', '.join(choices)}{more}"


def folder_rows(
    files: Sequence[Path], reader: Callable[[Path], Iterator[tuple[int, object]]] = file_rows
) -> Iterator[tuple[Path, int, object]]:
    """File, number and content of each row of several files."""
    for path in files:
        for number, row in reader(path):
            yield path, number, row
