"""Problems from Hugging Face data sets, and from local files and folders of JSONL, CSV, TSV or Parquet.

A :class:`Source` names the rows, the columns of problem and answer, and the format of the gold answer. Presets are
sources for common benchmarks. Every row is checked; a bad one raises an error with its file, row and column, or is
skipped and counted.
"""

from __future__ import annotations

import functools
import json
import logging
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from gagpo.base.errors import InvalidArgument
from gagpo.base.row_files import (
    SPLIT_WORDS,
    SUFFIXES,
    BadRow,
    DataMissing,
    Row,
    checked_columns,
    columns_text,
    file_rows,
    find_column,
    folder_rows,
    folder_splits,
    suffix_of,
)
from gagpo.envs.argument_types import require_types
from gagpo.envs.division import fill_splits, part_of
from gagpo.envs.math.choices import choice_problem
from gagpo.envs.math.problems import FIELDS, SPLITS, Problem, check_split, content_key
from gagpo.envs.math.solutions import MAX_SOLUTION, SolutionCounts, count_solutions
from gagpo.envs.math.tables import hub_tables, saved_tables
from gagpo.envs.math.verify.answers import Words, canonical
from gagpo.envs.math.verify.extract import MAX_ANSWER, extract
from gagpo.envs.math.verify.verifier import read_gold
from gagpo.envs.tasks import TaskSet, UnknownTask

MAX_PROBLEM = 20_000
"""Longest problem text, in characters."""
MAX_WORDS = 20
"""Longest gold answer in words that is not taken for a worked solution."""
Gold = Literal["auto", "plain", "hashes", "boxed"]


@dataclass(frozen=True)
class Source:
    """A source of problems.

    path: a Hugging Face data set (``owner/name``), a local file, or a folder in a layout of Hugging Face data sets.
    config: the data set's configuration, if it has several.
    splits: our split -> the data set's. Without it, splits of equal name; a data set with one split is divided. Where
        two of ours name the same one, its problems are divided between them by content.
    problem, answer: columns; several names separated by ``|`` are tried in order.
    columns: from :data:`FIELDS` to the data's columns, instead of the usual names.
    gold: format of the answer column: ``plain`` (the answer, or a list of answers), ``hashes`` (after ``####``),
        ``boxed`` (in the last box), or ``auto``: a worked solution with any of these marks or "The answer is", else
        plain.
    accept: ``all`` or ``any`` of a list of answers must be given.

    Rows with options are multiple-choice questions (:mod:`gagpo.envs.math.choices`).
    """

    path: str
    config: str | None = None
    splits: Mapping[str, str] | None = None
    problem: str = "problem|question|prompt|query|instruction"
    answer: str = "answer|final_answer|golden|gold|ground_truth|target|solution|output|response"
    gold: Gold = "auto"
    accept: Literal["all", "any"] = "all"
    columns: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        checked_columns(self.columns, FIELDS)
        if self.gold not in get_args(Gold):
            raise InvalidArgument(
                f"unknown gold format {self.gold!r}", advice=f"choose from {', '.join(get_args(Gold))}"
            )
        if self.accept not in ("all", "any"):
            raise InvalidArgument(f"accept must be all or any (got {self.accept!r:.80})", key="accept")
        for split in self.splits or {}:
            check_split(split)

    @property
    def is_file(self) -> bool:
        return not self.is_folder and (suffix_of(Path(self.path)) in SUFFIXES or Path(self.path).is_file())

    @property
    def is_folder(self) -> bool:
        return Path(self.path).is_dir()

    @property
    def name(self) -> str:
        if self.is_file:
            return Path(self.path).stem.lower()
        if self.is_folder:
            return Path(self.path).resolve().name.lower()
        return self.path.split("/")[-1].lower()

    def columns_of(self, field: str) -> tuple[str, ...]:
        """The columns that may hold a field, in the order in which they are tried."""
        if self.columns and field in self.columns:
            return (self.columns[field],)
        usual = {"problem": self.problem, "answer": self.answer, "type": "type|subject|subfield"}
        return tuple(usual.get(field, field).split("|"))


_TRAIN_AND_TEST = {"train": "train", "test": "test"}
_HELD_OUT = {"train": "train", "validation": "train", "test": "test"}  # a tenth of the training problems validates
PRESETS: dict[str, Source] = {
    "gsm8k": Source("openai/gsm8k", "main", _HELD_OUT, problem="question", answer="answer", gold="hashes"),
    "math": Source(
        "DigitalLearningGmbH/MATH-lighteval", None, _TRAIN_AND_TEST, problem="problem", answer="solution", gold="boxed"
    ),
    "math-500": Source("HuggingFaceH4/MATH-500", None, {"test": "test"}, problem="problem", answer="answer"),
    "aime": Source("AI-MO/aimo-validation-aime", None, {"test": "train"}, problem="problem", answer="answer"),
    "aime-2024": Source("HuggingFaceH4/aime_2024", None, {"test": "train"}, problem="problem", answer="answer"),
    "aime-2025": Source("math-ai/aime25", None, {"test": "test"}, problem="problem", answer="answer"),
    "amc": Source("AI-MO/aimo-validation-amc", None, {"test": "train"}, problem="problem", answer="answer"),
    "amc-2023": Source("math-ai/amc23", None, {"test": "test"}, problem="question", answer="answer"),
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
        answers = [gold_of(item, gold_format) for item in value]
        if not answers:
            raise InvalidArgument("the answer is an empty list")
        if len(answers) > 1:
            return ", ".join(answer.strip("$ ") for answer in answers)
        return answers[0]
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
        r"the answer is a worked solution without ####, \boxed{...} or 'The answer is'", advice=r"mark its answer"
    )


class LoadedRow(NamedTuple):
    """A row of the data: its place for messages, and its problem or what is wrong with it.

    split: what its column says; None without one.
    """

    place: str
    content: Problem | BadRow
    split: str | None = None


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
        self._by_text: dict[str, LoadedRow] = {}
        self._sets: dict[str, TaskSet] = {}

    def add(self, splits: tuple[str, ...], rows: Iterable[LoadedRow], on_bad_row: str) -> None:
        """Add rows to the only one of ``splits``, or divide them between these; held-out splits are added first.

        A row that is divided goes to the split of its column, else of its content.
        """
        only = splits[0] if len(splits) == 1 else None
        accepted: list[tuple[str, LoadedRow]] = []
        for row in rows:
            row = self._checked_answer(row)
            if isinstance(row.content, BadRow):
                if on_bad_row == "refuse":
                    raise row.content
                self.skipped.append(str(row.content))
                continue
            spelling = " ".join(row.content.text.split())
            if spelling in self._by_text:
                self.repeated.append(row.place)
                continue
            self._by_text[spelling] = row
            accepted.append((content_key(row.content.text) or spelling, row))
        undecided = {key for key, row in accepted if (only or row.split) is None}
        filled = {row.split for _, row in accepted if row.split}
        division = fill_splits({key: part_of(key, splits) for key in sorted(undecided)}, splits, filled)
        for key, row in accepted:
            assert isinstance(row.content, Problem)
            name, number = row.content.id.rsplit("-", 1)
            target = only or row.split or division[key]
            problem = replace(row.content, id=f"{name}-{target}-{number}", split=target)
            self.problems[target][problem.id] = problem

    def _checked_answer(self, row: LoadedRow) -> LoadedRow:
        """``row``, or the error that its problem was added with another answer."""
        if not isinstance(row.content, Problem):
            return row
        first = self._by_text.get(" ".join(row.content.text.split()))
        if first is None or not isinstance(first.content, Problem):
            return row
        answer, first_answer = row.content.answer, first.content.answer
        if canonical(read_gold(first_answer)) == canonical(read_gold(answer)):
            return row
        error = BadRow(
            f"the answer is {answer[:60]!r}, but {first.place} is the same problem with {first_answer[:60]!r}",
            where=row.place,
            advice="remove one, or set on_bad_row: skip",
        )
        return row._replace(content=error)

    def tasks(self, split: str) -> TaskSet:
        if split not in self._sets:
            tasks = (problem.task() for problem in self.problems[split].values())
            self._sets[split] = TaskSet(split, tasks, self.advice)
        return self._sets[split]

    def count_solutions(self, split: str, max_turns: int, with_tools: bool) -> SolutionCounts:
        """How many problems of ``split`` have a solution that the expert can follow; takes a second for thousands."""
        return count_solutions(split, self.problems[split].values(), max_turns, with_tools)

    def problem(self, task_id: str) -> Problem:
        for problems in self.problems.values():
            if task_id in problems:
                return problems[task_id]
        raise UnknownTask(f"no problem {task_id[:80]!r} in this data")


Data = str | Mapping[str, object]


def load(data: Data, on_bad_row: str = "refuse", columns: Mapping[str, str] | None = None) -> LoadedProblems:
    """Load all splits of ``data``; cached.

    data: one of

        - a preset, a Hugging Face data set (``owner/name``), a file or a folder;
        - ``preset:path``: a file or folder with the columns of that preset;
        - a mapping with ``path`` and further fields of :class:`Source`;
        - a mapping from splits to any of these.

        A file without a split is divided by its column ``split``, else by content: a tenth test, a tenth validation,
        the rest training.
    on_bad_row: ``refuse`` (raise :class:`BadRow`) or ``skip`` (and count).
    columns: from :data:`FIELDS` to the data's columns, instead of the usual names.
    """
    if on_bad_row not in ("refuse", "skip"):
        raise InvalidArgument(f"on_bad_row must be 'refuse' or 'skip' (got {on_bad_row!r:.80})", key="on_bad_row")
    columns = checked_columns(columns, FIELDS)
    return _load(json.dumps(data, sort_keys=True), on_bad_row, json.dumps(columns, sort_keys=True))


@functools.lru_cache(maxsize=8)
def _load(data: str, on_bad_row: str, columns: str) -> LoadedProblems:
    loaded = LoadedProblems()
    for split, source in _parts(json.loads(data)):
        if columns != "{}":
            source = replace(source, columns={**(source.columns or {}), **json.loads(columns)})
        for splits, rows in _rows_by_split(source, split):
            loaded.add(splits, _checked_rows(rows, source), on_bad_row)
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
            f"data must be a name, a mapping with a path, or a mapping from splits to those, got {data!r:.80}",
            key="data",
        )
    for split in data:
        check_split(split)
    return [(split, _source(data[split])) for split in reversed(SPLITS) if split in data]


def _source(data: object) -> Source:
    if isinstance(data, dict):
        field_names = [item.name for item in fields(Source)]
        for key in data:
            if key not in field_names:
                raise InvalidArgument(
                    f"a source of problems has no field {key!r}", advice=f"it has {', '.join(field_names)}"
                )
        if "path" not in data:
            raise InvalidArgument(f"data: a source of problems needs a path (got {data!r:.80})", key="data")
        require_types(
            "data", Source, {key: data[key] for key in data if key not in ("gold", "accept")}
        )  # Source checks these
        return Source(**data)
    if isinstance(data, str) and data in PRESETS:
        return PRESETS[data]
    preset, _, path = str(data).partition(":")
    if path and preset in PRESETS:
        if not Path(path).exists():
            raise DataMissing(f"no file or folder {path}", advice=f"data={preset} downloads {PRESETS[preset].path}")
        # A file has no configurations; a folder of the whole data set has the preset's.
        return replace(PRESETS[preset], path=path, config=PRESETS[preset].config if Path(path).is_dir() else None)
    is_local = isinstance(data, str) and (suffix_of(Path(data)) in SUFFIXES or Path(data).exists())
    if isinstance(data, str) and (is_local or data.count("/") == 1):
        return Source(data)
    raise InvalidArgument(
        f"no data {data!r}",
        key="data",
        advice=(
            f"name a preset ({', '.join(PRESETS)}), a Hugging Face data set as owner/name, a folder, "
            f"or a file that ends in {', '.join(SUFFIXES)}"
        ),
    )


# Rows -----------------------------------------------------------------------------------------------------------------

PlacedRow = tuple[str, int, object]
"""The place of a row for messages, its number in its split, and its content."""


def _checked_rows(rows: Iterable[PlacedRow], source: Source) -> Iterator[LoadedRow]:
    for row_name, number, row in rows:
        try:
            yield _checked_row(row_name, number, row, source)
        except (ValueError, RecursionError) as error:
            yield LoadedRow(row_name, BadRow(error, where=row_name))


def _checked_row(place: str, number: int, row: object, source: Source) -> LoadedRow:
    if isinstance(row, Exception):
        raise row
    if not isinstance(row, Mapping):
        raise InvalidArgument(f"not an object with columns but a {type(row).__name__}")
    row = _with_ground_truth(row)
    column, text = _cell(row, source, "problem")
    text = _problem_text(column, text)
    if not isinstance(text, str) or not text.strip():
        raise InvalidArgument(f"column {column!r}: the problem is empty", key=column)
    choice = choice_problem(_with_usual_names(row, source), text, source.columns_of("answer"))
    column, cell = ("", "") if choice else _cell(row, source, "answer")
    try:
        alternatives = cell if source.accept == "any" and isinstance(cell, list | tuple) and cell else [cell]
        texts = [] if choice else [gold_of(item, source.gold) for item in alternatives]
        text, gold = choice or (text, texts[0])
        for accepted in (gold, *texts[1:]):
            read_gold(accepted)
    except ValueError as error:
        raise InvalidArgument(f"column {column!r}: {error}" if column else str(error), key=column or None) from None
    if len(text) > MAX_PROBLEM:
        raise InvalidArgument(f"the problem is longer than {MAX_PROBLEM} characters")
    for name, value in (("problem", text), ("answer", gold)):
        if any("\ud800" <= character <= "\udfff" for character in value):
            raise InvalidArgument(
                f"the {name} contains a lone surrogate or is not UTF-8", advice="save the file as UTF-8"
            )
    solution = _solution(row, source, cell, gold)
    problem = Problem(
        f"{source.name}-{number:06d}", "", _type(row, source), text.strip(), gold, (), solution, tuple(texts[1:])
    )
    return LoadedRow(place, problem, _split(row, source))


def _with_ground_truth(row: Row) -> Row:
    """``row`` with the answer of verl's column ``reward_model`` as a column of its own."""
    nested = row.get("reward_model")
    if isinstance(nested, Mapping) and "ground_truth" in nested and row.get("ground_truth") is None:
        return {**row, "ground_truth": nested["ground_truth"]}
    return row


def _problem_text(column: str, value: object) -> object:
    """The problem in a list of messages: that of its only user; a system message is left to the prompt.

    Other values are returned as they are.
    """
    if not isinstance(value, list | tuple):
        return value
    expected = "a list of messages must have one user message with text, and otherwise system messages"
    contents = []
    for message in value:
        content = message.get("content") if isinstance(message, Mapping) else None
        if isinstance(content, list):  # text in parts
            texts = [segment.get("text") if isinstance(segment, Mapping) else None for segment in content]
            content = "".join(map(str, texts)) if None not in texts else None
        if not isinstance(content, str) or message.get("role") not in ("system", "user"):
            raise InvalidArgument(f"column {column!r}: {expected}", key=column)
        if message["role"] == "user":
            contents.append(content)
    if len(contents) != 1:
        raise InvalidArgument(f"column {column!r}: {expected} (got {len(contents)} user messages)", key=column)
    return contents[0]


def _type(row: Row, source: Source) -> str:
    """The type of the task: the first text in its columns, else the name of the data."""
    if source.columns and "type" in source.columns:
        _cell(row, source, "type")  # raises for a column that is missing
    labels = (row.get(column) for column in source.columns_of("type"))
    return next((label[:80] for label in labels if label and isinstance(label, str)), source.name).lower()


def _solution(row: Row, source: Source, answer: object, gold: str) -> str:
    """The worked solution of a row: its column ``solution``, else the answer's cell if that is longer than the answer.

    One that is too long, or cannot be encoded, is left out: only the expert reads it.
    """
    if source.columns and "solution" in source.columns:
        solution = _cell(row, source, "solution")[1]
    else:
        column = find_column(row, source.columns_of("solution"))
        solution = row[column] if column is not None else answer
    if not isinstance(solution, str) or len(solution) > MAX_SOLUTION or solution.strip() == gold:
        return ""
    return "" if any("\ud800" <= character <= "\udfff" for character in solution) else solution


def _split(row: Row, source: Source) -> str | None:
    """The split that a row of a file names; None if it names none. Data sets of the hub have splits of their own."""
    is_named = bool(source.columns and "split" in source.columns)
    if not is_named and (not source.is_file or find_column(row, ("split",)) is None):
        return None
    column, value = _cell(row, source, "split")
    if value is None or value == "":
        return None
    split = SPLIT_WORDS.get(value.strip().lower()) if isinstance(value, str) else None
    if split is None:
        raise InvalidArgument(
            f"column {column!r}: unknown split {value!r:.80}", key=column, advice=f"choose one of {', '.join(SPLITS)}"
        )
    return split


def _with_usual_names(row: Row, source: Source) -> Row:
    """``row`` with its options and passage under the names that multiple-choice questions have."""
    mapped = [field for field in ("choices", "passage") if source.columns and field in source.columns]
    return {**row, **{field: _cell(row, source, field)[1] for field in mapped}} if mapped else row


def _cell(row: Row, source: Source, field: str) -> tuple[str, object]:
    """The column of a field and its value: the first that is not empty."""
    names = source.columns_of(field)
    column = find_column(row, names)
    if column is not None:
        return column, row[column]
    advice = "" if source.columns and field in source.columns else f"; name it with columns={{{field}: NAME}}"
    raise InvalidArgument(f"no column {' or '.join(map(repr, names))}", advice=f"{columns_text(row)}{advice}")


# Splits ---------------------------------------------------------------------------------------------------------------


def _rows_by_split(source: Source, split: str | None) -> Iterator[tuple[tuple[str, ...], Iterable[PlacedRow]]]:
    """The rows of a source, each part with the splits to divide it between; held-out splits first."""
    if source.is_file:
        path = Path(source.path)
        rows = ((f"{path}, row {number}", number, row) for number, row in file_rows(path))
        yield ((split,) if split else SPLITS), rows
        return
    tables = _tables(source)
    for splits, name in _chosen_splits(source, split, list(tables)):
        yield splits, tables[name]


def _tables(source: Source) -> dict[str, Iterable[PlacedRow]]:
    """The rows of a folder or of a Hugging Face data set by the name of their split."""
    if not source.is_folder:
        try:
            return _placed(hub_tables(source.path, source.config), source.path)
        except DataMissing as error:
            preset = next((name for name, other in PRESETS.items() if other.path == source.path), "")
            folder = f"{preset}:FOLDER" if preset else "FOLDER"
            raise DataMissing(f"{error}, or name a folder that holds its files: data={folder}", key="data") from None
    saved = saved_tables(Path(source.path))
    if saved is not None:
        return _placed(saved, source.path)
    files = folder_splits(Path(source.path), source.config, "data")
    return {split or "train": _rows_of_files(paths) for split, paths in files.items()}


def _placed(tables: Mapping[str, Iterable[object]], path: str) -> dict[str, Iterable[PlacedRow]]:
    return {
        name: [(f"{path}, row {number}", number, row) for number, row in enumerate(rows, 1)]
        for name, rows in tables.items()
    }


def _rows_of_files(paths: list[Path]) -> Iterator[PlacedRow]:
    """The rows of several files, numbered through."""
    first = last = 0
    previous = None
    for path, number, row in folder_rows(paths):
        if path != previous:
            previous, first = path, last
        last = first + number
        yield f"{path}, row {number}", last, row


def _chosen_splits(source: Source, split: str | None, available: list[str]) -> list[tuple[tuple[str, ...], str]]:
    """The data's splits to read, held-out ones first, each with those of our splits that it is divided between."""
    alone = available[0] if len(available) == 1 else None
    names = source.splits or {our_split: our_split for our_split in SPLITS if our_split in available}
    if split is not None:
        their_split = names.get(split, alone)
        # A part of the data's training problems is a split only where the whole data set is divided.
        is_part = their_split != split and len(_sharing(names, their_split)) > 1
        if their_split not in available or is_part:
            raise InvalidArgument(
                f"has no split {split!r}", key="split", where=source.path, advice=f"it has {', '.join(available)}"
            )
        return [((split,), their_split)]
    if alone is not None and (source.is_folder or source.splits is None) and alone not in ("validation", "test"):
        return [(SPLITS, alone)]
    their_splits = dict.fromkeys(names[name] for name in reversed(SPLITS) if name in names)
    for name in their_splits:
        if name not in available:
            raise InvalidArgument(
                f"has no split {name!r}", key="split", where=source.path, advice=f"it has {', '.join(available)}"
            )
    return [(_sharing(names, name), name) for name in their_splits]


def _sharing(names: Mapping[str, str], their_split: str | None) -> tuple[str, ...]:
    """Our splits that name one split of the data, in the order of :data:`SPLITS`."""
    return tuple(split for split in SPLITS if names.get(split) == their_split)
