"""Loads questions about SQLite files: Spider and BIRD in their layouts, or a folder with a table of questions.

The published layouts have JSON questions next to folders of SQLite files; see :mod:`gagpo.envs.sql.question_tables` for
the folder.
"""

from __future__ import annotations

import functools
import json
import logging
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gagpo.base.errors import InvalidArgument
from gagpo.base.row_files import renamed
from gagpo.envs.sql import question_tables
from gagpo.envs.sql.database import BadDatabase
from gagpo.envs.sql.golds import BadSource, check_golds
from gagpo.envs.sql.journals import with_log
from gagpo.envs.sql.question import Question
from gagpo.envs.tasks import TaskSet

# For each split: question files and database folders, in the order in which they are tried.
LAYOUT: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "train": (
        ("train_spider.json", "train.json", "train/train.json"),
        ("database", "train_databases", "train/train_databases"),
    ),
    "validation": (("dev.json", "dev/dev.json"), ("database", "dev_databases", "dev/dev_databases")),
    "test": (("test.json", "test_data/dev.json"), ("test_database", "test_databases", "database")),
    "unseen": ((), ()),
}
_MAX_NAMED = 10  # questions in a warning
log = logging.getLogger(__name__)

_PLAIN = re.compile(r"[A-Za-z0-9_. &()-]{1,100}", re.ASCII)


_KEYS = {"database": "db_id", "type": "difficulty"}
"""Keys of the published layouts where they differ from ours."""


@functools.lru_cache(maxsize=16)
def load_questions(
    folder: Path,
    split: str,
    on_bad_row: str = "refuse",
    hidden: int = 0,
    columns: tuple[tuple[str, str], ...] = (),
) -> tuple[TaskSet, dict[str, Question]]:
    """The questions of a split, after running their gold queries.

    Spider and BIRD have the keys ``question`` and ``db_id``, and the query in ``query`` or ``SQL``.

    folder: of the questions and the databases, or a file of questions in that folder.
    on_bad_row: ``refuse`` (raise :class:`BadSource`) or ``skip`` (and count).
    hidden: maximum number of hidden databases for a question. Logs a warning with the questions that have none.
    columns: pairs of one of :data:`gagpo.envs.sql.question.FIELDS` and the name of its column.
    """
    files, roots = LAYOUT[split]
    path = next((folder / name for name in files if (folder / name).is_file()), None)
    if path is not None:
        rows = _questions(path, [folder / root for root in roots], split, dict(columns))
    elif any((folder / name).is_file() for names, _ in LAYOUT.values() for name in names):
        return TaskSet(split, [], advice=f"{folder} has no {' or '.join(files) or 'such split'}."), {}
    else:
        path = folder
        rows = iter(question_tables.read(folder, columns).get(split, ()))
    questions: dict[str, Question] = {}
    skipped: list[BadSource] = []
    for row in check_golds(rows, hidden):
        if isinstance(row, Question):
            questions[row.id] = row
        elif on_bad_row == "refuse":
            raise row
        else:
            skipped.append(row)
    if skipped:
        log.warning("skipped %d bad rows; the first: %s", len(skipped), skipped[0])
    unchanged = [question for question in questions.values() if hidden and not question.copies]
    if unchanged:
        _warn_of(unchanged, path)
    advice = f"{folder} has no questions in it: add rows, or name a split in the column 'split'."
    return TaskSet(split, [question.task() for question in questions.values()], advice), questions


def _warn_of(questions: list[Question], path: Path) -> None:
    """Name the questions that have no hidden database."""
    row_names = [f"row {int(question.id.rpartition('-')[2])} ({question.text[:60]!r})" for question in questions]
    more = f" and {len(row_names) - _MAX_NAMED} more" if len(row_names) > _MAX_NAMED else ""
    plural = "s" if len(questions) > 1 else ""
    log.warning(
        "%s: no hidden database for %d question%s, so a constant answer can be right: %s%s",
        *(path, len(questions), plural, ", ".join(row_names[:_MAX_NAMED]), more),
    )


def _questions(
    path: Path, roots: list[Path], split: str, columns: dict[str, str]
) -> Iterator[tuple[str, Question] | BadSource]:
    """Each distinct row with its place, for messages, or what is wrong with it."""
    try:
        records = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise BadSource(f"not JSON ({str(error)[:100]})", where=path) from None
    except OSError as error:
        raise BadSource(f"cannot be read ({error.strerror})", where=path) from None
    if not isinstance(records, list):
        raise BadSource("must hold a list of questions", where=path)
    contents: set[tuple[object, ...]] = set()
    for number, record in enumerate(records):
        row_name = f"{path}, row {number}"
        try:
            record = _with_usual_keys(record, columns, row_name)
            question = _question(record, row_name, roots, f"{split}-{number:06d}", split)
        except BadSource as error:
            yield error
            continue
        content = (question.text, question.gold, question.database)
        if content not in contents:
            contents.add(content)
            yield row_name, question


def _with_usual_keys(record: Any, columns: dict[str, str], place: str) -> Any:
    """``record`` with the keys of the published layouts where ``columns`` names others."""
    if not columns or not isinstance(record, dict):
        return record
    try:
        return renamed(record, {_KEYS.get(name, name): column for name, column in columns.items()})
    except InvalidArgument as error:
        raise BadSource(error, where=place) from None


def _question(record: Any, place: str, roots: list[Path], name: str, split: str) -> Question:
    if not isinstance(record, dict):
        raise BadSource("not an object", where=place)
    text = _text(record, "question", place)
    folder = _text(record, "db_id", place)
    gold = _text(record, "query" if "query" in record else "SQL", place)
    if not _PLAIN.fullmatch(folder) or ".." in folder:
        raise BadSource(f"db_id {folder[:80]!r} is not a folder name", where=place)
    files = [root / folder / f"{folder}.sqlite" for root in roots]
    database = next((file for file in files if file.is_file()), None)
    if database is None:
        raise BadSource(f"there is no database {files[0]}", where=place)
    try:
        database = with_log(database)
    except BadDatabase as error:
        raise BadSource(error, where=place) from None
    for key in ("evidence", "difficulty", "hardness"):
        value = record.get(key)
        if isinstance(value, float) and not math.isfinite(value):
            raise BadSource(f"key {key!r} must be a text (got {value})", where=place)
    evidence = _sound(str(record.get("evidence") or ""), "evidence", place)
    difficulty = _sound(str(record.get("difficulty") or record.get("hardness") or folder)[:100], "difficulty", place)
    return Question(name, split, difficulty, text, gold, (), "", str(database), evidence)


def _text(record: dict[str, Any], key: str, place: str) -> str:
    value = record.get(key)
    if not isinstance(value, str) or not value.strip():
        raise BadSource(f"key {key!r} must be a text", where=place)
    return _sound(value, key, place)


def _sound(value: str, key: str, place: str) -> str:
    """``value`` if it can be encoded as UTF-8; JSON allows lone surrogates, UTF-8 does not."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise BadSource(f"key {key!r} contains a lone surrogate", where=place) from None
    return value
