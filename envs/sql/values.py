"""Values for the columns of perturbed databases: those of the column, and neighbours of them."""

from __future__ import annotations

import datetime
import math
import random
import re
from collections.abc import Sequence
from typing import Any

from gagpo.envs.sql.structure import TableColumn

_CATEGORIES = 12  # at most; a column with more values is not one of categories
_DAY = re.compile(r"(\d{4})-(\d{2})-(\d{2})(.*)", re.DOTALL)
_MONTH = re.compile(r"\d{4}(?:-\d{2})?\Z")
_LARGEST = 2**53  # integers are moved in this range, in which floats are exact, too
_DIGITS = 16  # of an integer in a text; one with fewer is in that range
_TRIES = 20  # for a value that is new


class ColumnValues:
    """The values that a column of one perturbed database may take.

    What is true of the column's values stays true, because right queries may rely on it: no nulls, no value twice.

    unique: no value twice.
    optional: some values are null.
    literals: values that the gold query compares the column with; they are drawn more often.
    rate: probability that a value changes.
    """

    def __init__(
        self, column: TableColumn, values: Sequence[Any], literals: Sequence[Any], rate: float, rng: random.Random
    ):
        self.values = [value for value in values if value is not None] or list(_defaults(column.affinity))
        distinct = list(dict.fromkeys(self.values))
        self.key = column.key
        self.unique = column.key or (len(distinct) == len(values) > 1)
        self.optional = None in values if values else not column.required
        self.rate = rate
        self._rng = rng
        self.literals = [value for literal in literals if (value := self._as_stored(literal)) is not None]
        self._used: set[Any] = set()
        numbers = [value for value in self.values if isinstance(value, int | float) and math.isfinite(value)]
        self._low = min(numbers, default=0)
        self._high = max(numbers, default=0)
        self._pending = self._next_to_literals() if self.unique else []
        self._categories = len(distinct) <= _CATEGORIES and len(self.values) >= 2 * len(distinct)
        if self._categories and rng.random() < 0.5:
            remaining = rng.sample(distinct, rng.randint(max(1, len(distinct) // 2), len(distinct)))
            self.values = [value for value in self.values if value in remaining]

    def _as_stored(self, literal: Any) -> Any:
        """A literal as the column would store it; None if the column has no values of its type."""
        if any(isinstance(literal, str) == isinstance(value, str) for value in self.values):
            return literal
        if not isinstance(literal, str):
            return str(literal)
        if literal.isascii() and literal.isdigit() and len(literal) < _DIGITS:
            return int(literal)
        return None

    def _next_to_literals(self) -> list[Any]:
        """The literals and the integers next to them: a condition that is one off must fail somewhere."""
        neighbours = [
            literal + step
            for literal in self.literals
            for step in ((-1, 1) if isinstance(literal, int) and self._low <= literal <= self._high else ())
        ]
        return [*neighbours, *self.literals]

    def draw(self, value: Any) -> Any:
        """A value for a row that has ``value`` in the user's database; None where no unused one is found."""
        return self._unique(value) if self.unique else self._draw(value)

    def use(self, value: Any) -> None:
        """Note that a row has ``value``."""
        self._used.add(value)

    def is_unused(self, value: Any) -> bool:
        return value not in self._used

    def _draw(self, value: Any) -> Any:
        rng = self._rng
        if self.literals and rng.random() < 0.3:
            return self._near(rng.choice(self.literals))
        if value is None and self.optional and rng.random() < 0.7:
            return None
        if value is not None and rng.random() >= self.rate and (not self._categories or value in self.values):
            return value
        sample = rng.choice(self.values)
        if self._categories or rng.random() < 0.5:
            return sample
        return self._neighbour(sample)

    def _near(self, literal: Any) -> Any:
        """A literal, or a number next to it, or a day in the month or year that it names."""
        rng = self._rng
        if isinstance(literal, str):
            days = [value for value in self.values if isinstance(value, str) and _DAY.match(value)]
            if days and _MONTH.match(literal):
                return literal + rng.choice(days)[len(literal) :]
            return literal
        if self._categories or rng.random() < 0.5:
            return literal
        number = literal + rng.choice((-1, 1, rng.randint(-5, 5)))
        return number if self._low < 0 or number >= 0 else literal

    def _unique(self, value: Any) -> Any:
        rng = self._rng
        if value is None and self.optional and rng.random() < 0.7:
            return None
        if self._pending and rng.random() < 0.7:
            value = self._pending.pop()
        elif rng.random() < (self.rate / 4 if self.key else self.rate):
            value = self._neighbour(rng.choice(self.values))
        for _ in range(_TRIES):
            if value is not None and value not in self._used:
                return value
            value = self._neighbour(rng.choice(self.values))
        if self.key and all(isinstance(number, int) for number in self.values):
            return max([self._high, *(number for number in self._used if isinstance(number, int))]) + 1
        return None

    def _neighbour(self, value: Any) -> Any:
        if isinstance(value, str):
            return _other_text(value, self._rng, [text for text in self.values if isinstance(text, str)])
        if isinstance(value, int | float) and math.isfinite(value) and abs(value) < _LARGEST:
            return self._other_number(value)
        return value

    def _other_number(self, value: int | float) -> int | float:
        """A number near ``value``, negative only if the column has negative ones, with as many decimals."""
        spread = max(1, (self._high - self._low) / 4)
        if isinstance(value, int):
            number: int | float = value + self._rng.randint(-math.ceil(spread), math.ceil(spread))
        else:
            decimals = len(repr(value).partition(".")[2]) if "e" not in repr(value) else 6
            number = round(value + self._rng.uniform(-spread, spread), max(decimals, 1))
        return number if self._low < 0 or number >= 0 else -number


def _defaults(affinity: str) -> Sequence[Any]:
    """Values for a column that has none."""
    if affinity == "TEXT":
        return tuple("abcdefgh")
    return tuple(range(1, 9))


def _other_text(text: str, rng: random.Random, texts: Sequence[str]) -> str:
    """A text of the same form: a day some days away, other digits, words of two texts, or another letter."""
    if day := _DAY.match(text):
        try:
            date = datetime.date(int(day[1]), int(day[2]), int(day[3]))
            return f"{date + datetime.timedelta(rng.randint(-400, 400))}{day[4]}"
        except (ValueError, OverflowError):
            return text
    if any(character.isdecimal() for character in text):
        return "".join(str(rng.randint(1, 9)) if character in "123456789" else character for character in text)
    tokens = text.split(" ")
    other_words = rng.choice(texts).split(" ")
    if len(tokens) > 1 and len(other_words) > 1 and rng.random() < 0.7:
        return " ".join([*tokens[:-1], other_words[-1]])
    indices = [index for index, character in enumerate(text) if character.isalpha()]
    if not indices:
        return text + rng.choice("abcdefgh")
    index = rng.choice(indices)
    letter = rng.choice("abcdefghiklmnoprstuvwy")
    return text[:index] + (letter.upper() if text[index].isupper() else letter) + text[index + 1 :]
