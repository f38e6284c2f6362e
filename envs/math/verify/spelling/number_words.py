"""Numbers in words: ``twenty-one``, ``one hundred and twenty``, ``two thirds``, ``three and a half``."""

from __future__ import annotations

import re

_BELOW_TWENTY = [
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"),
    *("ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
]
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
SMALL = {word: value for value, word in enumerate(_BELOW_TWENTY)} | {word: 20 + 10 * i for i, word in enumerate(_TENS)}
MULTIPLES = {"dozen": 12, "hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_PARTS = {"half": 2, "halve": 2, "quarter": 4, "twelfth": 12} | {
    name: parts
    for parts, name in enumerate(["third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth"], start=3)
}
_PARTS |= {f"{word}th": value for word, value in (SMALL | MULTIPLES).items() if 10 < value < 20 or value >= 100}
_PARTS |= {f"{word[:-1]}ieth": value for word, value in SMALL.items() if value >= 20}
_WORD = re.compile(r"([a-z]+)[ -]*")
_SIGN = re.compile(r"(?:minus|negative)\s+")
_FRACTION = re.compile(rf"(?:(?P<top>an?|\d+|{'|'.join(SMALL)})[ -]+)?(?P<bottom>{'|'.join(_PARTS)})s?\b")
_COUNTED_PARTS = re.compile(rf"-?\d+[ -]+(?:{'|'.join(_PARTS)})s?\b", re.IGNORECASE)
_AND = re.compile(r"\s+and\s+")
_DIGITS = re.compile(r"\d+")


def digits(text: str) -> str:
    """``text`` with the number words at its start in digits: ``2/3`` for a fraction, ``3 1/2`` for a mixed number.

    >>> digits("one hundred and twenty apples"), digits("three and a half"), digits("two or three"), digits("Monday")
    ('120 apples', '3 1/2', '2 or three', 'Monday')
    """
    lower = text.lower()
    minus = _SIGN.match(lower)
    start = minus.end() if minus else 0
    number, end = _fraction(lower, start)
    if not number:
        number, end = _whole(lower, start)
        joint = _AND.match(lower, end) if number else None
        if joint:
            fraction, part_end = _fraction(lower, joint.end())
            if fraction:
                number = f"{number} {fraction}"
                end = part_end
    if not number:
        return text
    return f"{'-' if minus else ''}{number}{text[end:]}"


def is_fraction(text: str) -> bool:
    """Whether ``text`` begins with digits and the name of a part, as in ``5 tenths``."""
    return _COUNTED_PARTS.match(text) is not None


def _fraction(text: str, position: int) -> tuple[str, int]:
    """The fraction at ``position`` (``two thirds``, ``a third``, ``half``) and where it ends; empty if none."""
    match = _FRACTION.match(text, position)
    if match is None or (match["top"] is None and match["bottom"] != "half"):
        return "", position
    top = match["top"] or "a"
    return f"{top if top.isdigit() else SMALL.get(top, 1)}/{_PARTS[match['bottom']]}", match.end()


def _whole(text: str, start: int) -> tuple[str, int]:
    """The integer at ``start``, in words or digits, and where it ends; empty if there is none."""
    if numeral := _DIGITS.match(text, start):
        return numeral[0], numeral.end()
    total = 0  # of completed groups: 3000 after "three thousand"
    group = 0  # of the words since then
    last: int | None = None  # the value of the previous word
    end = start
    position = start
    while word := _WORD.match(text, position):
        name = word[1]
        value = SMALL.get(name)
        position = word.end()
        if value is not None:
            # Ones follow tens, and either follows a multiple: "twenty one", but not "one twenty" or "one two".
            if last is not None and last < 100 and not (last >= 20 and value < 10):
                break
            group += value
            last = value
        elif name == "hundred" and last:
            group *= 100
            last = 100
        elif name in MULTIPLES and name != "dozen" and last:
            total += group * MULTIPLES[name]
            group = 0
            last = 1000
        elif name != "and" or not last or last < 100:
            break
        else:
            continue
        end = word.end(1)
    if last is not None:
        return str(total + group), end
    return "", start
