"""Questions with answers from a JSONL file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, JsonValue, StrictFloat, StrictInt, ValidationError

from gagpo.base import regular_file
from gagpo.base.errors import InvalidArgument, first_line
from gagpo.base.options import in_words, sentence
from gagpo.envs.tasks import Task, TaskSet

SPLITS = ("train", "test")


class _DemonstratedCall(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str
    arguments: dict[str, JsonValue] = Field(default_factory=dict)


class _Row(BaseModel):
    model_config = ConfigDict(extra="forbid")

    question: str = Field(min_length=1, max_length=20_000)
    answer: str | StrictInt | StrictFloat
    id: str | None = Field(default=None, min_length=1, max_length=200)
    split: str | None = None
    calls: list[_DemonstratedCall] = Field(default_factory=list, max_length=100)


@dataclass(frozen=True)
class ToolQuestion:
    """A question, its answer, and the calls of an expert before it answers."""

    text: str
    answer: str
    calls: tuple[tuple[str, Mapping[str, JsonValue]], ...] = ()


def read_questions(path: str | Path) -> tuple[dict[str, TaskSet], dict[str, ToolQuestion]]:
    """Tasks by split and questions by task id; InvalidArgument names the file and line of an invalid row.

    A row has ``question`` and ``answer``, and optionally ``id``, ``split`` (by default a fifth is ``test``, chosen by
    content) and ``calls``.
    """
    try:
        lines = [(number, line.decode()) for number, line in regular_file.read_lines(Path(path))]
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"questions {path}: cannot be read ({first_line(error)})") from None
    tasks: dict[str, list[Task]] = {split: [] for split in SPLITS}
    questions: dict[str, ToolQuestion] = {}
    contents: dict[str, int] = {}
    for number, line in lines:
        where = f"questions {path}, line {number}"
        row = _row(line, where)
        digest = hashlib.sha256(f"{row.question}\0{row.answer}".encode()).hexdigest()[:16]
        if digest in contents:
            raise InvalidArgument(f"{where}: the same as line {contents[digest]}")
        contents[digest] = number
        split = row.split or ("test" if int(digest, 16) % 5 == 0 else "train")
        if split not in SPLITS:
            raise InvalidArgument(f"{where}: unknown split {split!r:.80}; choose from {', '.join(SPLITS)}")
        name = row.id or digest
        if name in questions:
            raise InvalidArgument(f"{where}: another row has the id {name!r}")
        tasks[split].append(Task(name, split, "question", digest))
        calls = tuple((call.name, call.arguments) for call in row.calls)
        questions[name] = ToolQuestion(row.question, str(row.answer), calls)
    advice = f"{path} has no such row: add rows, or give them a split"
    return {split: TaskSet(split, found, advice) for split, found in tasks.items()}, questions


def same_answer(gold: str, said: str) -> bool:
    """Whether two answers are the same number, or the same words except for case and spaces.

    >>> same_answer("12", " 12.0 "), same_answer("Paris", "paris"), same_answer("12", "12 cm")
    (True, True, False)
    """
    one, two = (" ".join(text.casefold().split()) for text in (gold, said))
    if one == two:
        return True
    numbers = _number(one), _number(two)
    return None not in numbers and numbers[0] == numbers[1]


def _row(line: str, where: str) -> _Row:
    try:
        return _Row.model_validate(json.loads(line))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        key = ".".join(map(str, first["loc"]))
        raise InvalidArgument(f"{where}: {sentence(f'key {key!r:.80}', in_words(first['msg']))}") from None
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"{where}: not a JSON object ({first_line(error)})") from None


def _number(text: str) -> Decimal | None:
    try:
        found = Decimal(text.replace(",", "")) if len(text) < 64 else None
    except InvalidOperation:
        return None
    return found if found is not None and found.is_finite() and abs(found.adjusted()) < 1000 else None
