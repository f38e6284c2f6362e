"""Problems from Hugging Face data sets and local JSONL, CSV or Parquet files.

A :class:`Source` names the rows, the columns of problem and answer, and the format of the gold answer. Presets are
sources for common benchmarks. Every row is checked; a bad one raises an error with its row number, or is skipped and
counted.
"""

from __future__ import annotations

import functools
import json
import logging
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Literal, get_args

from gagpo.base.errors import InvalidArgument
from gagpo.envs.math.choices import choice_problem
from gagpo.envs.math.problems import SPLITS, Problem, check_split, content_key, split_of
from gagpo.envs.math.tables import BadRow, file_rows, hub_tables
from gagpo.envs.math.verify.answers import Words, canonical
from gagpo.envs.math.verify.extract import MAX_ANSWER, extract
from gagpo.envs.math.verify.verifier import read_gold
from gagpo.envs.tasks import TaskSet, UnknownTask

MAX_PROBLEM = 20_000
"""Longest problem text, in characters."""
MAX_WORDS = 20
"""Longest gold answer in words that is not taken for a worked solution."""
Gold = Literal["auto", "plain", "hashes", "boxed"]
_SUFFIXES = (".jsonl", ".json", ".csv", ".parquet")


@dataclass(frozen=True)
class Source:
    """A source of problems.

    path: a Hugging Face data set (``owner/name``) or a local file.
    config: the data set's configuration, if it has several.
    splits: our split -> the data set's. Without it, splits of equal name; a data set with one split is divided.
    problem, answer: columns; several names separated by ``|`` are tried in order.
    gold: format of the answer column: ``plain`` (the answer, or a list of answers), ``hashes`` (after ``####``),
        ``boxed`` (in the last box), or ``auto``: a worked solution with any of these marks or "The answer is", else
        plain.

    Rows with options are multiple-choice questions (:mod:`gagpo.envs.math.choices`).
    """

    path: str
    config: str | None = None
    splits: Mapping[str, str] | None = None
    problem: str = "problem|question|prompt|query|instruction"
    answer: str = "answer|final_answer|golden|gold|ground_truth|target|solution|output|response"
    gold: Gold = "auto"

    def __post_init__(self) -> None:
        if self.gold not in get_args(Gold):
            raise InvalidArgument(f"unknown gold format {self.gold!r}; choose from {', '.join(get_args(Gold))}")
        for split in self.splits or {}:
            check_split(split)

    @property
    def is_file(self) -> bool:
        return Path(self.path).suffix in _SUFFIXES

    @property
    def name(self) -> str:
        if self.is_file:
            return Path(self.path).stem.lower()
        return self.path.split("/")[-1].lower()


_TRAIN_AND_TEST = {"train": "train", "test": "test"}
PRESETS: dict[str, Source] = {
    "gsm8k": Source("openai/gsm8k", "main", _TRAIN_AND_TEST, problem="question", answer="answer", gold="hashes"),
    "math": Source(
        "DigitalLearningGmbH/MATH-lighteval", None, _TRAIN_AND_TEST, problem="problem", answer="solution", gold="boxed"
    ),
    "math-500": Source("HuggingFaceH4/MATH-500", None, {"test": "test"}, problem="problem", answer="answer"),
    "aime": Source("AI-MO/aimo-validation-aime", None, {"test": "train"}, problem="problem", answer="answer"),
    "aime-2024": Source("HuggingFaceH4/aime_2024", None, {"test": "train"}, problem="problem", answer="answer"),
    "aime-2025": Source("math-ai/aime25", None, {"test": "test"}, problem="problem", answer="answer"),
    "amc": Source("AI-MO/aimo-validation-amc", None, {"test": "train"}, problem="problem", answer="answer"),
    "minerva": Source("math-ai/minervamath", None, {"test": "test"}, problem="question", answer="answer"),
    "olympiadbench": Source(
        "Hothan/OlympiadBench", "OE_TO_maths_en_COMP", {"test": "train"}, problem="question", answer="final_answer"
    ),
}


def gold_of(value: object, gold_format: str) -> str:
    r"""The gold answer in a cell of the answer column; raises InvalidArgument for an unusable one.

    >>> gold_of("3 + 4 = <<3+4=7>>7\n#### 1,007", "hashes"), gold_of(r"Thus $\boxed{\frac{1}{2}}$.", "boxed")
    ('1,007', '\\frac{1}{2}')
    >>> gold_of(142.0, "plain"), gold_of(["$3$", "$5$"], "plain")
    ('142', '3, 5')
    """
    if isinstance(value, bool) or value is None:
        raise InvalidArgument(f"the answer is {value}")
    if isinstance(value, list | tuple):
        parts = [gold_of(item, gold_format) for item in value]
        if not parts:
            raise InvalidArgument("the answer is an empty list")
        if len(parts) > 1:
            return ", ".join(part.strip("$ ") for part in parts)
        return parts[0]
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidArgument(f"the answer is {value}, not a number")
    if isinstance(value, int | float):
        if abs(value) < 1e15 and value == int(value):
            return str(int(value))
        return repr(value)
    if not isinstance(value, str):
        raise InvalidArgument(f"the answer is of type {type(value).__name__}")
    if gold_format == "auto":
        value = _answer_of_solution(value)
    elif gold_format != "plain":
        extraction = extract(value, (gold_format,))
        if extraction is None:
            raise InvalidArgument(
                "the answer has no ####" if gold_format == "hashes" else r"the solution has no \boxed{...}"
            )
        value = extraction.text
    if not value.strip(" \t\n#"):
        raise InvalidArgument("the answer is empty")
    if len(value) > MAX_ANSWER:
        raise InvalidArgument(f"the answer is longer than {MAX_ANSWER} characters")
    return str(value).strip()


def _answer_of_solution(text: str) -> str:
    """The marked answer of a worked solution; ``text`` itself without a mark."""
    lines = [line for line in text.splitlines() if line.strip()]
    extraction = extract(text, ("hashes",)) or extract(text, ("boxed",))
    if extraction is None and len(lines) > 1:
        extraction = extract(text, ("phrase",))
    if extraction is not None:
        return extraction.text
    if len(text.split()) <= MAX_WORDS or (len(text) <= MAX_ANSWER and not isinstance(read_gold(text), Words)):
        return text
    raise InvalidArgument(
        r"the answer is a worked solution without ####, \boxed{...} or 'The answer is'; mark its answer"
    )


class LoadedProblems:
    """Problems by split, and the bad rows that were skipped.

    Of equal problems only the first is kept, held-out splits first, so splits never overlap. ``repeated`` holds the
    places of the others; one with another answer is a bad row.
    """

    def __init__(self) -> None:
        self.problems: dict[str, dict[str, Problem]] = {split: {} for split in SPLITS}
        self.skipped: list[str] = []
        self.repeated: list[str] = []
        self.advice = ""
        self._by_text: dict[str, Problem] = {}
        self._sets: dict[str, TaskSet] = {}

    def add(self, split: str | None, rows: Iterable[Problem | BadRow], path: str, on_bad_row: str) -> None:
        """Add rows to ``split``, or each to the split of its content; held-out splits must be added first."""
        for row in rows:
            if isinstance(row, Problem):
                row = self._checked_answer(row, path)
            if isinstance(row, BadRow):
                if on_bad_row == "refuse":
                    raise row
                self.skipped.append(str(row))
                continue
            spelling = " ".join(row.text.split())
            if spelling in self._by_text:
                self.repeated.append(f"{path}, row {int(row.id.rsplit('-', 1)[1])}")
                continue
            target = split or split_of(content_key(row.text) or spelling)
            name, number = row.id.rsplit("-", 1)
            row = self._by_text[spelling] = replace(row, id=f"{name}-{target}-{number}", split=target)
            self.problems[target][row.id] = row

    def _checked_answer(self, row: Problem, path: str) -> Problem | BadRow:
        """``row``, or the error that its problem was added with another answer."""
        first = self._by_text.get(" ".join(row.text.split()))
        if first is None or canonical(read_gold(first.answer)) == canonical(read_gold(row.answer)):
            return row
        return BadRow(
            f"{path}, row {int(row.id.rsplit('-', 1)[1])}: the answer is {row.answer[:60]!r}, "
            f"but {first.id} is the same problem with {first.answer[:60]!r}; remove one, or set on_bad_row: skip"
        )

    def tasks(self, split: str) -> TaskSet:
        if split not in self._sets:
            tasks = (problem.task() for problem in self.problems[split].values())
            self._sets[split] = TaskSet(split, tasks, self.advice)
        return self._sets[split]

    def problem(self, task_id: str) -> Problem:
        for problems in self.problems.values():
            if task_id in problems:
                return problems[task_id]
        raise UnknownTask(f"no problem {task_id[:80]!r} in this data")


Data = str | Mapping[str, object]


def load(data: Data, on_bad_row: str = "refuse") -> LoadedProblems:
    """Load all splits of ``data``; cached.

    data: one of

        - a preset, a Hugging Face data set (``owner/name``) or a file;
        - ``preset:path``: a file with the columns of that preset;
        - a mapping with ``path`` and further fields of :class:`Source`;
        - a mapping from splits to any of these.

        A file without a split is divided by content: a tenth test, a tenth validation, the rest training.
    on_bad_row: ``refuse`` (raise :class:`BadRow`) or ``skip`` (and count).
    """
    if on_bad_row not in ("refuse", "skip"):
        raise InvalidArgument(f"on_bad_row is 'refuse' or 'skip', got {on_bad_row!r}")
    return _load(json.dumps(data, sort_keys=True), on_bad_row)


@functools.lru_cache(maxsize=8)
def _load(data: str, on_bad_row: str) -> LoadedProblems:
    loaded = LoadedProblems()
    for split, source in _parts(json.loads(data)):
        if source.is_file:
            loaded.add(split, _check_rows(file_rows(Path(source.path)), source), source.path, on_bad_row)
        else:
            for our_split, rows in _hub_splits(source, split):
                loaded.add(our_split, _check_rows(enumerate(rows, 1), source), source.path, on_bad_row)
    available = [split for split in SPLITS if loaded.problems[split]]
    loaded.advice = f"This data has tasks for: {', '.join(available) or 'no split'}."
    if loaded.skipped:
        message = f"{len(loaded.skipped)} bad rows were skipped"
        logging.getLogger(__name__).warning("%s; the first: %s", message, loaded.skipped[0])
    if loaded.repeated:
        message = f"{len(loaded.repeated)} rows repeat a problem and were left out"
        logging.getLogger(__name__).warning("%s; the first: %s", message, loaded.repeated[0])
    return loaded


def _parts(data: object) -> list[tuple[str | None, Source]]:
    """Sources with their splits (None: unassigned), held-out splits first, so duplicates are dropped from training."""
    if isinstance(data, str) or (isinstance(data, dict) and "path" in data):
        return [(None, _source(data))]
    if not isinstance(data, dict) or not data:
        raise InvalidArgument(
            f"data must be a name, a mapping with a path, or a mapping from splits to those, got {data!r:.80}"
        )
    for split in data:
        check_split(split)
    return [(split, _source(data[split])) for split in reversed(SPLITS) if split in data]


def _source(data: object) -> Source:
    if isinstance(data, dict):
        field_names = [item.name for item in fields(Source)]
        for key in data:
            if key not in field_names:
                raise InvalidArgument(f"a source of problems has no field {key!r}; it has {', '.join(field_names)}")
        return Source(**data)
    if data in PRESETS:
        return PRESETS[data]
    preset, _, path = str(data).partition(":")
    if path and preset in PRESETS:
        return replace(PRESETS[preset], path=path, config=None)
    if isinstance(data, str) and (Path(data).suffix in _SUFFIXES or data.count("/") == 1):
        return Source(data)
    raise InvalidArgument(
        f"no data {data!r}: name a preset ({', '.join(PRESETS)}), a Hugging Face data set as owner/name, "
        f"or a file that ends in {', '.join(_SUFFIXES)}"
    )


def _check_rows(rows: Iterable[tuple[int, object]], source: Source) -> Iterator[Problem | BadRow]:
    for number, row in rows:
        try:
            yield _check_row(number, row, source)
        except (ValueError, RecursionError) as error:
            yield BadRow(f"{source.path}, row {number}: {error}")


def _check_row(number: int, row: object, source: Source) -> Problem:
    if isinstance(row, Exception):
        raise row
    if not isinstance(row, Mapping):
        raise InvalidArgument(f"not an object with columns but a {type(row).__name__}")
    text = _cell(row, source.problem)
    if not isinstance(text, str) or not text.strip():
        raise InvalidArgument("the problem is empty")
    choice = choice_problem(row, text, tuple(source.answer.split("|")))
    text, gold = choice or (text, gold_of(_cell(row, source.answer), source.gold))
    if len(text) > MAX_PROBLEM:
        raise InvalidArgument(f"the problem is longer than {MAX_PROBLEM} characters")
    read_gold(gold)
    for name, value in (("problem", text), ("answer", gold)):
        if any("\ud800" <= character <= "\udfff" for character in value):
            raise InvalidArgument(f"the {name} contains a lone surrogate or is not UTF-8; save the file as UTF-8")
    kinds = (row.get(column) for column in ("type", "subject", "subfield"))
    kind = next((kind[:80] for kind in kinds if kind and isinstance(kind, str)), source.name)
    return Problem(f"{source.name}-{number:06d}", "", kind.lower(), text.strip(), gold)


def _cell(row: Mapping[str, object], columns: str) -> object:
    """The first of ``columns`` that is not empty, in any case where none is spelled alike."""
    lower = {column.strip().lower(): column for column in reversed(list(row)) if isinstance(column, str)}
    names = columns.split("|")
    present = [column for column in names if column in row]
    present += [lower[column.lower()] for column in names if column.lower() in lower]
    for column in present:
        if row[column] is not None:
            return row[column]
    if present:
        return row[present[0]]
    columns_text = ", ".join(map(repr, list(row)[:12]))
    raise InvalidArgument(
        f"no column {' or '.join(map(repr, columns.split('|')))}; the row has {columns_text or 'no columns'}"
    )


def _hub_splits(source: Source, split: str | None) -> Iterator[tuple[str | None, Iterable[object]]]:
    """The requested splits of a Hugging Face data set with their rows, held-out ones first."""
    tables = hub_tables(source.path, source.config)
    names = source.splits or {our_split: our_split for our_split in SPLITS if our_split in tables}
    if split is not None:
        their_split = names.get(split, next(iter(tables)) if len(tables) == 1 else None)
        if their_split is None:
            raise InvalidArgument(f"{source.path} has no split {split!r}; it has {', '.join(tables)}")
        yield split, tables[their_split]
    elif source.splits is None and len(tables) == 1:
        yield None, next(iter(tables.values()))
    else:
        for our_split in reversed(SPLITS):
            if our_split in names:
                if names[our_split] not in tables:
                    raise InvalidArgument(
                        f"{source.path} has no split {names[our_split]!r}; it has {', '.join(tables)}"
                    )
                yield our_split, tables[names[our_split]]
