r"""Multiple-choice rows: the question with its options, and the gold answer as a letter with its option.

Layouts that are read (column names in any case):

==================================  ==============================================================================
options                             answer
==================================  ==============================================================================
``choices`` or ``options``: a list  index from 0 (a number), letter, or the text of an option
a mapping of ``text`` and ``label``  one of the labels
a mapping from letters to texts     letter or text
a list of such mappings             one of the labels
columns ``A``, ``B``, ``C``, ...    letter or text
``Correct Answer`` and              none; the options are shown in an order that depends on the question only
``Incorrect Answer 1``, ...
==================================  ==============================================================================

A text in the column ``passage`` comes before the question.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import string
from collections.abc import Mapping
from typing import NamedTuple

from gagpo.base.errors import InvalidArgument
from gagpo.envs.math.verify.answers import Answer, Choice, canonical
from gagpo.envs.math.verify.extract import MAX_ANSWER
from gagpo.envs.math.verify.reading import Unreadable, read

LETTERS = string.ascii_uppercase[:10]
"""Letters of options; the verifier accepts only these."""
_OPTIONS = ("choices", "options", "choice", "option", "endings")
_KEYS = (
    *("label", "answerkey", "answer_key", "answer_idx", "answer_index", "correct", "correct_option", "correct_answer"),
    *("correct_index", "target", "gold", "gold_index"),
)
_WRONG = re.compile(r"(?:incorrect[ _]answer|distractor|wrong[ _]answer)[ _]?\d+")
_RIGHT = ("correct answer", "correct_answer", "best_answer")
_LABELLED = re.compile(r"\s*(?:\(([A-Ja-j])\)|([A-Ja-j])\s*[.):：、])\s*(.*)", re.DOTALL)
_LETTER = re.compile(r"\s*\(?([A-Ja-j])\)?[.:]?\s*")
_DIGITS = re.compile(r"\s*\d{1,3}\s*", re.ASCII)


class ChoiceProblem(NamedTuple):
    """A question with its options, one a line, and the gold answer."""

    text: str
    answer: str


class _Options(NamedTuple):
    texts: list[str]
    labels: list[str]


def choice_problem(row: Mapping[str, object], question: str, answers: tuple[str, ...]) -> ChoiceProblem | None:
    r"""The multiple-choice problem of a row, or None if the row has no options.

    question: the text of the problem.
    answers: columns of the answer, tried before the usual ones.

    Raises:
        InvalidArgument: the options cannot be read, or the answer is none of them.

    >>> choice_problem({"choices": ["3", "4"], "answer": 1}, "2 + 2?", ("answer",))
    ChoiceProblem(text='2 + 2?\n(A) 3\n(B) 4', answer='\\text{(B)} 4')
    >>> choice_problem({"answer": 4}, "2 + 2?", ("answer",)) is None
    True
    """
    columns = {name.strip().lower(): value for name, value in row.items() if isinstance(name, str)}
    separate = _separate_columns(columns, question)
    options = separate[0] if separate else _options_in_column(columns) or _options_by_letter(row)
    if options is None:
        return None
    if separate is not None:
        right = separate[1]
    else:
        right = _right(options, [columns.get(name.strip().lower()) for name in (*answers, *_KEYS)])
    passage = columns.get("passage")
    sections = [passage.strip()] if isinstance(passage, str) and passage.strip() else []
    lines = [f"({letter}) {text}" for letter, text in zip(LETTERS, options.texts, strict=False)]
    return ChoiceProblem("\n".join([*sections, question.strip(), *lines]), _gold(options.texts, right))


def _options_in_column(columns: Mapping[str, object]) -> _Options | None:
    """The options in a column such as ``choices``; None if there is no such column or it is empty."""
    name = next((name for name in _OPTIONS if columns.get(name) not in (None, "", [], {})), None)
    if name is None:
        return None
    value = columns[name]
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise InvalidArgument(
                f"column {name!r} is a text", advice='write a list of options: ["...", "..."]'
            ) from None
    return _checked(_of_value(value, name), name)


def _of_value(value: object, name: str) -> _Options:
    if isinstance(value, Mapping) and {"text", "label"} <= {*value}:
        texts = value["text"]
        labels = value["label"]
    elif isinstance(value, Mapping):
        texts = list(value.values())
        labels = list(value)
    elif isinstance(value, list | tuple) and value and all(isinstance(item, Mapping) for item in value):
        texts, labels = ([item.get(key) for item in value] for key in ("text", "label"))
    else:
        texts = value
        labels = None
    if not isinstance(texts, list | tuple):
        raise InvalidArgument(f"column {name!r} must be a list of options (got {type(value).__name__})", key=name)
    if labels is None:
        labels = [LETTERS[number : number + 1] for number in range(len(texts))]
    if not isinstance(labels, list | tuple) or len(labels) != len(texts):
        raise InvalidArgument(f"column {name!r} must have one label for each option", key=name)
    return _Options([_text(text) for text in texts], [_text(label) for label in labels])


def _options_by_letter(row: Mapping[str, object]) -> _Options | None:
    """The options in the columns A, B, C and so on."""
    present = [letter for letter in LETTERS if row.get(letter) not in (None, "")]
    if len(present) < 3 or present != list(LETTERS[: len(present)]):
        return None
    return _checked(_Options([_text(row[letter]) for letter in present], present), "A")


def _separate_columns(columns: Mapping[str, object], question: str) -> tuple[_Options, int] | None:
    """The options of a row with columns for the right and the wrong answers, and the index of the right one."""
    wrong_answers = [
        _text(value) for name, value in sorted(columns.items()) if _WRONG.fullmatch(name) and value not in (None, "")
    ]
    name = next((name for name in _RIGHT if columns.get(name) not in (None, "")), None)
    if not wrong_answers or name is None:
        return None
    right = _text(columns[name])
    # A fixed order that does not depend on which option is right.
    texts = sorted(
        [right, *wrong_answers],
        key=lambda text: hashlib.sha256(f"{question}\0{text}".encode(errors="replace")).digest(),
    )
    if texts.count(right) > 1:
        raise InvalidArgument(f"column {name!r} is also one of the wrong answers", key=name)
    return _checked(_Options(texts, list(LETTERS[: len(texts)])), name), texts.index(right)


def _text(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise InvalidArgument(f"an option is of type {type(value).__name__}", advice="write a text")
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidArgument(f"an option is {value}", advice="write a text")
    return str(value).strip()


def _checked(options: _Options, name: str) -> _Options:
    if not 2 <= len(options.texts) <= len(LETTERS):
        raise InvalidArgument(
            f"column {name!r} must have 2 to {len(LETTERS)} options (got {len(options.texts)})", key=name
        )
    label_matches = [_LABELLED.fullmatch(text) for text in options.texts]
    letters = [(match[1] or match[2]).upper() if match else "" for match in label_matches]
    if letters == list(LETTERS[: len(letters)]):
        texts = [match[3] for match in label_matches if match]
    else:
        texts = options.texts
    for text in texts:
        if not text:
            raise InvalidArgument(f"column {name!r} has an empty option", key=name)
    return _Options(texts, options.labels)


def _right(options: _Options, values: list[object]) -> int:
    """The index of the right option: of the first value that names one."""
    answers = [value for value in values if value not in (None, "", [])]
    if not answers:
        raise InvalidArgument("the row has options but no answer")
    for value in answers:
        index = _index(options, value)
        if index is not None:
            return index
    raise InvalidArgument(
        f"the answer {answers[0]!r:.60} is none of the {len(options.texts)} options",
        advice=f"write a letter, an option, or an index from 0 to {len(options.texts) - 1}",
    )


def _index(options: _Options, value: object) -> int | None:
    """The index of the option that ``value`` names; None if it names none."""
    if isinstance(value, list | tuple) and len(value) == 1:
        value = value[0]
    if isinstance(value, bool):
        return None
    count = len(options.texts)
    if isinstance(value, float) and value == value // 1:
        value = int(value)
    if isinstance(value, int):
        if f"{value}" in options.labels:
            return options.labels.index(f"{value}")
        return value if 0 <= value < count else None
    if not isinstance(value, str):
        return None
    candidates = {number for number, text in enumerate(options.texts) if text == value.strip()}
    if value.strip() in options.labels:
        candidates = {options.labels.index(value.strip())}
    elif letter := _LETTER.fullmatch(value):
        position = LETTERS.index(letter[1].upper())
        candidates |= {position} if position < count else set()
    elif _DIGITS.fullmatch(value) and int(value) < count:
        candidates.add(int(value))
    if len(candidates) > 1:
        raise InvalidArgument(f"the answer {value!r:.60} may be one of several options", advice="write a letter")
    return next(iter(candidates), None)


def _gold(texts: list[str], right: int) -> str:
    """The letter with its option; the letter alone if another option has the same value."""
    letter = LETTERS[right]
    readings = [_reading(LETTERS[number], text) for number, text in enumerate(texts)]
    value = readings[right]
    other_values = [
        canonical(reading) for number, reading in enumerate(readings) if number != right and reading is not None
    ]
    if value is None or canonical(value) in other_values:
        return letter
    return _with_letter(letter, texts[right])


def _with_letter(letter: str, text: str) -> str:
    return rf"\text{{({letter})}} {text}"


def _reading(letter: str, text: str) -> Answer | None:
    """The value of an option as the verifier reads it after its letter."""
    text_with_letter = _with_letter(letter, text)
    if len(text_with_letter) > MAX_ANSWER or "\n" in text:
        return None
    try:
        answer = read(text_with_letter)
    except Unreadable:
        return None
    if isinstance(answer, Choice) and answer.letter == letter:
        return answer.value
    return None
