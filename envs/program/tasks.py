"""Tasks of a program from a JSONL file: one JSON object per line, which the program gets as it stands."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field, ValidationError

from gagpo.base import regular_file
from gagpo.base.errors import InvalidArgument, first_line
from gagpo.base.options import problems, sentence
from gagpo.envs.program.messages import Json
from gagpo.envs.tasks import Task, TaskSet

SPLITS = ("train", "test")
LARGEST_ROW = 8 << 20  # bytes


class _TaskRow(BaseModel):
    id: str = Field(min_length=1, max_length=200)
    split: Literal["train", "test"] | None = None
    type: str = Field("", max_length=200)


def read_tasks(path: str | Path) -> tuple[dict[str, TaskSet], dict[str, Json]]:
    """Tasks by split and rows by task id.

    A row has an ``id``, and optionally a ``type`` and a ``split``. By default a fifth of the ids is ``test``: those
    whose SHA-256 is divisible by 5.

    Raises: InvalidArgument naming the file and the line of an invalid row.
    """
    tasks: dict[str, list[Task]] = {split: [] for split in SPLITS}
    rows: dict[str, Json] = {}
    where = f"tasks {path}"
    try:
        for number, line in regular_file.read_lines(Path(path)):
            where = f"tasks {path}, line {number}"
            if len(line) > LARGEST_ROW:
                raise InvalidArgument(f"{where}: longer than {LARGEST_ROW >> 20} MB")
            text = line.decode()
            row = _TaskRow.model_validate_json(text)
            content = json.loads(text)  # with the keys that only the program reads
            if row.id in rows:
                raise InvalidArgument(f"{where}: another row has the id {row.id!r}")
            chance = int(hashlib.sha256(row.id.encode()).hexdigest(), 16)
            split = row.split or ("test" if chance % 5 == 0 else "train")
            digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
            tasks[split].append(Task(row.id, split, row.type, digest))
            rows[row.id] = content
    except InvalidArgument:
        raise
    except ValidationError as error:
        key, message, _ = problems(error)[0]
        raise InvalidArgument(f"{where}: {sentence(key or 'row', message)}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidArgument(f"{where}: cannot be read ({first_line(error)})") from None
    advice = f"{path} has no such row: add rows, or give them a split"
    return {split: TaskSet(split, split_tasks, advice) for split, split_tasks in tasks.items()}, rows
