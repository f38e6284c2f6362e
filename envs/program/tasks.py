"""Tasks of a program from a file of rows, which the program gets as they stand."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
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
    folder_splits,
    renamed,
    without_nan,
)
from gagpo.envs.division import divided
from gagpo.envs.program.messages import Json
from gagpo.envs.tasks import Task, TaskSet

SPLITS = ("train", "test")
LARGEST_ROW = 8 << 20  # bytes


class _TaskRow(BaseModel):
    id: str | None = Field(None, min_length=1, max_length=200)
    split: Literal["train", "test"] | None = None
    type: str = Field("", max_length=200)


def read_tasks(
    path: str | Path, columns: Mapping[str, str] | None = None
) -> tuple[dict[str, TaskSet], dict[str, Json]]:
    """Tasks by split and rows by task id.

    A row has an ``id``, and optionally a ``type`` and a ``split``. If the first row has no ``id``, the rows are
    numbered. By default a fifth of the ids is ``test``: those whose SHA-256 is divisible by 5.

    path: a JSONL, JSON, CSV, TSV or Parquet file, or a folder in a layout of Hugging Face data sets.
    columns: new names, each with the name that a column has in the file; the program gets the new ones.

    Raises: InvalidArgument naming the file and the line or row of what is wrong.
    """
    tasks: list[Task] = []  # the split is '' where the row has none
    rows: dict[str, Json] = {}
    columns = checked_columns(columns)
    numbered = False
    where = f"tasks {path}"
    try:
        for where, text in _texts(Path(path)):
            content = dict(renamed(json.loads(text), columns)) if columns else None
            row = _TaskRow.model_validate_json(text) if content is None else _TaskRow.model_validate(content)
            content = content or json.loads(text)  # with the keys that only the program reads
            numbered = numbered or (not tasks and row.id is None)
            if numbered and row.id is None:
                row.id = f"{Path(path).stem}-{len(tasks) + 1:06d}"
                content = {"id": row.id, **content}
            if row.id is None:
                raise InvalidArgument(f"{where}: id is missing")
            if row.id in rows:
                raise InvalidArgument(f"{where}: another row has the id {row.id!r}")
            digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
            tasks.append(Task(row.id, row.split or "", row.type, digest))
            rows[row.id] = content
    except (BadRow, DataMissing, InvalidArgument) as error:
        raise InvalidArgument(_at(where, str(error))) from None
    except ValidationError as error:
        key, message, _ = problems(error)[0]
        raise InvalidArgument(f"{where}: {sentence(key or 'row', message)}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidArgument(f"{where}: cannot be read ({first_line(error)})") from None
    by_chance = {task.id: "test" if _hash(task.id) % 5 == 0 else "train" for task in tasks}
    return divided(tasks, by_chance, SPLITS, f"{path} has no such row: add rows, or give them a split"), rows


def _at(where: str, message: str) -> str:
    """The message, with its place unless it names the file."""
    return message if message.startswith(where) or where.removeprefix("tasks ") in message else f"{where}: {message}"


def _texts(path: Path) -> Iterator[tuple[str, str]]:
    """The place and the JSON of every row."""
    if path.is_dir():
        for split, files in _by_split(path).items():
            for file in files:
                for where, text in _texts(file):
                    yield where, text if split is None else _with_split(text, split)
    elif path.suffix in (".csv", ".tsv", ".parquet", ".json"):
        for number, row in file_rows(path, "'id' and what the program reads"):
            where = f"tasks {path}, row {number}"
            yield where, _json_of(row, where)
    else:
        for number, line in regular_file.read_lines(path):
            where = f"tasks {path}, line {number}"
            if len(line) > LARGEST_ROW:
                raise InvalidArgument(f"{where}: longer than {LARGEST_ROW >> 20} MB")
            try:
                yield where, line.decode()
            except UnicodeDecodeError as error:
                raise InvalidArgument(f"{where}: cannot be read ({first_line(error)})") from None


def _by_split(folder: Path) -> dict[str | None, list[Path]]:
    """The files of a folder by split. Those of a validation split are test tasks if there are no others."""
    files = folder_splits(folder)
    validation = files.pop("validation", None)
    if validation and "test" not in files:
        files["test"] = validation
    return files


def _with_split(text: str, split: str) -> str:
    """A row with the split of its file; anything else than an object is left to the check of the row."""
    content = json.loads(text)
    return json.dumps({**content, "split": split}) if isinstance(content, dict) else text


def _json_of(row: object, where: str) -> str:
    """A row of a table as JSON: a missing value is null, a date is text, and an empty split is none."""
    if isinstance(row, Exception):
        raise InvalidArgument(f"{where}: {row}")
    if isinstance(row, dict):
        row = {name: without_nan(value) for name, value in row.items() if name != "split" or value}
    text = json.dumps(row, default=_as_text, allow_nan=False)
    if len(text) > LARGEST_ROW:
        raise InvalidArgument(f"{where}: longer than {LARGEST_ROW >> 20} MB")
    if re.search(r"\\ud[89a-f]", text) and not _is_encodable(row):
        raise InvalidArgument(f"{where}: is not UTF-8, or contains a lone surrogate; save the file as UTF-8")
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
