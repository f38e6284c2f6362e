"""Tasks of a program from a file of rows, which the program gets as they stand."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import date, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field, ValidationError

from gagpo.base import regular_file
from gagpo.base.errors import InvalidArgument, first_line
from gagpo.base.options import problems, sentence
from gagpo.base.row_files import (
    BadRow,
    DataMissing,
    checked_columns,
    file_rows,
    find_column,
    folder_splits,
    renamed,
    require_readable,
    suffix_of,
    without_nan,
)
from gagpo.envs.division import divided
from gagpo.envs.gateway.messages import Json
from gagpo.envs.tasks import Task, TaskSet

SPLITS = ("train", "test")
LARGEST_ROW = 8 << 20  # bytes
_TOO_LONG = f"longer than {LARGEST_ROW >> 20} MB"


class _Object(BaseModel):
    """Any JSON object."""


class _TaskRow(BaseModel):
    id: str | None = Field(None, min_length=1, max_length=200)
    split: Literal["train", "test"] | None = None
    type: str | None = Field(None, max_length=200)


def read_tasks(
    path: str | Path, columns: Mapping[str, str] | None = None
) -> tuple[dict[str, TaskSet], dict[str, Json]]:
    """Tasks by split and rows by task id.

    A row has an ``id``, and optionally a ``type`` and a ``split``, under these names or with other case and surrounding
    spaces. The program gets them under these names, and the other columns as they are. If the first row has no ``id``,
    the rows are numbered. By default a fifth of the ids is ``test``, chosen by SHA-256.

    path: a JSONL, JSON, CSV, TSV or Parquet file, or a folder in a layout of Hugging Face data sets.
    columns: new names, each with the name that a column has in the file; the program gets the new ones.

    Raises: InvalidArgument naming the file and the line or row of what is wrong.
    """
    tasks: list[Task] = []  # the split is '' where the row has none
    rows: dict[str, Json] = {}
    columns = checked_columns(columns)
    numbered = False
    try:
        for where, text, split in _texts(Path(path)):
            row, content = _checked_row(where, text, split, columns)
            numbered = numbered or (not tasks and row.id is None)
            if row.id is None:
                if not numbered:
                    raise InvalidArgument("id is missing", where=where)
                row.id = f"{Path(path).stem}-{len(tasks) + 1:06d}"
                content = {"id": row.id} | {name: value for name, value in content.items() if name != "id"}
            if row.id in rows:
                raise InvalidArgument(f"another row has the id {row.id!r}", where=where)
            digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
            tasks.append(Task(row.id, row.split or "", row.type or "", digest))
            rows[row.id] = content
    except (BadRow, DataMissing, InvalidArgument) as error:
        raise InvalidArgument(error, where=None if str(path) in str(error) else f"tasks {path}") from None
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"cannot be read ({first_line(error)})", where=f"tasks {path}") from None
    by_chance = {task.id: "test" if _hash(task.id) % 5 == 0 else "train" for task in tasks}
    return divided(tasks, by_chance, SPLITS, f"{path} has no such row: add rows, or give them a split"), rows


def _checked_row(where: str, text: str, split: str | None, columns: Mapping[str, str]) -> tuple[_TaskRow, Json]:
    """A row, and its content for the program. split: of the row's file.

    Raises: InvalidArgument naming the place and the key.
    """
    names: dict[str, str | None] = {}
    try:
        _Object.model_validate_json(text)  # also rejects lone surrogates, which json accepts
        content: Json = dict(renamed(json.loads(text), columns))
        if split is not None:
            content["split"] = split
        names = {field: find_column(content, (field,)) for field in _TaskRow.model_fields}
        content |= {field: content[name] for field, name in names.items() if name is not None}
        if content.get("split") == "":  # an empty cell
            del content["split"]
        nonfinite = _nonfinite(content)
        if nonfinite is not None:
            location, number = nonfinite
            raise InvalidArgument(f"{location.removeprefix('.')} must be a finite number, text or null (got {number})")
        return _TaskRow.model_validate(content), content
    except ValidationError as error:
        key, message, _ = problems(error)[0]
        raise InvalidArgument(f"{sentence(names.get(key) or key or 'row', message)}", where=where) from None
    except InvalidArgument as error:
        raise InvalidArgument(error, where=where) from None
    except (ValueError, RecursionError) as error:  # such as a number of more than 4,300 digits
        raise InvalidArgument(f"cannot be read ({first_line(error)})", where=where) from None


def _nonfinite(value: object) -> tuple[str, float] | None:
    """The key of a NaN or an infinity, such as ``.scores[0].x``, and the number; None if there is none.

    The json module reads and writes both, but they are not JSON, so programs in other languages cannot read them.
    """
    if isinstance(value, float):
        return None if math.isfinite(value) else ("", value)
    items: Iterable[tuple[object, object]] = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for key, item in items:
        nonfinite = _nonfinite(item) if isinstance(item, dict | list | float) else None
        if nonfinite is not None:
            step = f"[{key}]" if isinstance(value, list) else f".{key!s:.80}"
            return step + nonfinite[0], nonfinite[1]
    return None


def _texts(path: Path) -> Iterator[tuple[str, str, str | None]]:
    """The place and the JSON of every row, and the split of its file."""
    if path.is_dir():
        for split, files in _by_split(path).items():
            for file in files:
                yield from ((where, text, split) for where, text, _ in _texts(file))
    elif suffix_of(path) in (".csv", ".tsv", ".parquet", ".json"):
        for number, row in file_rows(path, "'id' and what the program reads"):
            where = f"tasks {path}, row {number}"
            if suffix_of(path) == ".parquet" and isinstance(row, dict):
                row = {name: without_nan(value) for name, value in row.items()}
            try:
                yield where, _json_of(row), None
            except (ValueError, RecursionError) as error:
                raise InvalidArgument(f"{first_line(error, 600)}", where=where) from None
    else:
        require_readable(path)
        for number, line in regular_file.read_lines(path):
            where = f"tasks {path}, line {number}"
            if len(line) > LARGEST_ROW:
                raise InvalidArgument(f"{_TOO_LONG}", where=where)
            try:
                yield where, line.decode(), None
            except UnicodeDecodeError as error:
                raise InvalidArgument(f"cannot be read ({first_line(error)})", where=where) from None


def _by_split(folder: Path) -> dict[str | None, list[Path]]:
    """The files of a folder by split. Those of a validation split are test tasks if there are no others."""
    files = folder_splits(folder)
    validation = files.pop("validation", None)
    if validation and "test" not in files:
        files["test"] = validation
    return files


def _json_of(row: object) -> str:
    """A row of a table as JSON: a date is text, and a missing split is none. Raises ValueError for a wrong row."""
    if isinstance(row, Exception):
        raise row
    if isinstance(row, dict):
        row = {name: value for name, value in row.items() if value is not None or name.strip().lower() != "split"}
    text = json.dumps(row, default=_as_text)
    if len(text) > LARGEST_ROW:
        raise InvalidArgument(_TOO_LONG)
    if re.search(r"\\ud[89a-f]", text) and not _is_encodable(row):
        raise InvalidArgument("is not UTF-8, or contains a lone surrogate", advice="save the file as UTF-8")
    return text


def _is_encodable(value: object) -> bool:
    try:
        json.dumps(value, default=_as_text, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _as_text(value: object) -> str:
    if isinstance(value, date | time | timedelta | Decimal):
        return str(value)
    raise InvalidArgument(f"a value of type {type(value).__name__} cannot be a program's input")


def _hash(name: str) -> int:
    return int(hashlib.sha256(name.encode()).hexdigest(), 16)
