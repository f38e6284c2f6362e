"""A folder of SQLite files with a table of questions: CSV, TSV, JSONL, JSON or Parquet.

A row has a ``question``, its gold ``query``, and the name of its ``database`` unless the folder has a single one. It
may have ``evidence`` (a hint), a ``type`` and a ``split``. Without splits, in the column or in the names of the files,
the questions are divided by a hash of their text.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from gagpo.base.errors import GagpoError, InvalidArgument
from gagpo.base.row_files import (
    MAX_DEPTH,
    MAX_NAMED,
    SPLIT_WORDS,
    BadRow,
    DataMissing,
    Row,
    columns_text,
    file_rows,
    find_column,
    folder_rows,
    folder_splits,
)
from gagpo.envs.division import fill_splits, split_of
from gagpo.envs.sql.database import BadDatabase
from gagpo.envs.sql.golds import BadSource
from gagpo.envs.sql.journals import with_log
from gagpo.envs.sql.question import SPLITS, Question

DATABASES = (".sqlite", ".sqlite3", ".db")
_USUAL = {
    "question": ("question", "problem", "prompt"),
    "query": ("query", "sql", "gold", "answer"),
    "database": ("database", "db_id", "db"),
    "evidence": ("evidence", "hint"),
    "type": ("type", "difficulty", "hardness"),
    "split": ("split",),
}
"""The columns of each field, in the order in which they are tried."""
_DIVIDED = ("train", "validation", "test")

PlacedQuestion = tuple[str, Question]
"""The place of a row, for messages, and its question."""


@functools.lru_cache(maxsize=16)
def read(source: Path, columns: tuple[tuple[str, str], ...] = ()) -> Mapping[str, list[PlacedQuestion | BadSource]]:
    """The rows of each split, or what is wrong with them; gold queries are not run.

    source: a folder, or a file of questions in the folder of the databases.
    columns: pairs of one of :data:`gagpo.envs.sql.question.FIELDS` and the name of its column.

    Raises: BadSource, if there are no questions or no databases.
    """
    if not source.exists():
        raise BadSource(f"no folder {source}", advice="name one with SQLite files and a table of questions")
    folder = source if source.is_dir() else source.parent
    try:
        files = folder_splits(source) if source.is_dir() else {None: [source]}
        databases = _databases(folder)
        rows: dict[str, list[PlacedQuestion | BadSource]] = {split: [] for split in SPLITS}
        undivided: list[PlacedQuestion] = []
        for split, paths in files.items():
            for row in _distinct(_read_files(paths, dict(columns), databases, folder)):
                if isinstance(row, BadSource):
                    for name in (split,) if split else _DIVIDED:  # it could belong to any of them
                        rows[name].append(row)
                elif split or row[1].split:
                    _add(rows, row, split or row[1].split)
                else:
                    undivided.append(row)
    except (BadRow, DataMissing, InvalidArgument) as error:
        raise _with_layouts(error, source) from None
    filled = {split for split in SPLITS if any(not isinstance(row, BadSource) for row in rows[split])}
    division = fill_splits({question.text: split_of(question.text) for _, question in undivided}, _DIVIDED, filled)
    for row in undivided:
        _add(rows, row, division[row[1].text])
    return rows


def _with_layouts(error: GagpoError, source: Path) -> BadSource:
    """The error, with what a folder must hold if it holds nothing."""
    if str(error).startswith("no data in "):
        layouts = "a table with the columns question, query and database, or the files of Spider or BIRD"
        problem = "neither Spider nor BIRD nor a table of questions"
        return BadSource(problem, where=source, advice=f"write {layouts} into it")
    return BadSource(error)


def _add(rows: dict[str, list[PlacedQuestion | BadSource]], row: PlacedQuestion, split: str) -> None:
    row_name, question = row
    rows[split].append((row_name, replace(question, id=f"{split}-{question.id}", split=split)))


def _distinct(rows: Iterable[PlacedQuestion | BadSource]) -> Iterator[PlacedQuestion | BadSource]:
    """The rows without repeated ones."""
    contents = set()
    for row in rows:
        if not isinstance(row, BadSource):
            content = (row[1].text, row[1].gold, row[1].database)
            if content in contents:
                continue
            contents.add(content)
        yield row


def _read_files(
    paths: list[Path], columns: Mapping[str, str], databases: Mapping[str, Path], folder: Path
) -> Iterator[PlacedQuestion | BadSource]:
    def rows_of(path: Path) -> Iterator[tuple[int, object]]:
        return file_rows(path, "'question', 'query' and 'database'")

    for count, (path, number, row) in enumerate(folder_rows(paths, rows_of), 1):
        row_name = f"{path}, row {number}"
        try:
            yield row_name, _question(f"{count:06d}", row, columns, databases, folder)
        except (BadDatabase, ValueError) as error:
            yield BadSource(error, where=row_name)


def _question(
    name: str, row: object, columns: Mapping[str, str], databases: Mapping[str, Path], folder: Path
) -> Question:
    """The question of a row; ``split`` is '' if the row names none. Raises ValueError for a row that is wrong."""
    if isinstance(row, Exception):
        raise row
    if not isinstance(row, Mapping):
        raise InvalidArgument(f"must be an object with columns (got {type(row).__name__})")
    text = _text(row, "question", columns)
    gold = _text(row, "query", columns)
    path = _database(row, columns, databases, folder)
    evidence = _text(row, "evidence", columns, required=False)
    difficulty = _text(row, "type", columns, required=False)[:100] or path.stem
    split_name = _text(row, "split", columns, required=False).strip().lower()
    split = "unseen" if split_name == "unseen" else SPLIT_WORDS.get(split_name, "")
    if split_name and not split:
        raise InvalidArgument(f"unknown split {split_name!r:.80}", advice=f"choose one of {', '.join(SPLITS)}")
    return Question(name, split, difficulty, text, gold, (), "", str(with_log(path)), evidence)


def _text(row: Row, field: str, columns: Mapping[str, str], required: bool = True) -> str:
    """The text of a field; '' for one that is neither required nor there."""
    names = (columns[field],) if field in columns else _USUAL[field]
    column = find_column(row, names)
    if column is None:
        if not required and field not in columns:
            return ""
        advice = "" if field in columns else f"; name it with columns={{{field}: NAME}}"
        raise InvalidArgument(f"no column {' or '.join(map(repr, names))}", advice=f"{columns_text(row)}{advice}")
    value = row[column]
    if not required and (value is None or value == ""):
        return ""
    if not isinstance(value, str) or not value.strip():
        raise InvalidArgument(f"column {column!r} must be a text (got {value!r:.60})", key=column)
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise InvalidArgument(
            f"column {column!r} contains a lone surrogate or is not UTF-8", advice="save the file as UTF-8"
        )
    return value.strip()


# Databases ------------------------------------------------------------------------------------------------------------


def _databases(folder: Path) -> dict[str, Path]:
    """The SQLite files of a folder by name, without the suffix.

    Raises: InvalidArgument if there are none, or two of one name.
    """
    databases: dict[str, Path] = {}
    for path in sorted(_files_below(folder, MAX_DEPTH)):
        if path.stem in databases:
            raise InvalidArgument(f"two databases {path.stem!r}: {databases[path.stem]} and {path}", where=folder)
        databases[path.stem] = path
    if not databases:
        raise InvalidArgument(
            "no database", where=folder, advice=f"put files that end in {', '.join(DATABASES)} into it"
        )
    return databases


def _files_below(folder: Path, depth: int) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.name.startswith("."):
            continue
        if path.is_dir() and depth:
            yield from _files_below(path, depth - 1)
        elif path.suffix in DATABASES and path.is_file():
            yield path


def _database(row: Row, columns: Mapping[str, str], databases: Mapping[str, Path], folder: Path) -> Path:
    """The database of a row: the one that it names, or the only one of the folder."""
    names = (columns["database"],) if "database" in columns else _USUAL["database"]
    if find_column(row, names) is None and "database" not in columns and len(databases) == 1:
        return next(iter(databases.values()))
    name = _text(row, "database", columns)
    stem = next((name.removesuffix(suffix) for suffix in DATABASES if name.endswith(suffix)), name)
    if stem not in databases:
        more = f" and {len(databases) - MAX_NAMED} more" if len(databases) > MAX_NAMED else ""
        choices = ", ".join(list(databases)[:MAX_NAMED]) + more
        raise InvalidArgument(f"unknown database {name!r:.80}", advice=f"choose one of {choices}")
    return databases[stem]
