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
from gagpo.envs.division import divided
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
        raise InvalidArgument(f"cannot be read ({first_line(error)})", where=f"questions {path}") from None
    tasks: list[Task] = []  # the split is '' where the row has none
    questions: dict[str, ToolQuestion] = {}
    contents: dict[str, int] = {}
    for number, line in lines:
        where = f"questions {path}, line {number}"
        row = _row(line, where)
        digest = hashlib.sha256(f"{row.question}\0{row.answer}".encode()).hexdigest()[:16]
        if digest in contents:
            raise InvalidArgument(f"the same as line {contents[digest]}", where=where)
        contents[digest] = number
        if row.split and row.split not in SPLITS:
            raise InvalidArgument(
                f"unknown split {row.split!r:.80}", where=where, advice=f"choose from {', '.join(SPLITS)}"
            )
        name = row.id or digest
        if name in questions:
            raise InvalidArgument(f"another row has the id {name!r}", where=where)
        tasks.append(Task(name, row.split or "", "question", digest))
        calls = tuple((call.name, call.arguments) for call in row.calls)
        questions[name] = ToolQuestion(row.question, str(row.answer), calls)
    by_chance = {task.id: "test" if int(task.digest, 16) % 5 == 0 else "train" for task in tasks}
    return divided(tasks, by_chance, SPLITS, f"{path} has no such row: add rows, or give them a split"), questions


def same_answer(gold: str, answer: str) -> bool:
    """Whether two answers are the same number, or the same words except for case and spaces.

    >>> same_answer("12", " 12.0 "), same_answer("Paris", "paris"), same_answer("12", "12 cm")
    (True, True, False)
    """
    gold_words = " ".join(gold.casefold().split())
    answer_words = " ".join(answer.casefold().split())
    if gold_words == answer_words:
        return True
    gold_number = _number(gold_words)
    return gold_number is not None and gold_number == _number(answer_words)


def _row(line: str, where: str) -> _Row:
    try:
        return _Row.model_validate(json.loads(line))
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        key = ".".join(map(str, problem["loc"]))
        raise InvalidArgument(f"{sentence(f'key {key!r:.80}', in_words(problem['msg']))}", where=where) from None
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"not a JSON object ({first_line(error)})", where=where) from None


def _number(text: str) -> Decimal | None:
    """The number that ``text`` consists of; None for other texts, and for numbers too large to compare cheaply."""
    if len(text) >= 64:
        return None
    try:
        number = Decimal(text.replace(",", ""))
    except InvalidOperation:
        return None
    return number if number.is_finite() and abs(number.adjusted()) < 1000 else None
