"""Spider and BIRD as they are published: JSON questions beside folders of SQLite files."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gagpo.envs.errors import GagpoError
from gagpo.envs.sql.generate import Question
from gagpo.envs.tasks import Task, TaskSet

# split: question files and database folders, in the order in which they are looked for
LAYOUT: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "train": (
        ("train_spider.json", "train.json", "train/train.json"),
        ("database", "train_databases", "train/train_databases"),
    ),
    "validation": (("dev.json", "dev/dev.json"), ("database", "dev_databases", "dev/dev_databases")),
    "test": (("test.json", "test_data/dev.json"), ("test_database", "test_databases", "database")),
    "unseen": ((), ()),
}
_PLAIN = re.compile(r"[A-Za-z0-9_. &()-]{1,100}", re.ASCII)


class BadSource(GagpoError, ValueError):
    """A folder that is neither Spider's nor BIRD's, or a row that cannot be used; the message names file and row."""


@functools.lru_cache(maxsize=16)
def loaded(folder: Path, split: str) -> tuple[TaskSet, dict[str, Question]]:
    """The questions of a split. Both have ``question`` and ``db_id``, and the query as ``query`` or ``SQL``."""
    files, roots = LAYOUT[split]
    path = next((folder / name for name in files if (folder / name).is_file()), None)
    if path is None:
        if not any((folder / name).is_file() for names, _ in LAYOUT.values() for name in names):
            raise BadSource(f"{folder} holds neither Spider nor BIRD: there is no {' or '.join(LAYOUT['train'][0])}")
        return TaskSet(split, [], advice=f"{folder} has no {' or '.join(files) or 'such split'}."), {}
    questions = {}
    for question in _questions(path, [folder / root for root in roots], split):
        questions[question.id] = question
    tasks = [Task(q.id, split, q.type, q.task().digest, str(q.database)) for q in questions.values()]
    return TaskSet(split, tasks), questions


def _questions(path: Path, roots: list[Path], split: str) -> Iterator[Question]:
    try:
        records = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise BadSource(f"{path}: not JSON ({str(error)[:100]})") from None
    if not isinstance(records, list):
        raise BadSource(f"{path}: must hold a list of questions")
    seen: set[str] = set()
    for number, record in enumerate(records):
        where = f"{path}, row {number}"
        if not isinstance(record, dict):
            raise BadSource(f"{where}: not an object")
        text, name = _text(record, "question", where), _text(record, "db_id", where)
        gold = _text(record, "query" if "query" in record else "SQL", where)
        if not _PLAIN.fullmatch(name) or ".." in name:
            raise BadSource(f"{where}: db_id {name[:80]!r} is no folder's name")
        files = [root / name / f"{name}.sqlite" for root in roots]
        database = next((file for file in files if file.is_file()), None)
        if database is None:
            raise BadSource(f"{where}: there is no database {files[0]}")
        if (name, text, gold) in seen:  # type: ignore[comparison-overlap]
            continue
        seen.add((name, text, gold))  # type: ignore[arg-type]
        evidence = str(record.get("evidence") or "")
        kind = str(record.get("difficulty") or record.get("hardness") or name)[:100]
        yield Question(f"{split}-{number:06d}", split, kind, text, gold, (), "", database, evidence=evidence)


def _text(record: dict[str, Any], key: str, where: str) -> str:
    value = record.get(key)
    if not isinstance(value, str) or not value.strip():
        raise BadSource(f"{where}: key {key!r} must be a text")
    return value
