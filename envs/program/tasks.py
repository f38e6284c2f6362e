"""Tasks of a program from a JSONL file: one JSON object per line, which the program gets as it stands."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from pydantic import JsonValue

from gagpo.base import regular_file
from gagpo.base.errors import InvalidArgument, first_line
from gagpo.envs.tasks import Task, TaskSet

SPLITS = ("train", "test")
MOST_TEXT = 100_000  # characters of a row: an environment variable holds it

Row = dict[str, JsonValue]


def read_tasks(path: str | Path) -> tuple[dict[str, TaskSet], dict[str, Row]]:
    """Tasks by split and rows by task id.

    A row has an ``id``, and optionally a ``type`` and a ``split``. By default a fifth of the ids is ``test``: those
    whose SHA-256 is divisible by 5.

    Raises: InvalidArgument naming the file and the line of an invalid row.
    """
    try:
        lines = regular_file.read_bytes(Path(path)).decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"tasks {path}: cannot be read ({first_line(error)})") from None
    tasks: dict[str, list[Task]] = {split: [] for split in SPLITS}
    rows: dict[str, Row] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"tasks {path}, line {number}"
        row = _row(line, where)
        name = _text(row, "id", where)
        if not name or name in rows:
            raise InvalidArgument(f"{where}: {'another row has' if name else 'give the row'} the id {name or '...'!r}")
        chance = int(hashlib.sha256(name.encode()).hexdigest(), 16)
        split = _text(row, "split", where) or ("test" if chance % 5 == 0 else "train")
        if split not in SPLITS:
            raise InvalidArgument(f"{where}: unknown split {split!r:.80}; choose from {', '.join(SPLITS)}")
        digest = hashlib.sha256(json.dumps(row, sort_keys=True).encode()).hexdigest()[:16]
        tasks[split].append(Task(name, split, _text(row, "type", where), digest))
        rows[name] = row
    advice = f"{path} has no such row: add rows, or give them a split"
    return {split: TaskSet(split, found, advice) for split, found in tasks.items()}, rows


def _row(line: str, where: str) -> Row:
    try:
        row = json.loads(line)
        line.encode()
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"{where}: not a JSON object ({first_line(error)})") from None
    if not isinstance(row, dict):
        raise InvalidArgument(f"{where}: not a JSON object")
    if len(line) > MOST_TEXT or "\0" in json.dumps(row, ensure_ascii=False):
        raise InvalidArgument(f"{where}: longer than {MOST_TEXT:,} characters; put the data in a file and name it here")
    return row


def _text(row: Row, key: str, where: str) -> str:
    """The text at ``key``, '' if there is none."""
    value = row.get(key, "")
    if not isinstance(value, str) or len(value) > 200:
        raise InvalidArgument(f"{where}: key {key!r} must be a text of at most 200 characters, got {value!r:.80}")
    return value
