"""Reading numbers: integers, decimals, fractions, mixed and repeating ones, with signs, percent, units and names."""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction

from gagpo.envs.math.calculator import CalculatorError, calculate
from gagpo.envs.math.verify import normalise
from gagpo.envs.math.verify.answers import Number
from gagpo.envs.math.verify.units import unit

_MAX_EXPONENT = 300
OPENING, CLOSING = "([{", ")]}"
_INTEGER = r"\d{1,3}(?:,\d{3})+|\d{1,3}(?: \d{3})+|\d+"
_DECIMAL = rf"(?:{_INTEGER})?\.\d+|(?:{_INTEGER})\.?"
_SIMPLE = re.compile(rf"(?P<number>{_DECIMAL})", re.ASCII)
_SCIENTIFIC = re.compile(
    r"\s*(?:(?:\\times|\\cdot|\*|x)\s*10\s*\^\s*(?:\{\s*([-+]?\d{1,4})\s*\}|\(\s*([-+]?\d{1,4})\s*\)|([-+]?\d{1,4}))"
    r"|[eE]([-+]?\d{1,4})(?!\w))",
    re.ASCII,
)
_POWER_OF_TEN = re.compile(r"10\s*\^\s*(?:\{\s*(-?\d{1,3})\s*\}|(-?\d{1,3}))", re.ASCII)
_REPEATING = re.compile(r"(?P<whole>\d*)\.(?P<fixed>\d*)\\(?:overline|bar|dot)\s*\{?(?P<cycle>\d+)\}?", re.ASCII)
_FRACTION = re.compile(
    rf"(?:(?P<whole>\d+)\s*(?=\\frac))?\\frac\{{\s*(?P<top>-?\s*(?:{_DECIMAL}))\s*\}}\{{\s*(?P<bottom>-?\s*(?:{_DECIMAL}))\s*\}}"
    rf"|(?P<mixed>\d+)\s+(?P<mtop>\d+)\s*/\s*(?P<mbottom>\d+)"
    rf"|(?P<stop>{_DECIMAL}|\(\s*-?\d+\s*\))\s*/\s*(?P<sbottom>-?(?:{_DECIMAL})|\(\s*-?\d+\s*\))",
    re.ASCII,
)
_BASED = re.compile(r"(\d+)\s*_\s*(?:\{\s*(\d{1,2})\s*\}|(\d{1,2}))(?:\s*)", re.ASCII)
_PERCENT = re.compile(r"\s*(?:%|percent\b|per cent\b|percentage points\b)", re.IGNORECASE)
_UNIT = re.compile(r"\s*(?P<words>[a-zA-Z][a-zA-Z./ -]*(?:\s*\^\s*\{?[23]\}?)?)$", re.ASCII)
_MULTIPLES = {"dozen": 12, "hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_NO_NOUNS = {*("and", "not", "nor", "half", "third", "quarter", "plus", "minus", "times", "over"), "squared", "cubed"}
_DOTS = re.compile(r"(\.\d+)\s*\\[lc]?dots$")
_SIGN = re.compile(r"\s*([-+])\s*")
_SIGN_WORD = re.compile(r"^(?:minus|negative)\s+(?=[\d\\.])", re.IGNORECASE)
_ABOUT = re.compile(
    r"^(?:\\approx|\\sim|approximately|about|roughly|exactly|(?:the )?(?:final )?answer is:?)\s*", re.IGNORECASE
)
NAME = re.compile(
    r"^(?P<name>(?!\\(?:sqrt|frac|text))\\?[a-zA-Z]+'?(?:(?:\s+|(?=\\))\\?[a-zA-Z]+){0,4}"
    r"(?:\s*_\s*(?:\{[^{}]{1,20}\}|\w))?(?:\(\s*[\w, ]{1,12}\))?)\s*(?:=|\\in(?![a-zA-Z]))\s*"
)
FUNCTION = re.compile(r"\b(?:arc)?(?:sin|cos|tan|cot|sec|csc|log|exp|max|min|gcd|lcm|mod)\b")
_ONES = [
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"),
    *("ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
]
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
NUMBER_WORDS = {word: value for value, word in enumerate(_ONES)} | {
    f"{tens} {ones}".strip(): 20 + 10 * i + j
    for i, tens in enumerate(_TENS)
    for j, ones in enumerate(["", *_ONES[1:10]])
}


def named_number(plain: str) -> Number | None:
    """``3``, ``x = 3``, and ``1 + 2 = 3`` where the left side is arithmetic with the value of the right one."""
    name = NAME.match(plain)
    rest = plain[name.end() :] if name else plain
    *lefts, last = rest.split("=")
    number = read_number(_DOTS.sub(r"\1", _ABOUT.sub("", last.strip())))
    if number is None:
        return None
    for left in lefts:
        try:
            if calculate(_arithmetic(left)) != number.value:
                return None
        except CalculatorError:
            return None
    return replace(number, name=short_name(name["name"])) if name else number


def short_name(name: str) -> str:
    """The name of a variable or function; a description such as "total cost" is none."""
    return "" if re.search(r"[a-zA-Z]{3}", name) else "".join(name.split())


def _arithmetic(text: str) -> str:
    """LaTeX arithmetic in the calculator's grammar, as far as it has words for it."""
    text = re.sub(r"\\frac\{([^{}]*)\}\{([^{}]*)\}", r"((\1)/(\2))", text)
    return re.sub(r"\\(?:times|cdot)(?![a-zA-Z])", "*", text).replace("{", "(").replace("}", ")")


def read_number(text: str) -> Number | None:
    """The number that ``text`` (as :func:`gagpo.envs.math.verify.normalise.plain` leaves it) writes out, or None.

    >>> read_number("1,234.50").value, read_number("3 1/2").value, read_number("x + 1")
    (Fraction(2469, 2), Fraction(7, 2), None)
    """
    text = _SIGN_WORD.sub("-", text.strip())
    if text.startswith("(") and text.endswith(")") and "," not in text and enclosed(text):
        text = text[1:-1].strip()
    sign, position = 1, 0
    money = False
    while position < len(text) and position < 4:
        if match := _SIGN.match(text, position):
            sign = -sign if match[1] == "-" else sign
            position = match.end()
        elif text[position] in normalise.CURRENCY + "€£" and not money:
            money = True
            position += 1
        else:
            break
    found = _value(text, position)
    if found is None:
        return None
    number, position = found
    number = replace(number, value=sign * number.value)
    if match := _PERCENT.match(text, position):
        number, position = replace(number, percent=True), match.end()
    rest = text[position:]
    if not rest.strip(normalise.CURRENCY + " €£."):
        money = money or bool(rest.strip(" ."))
        return replace(number, unit=unit("dollar")) if money else number
    return _with_unit(number, rest, money)


def enclosed(text: str) -> bool:
    """Whether the bracket that opens ``text`` is closed by its last character."""
    depth = 0
    for i, character in enumerate(text):
        depth += (character in OPENING) - (character in CLOSING)
        if depth == 0:
            return i == len(text) - 1
    return False


def _with_unit(number: Number, rest: str, money: bool) -> Number | None:
    match = _UNIT.fullmatch(rest)
    if match is None or number.base is not None:
        return None
    words = match["words"].strip(" .-")
    first, _, others = words.partition(" ")
    if first.lower() in _MULTIPLES and rest[0].isspace():
        number = replace(number, value=number.value * _MULTIPLES[first.lower()], places=None)
        if not others:
            return replace(number, unit=unit("dollar")) if money else number
        return _with_unit(number, f" {others}", money)
    known = unit(words)
    if known is not None and (len(words) > 1 or rest[0].isspace()):
        return replace(number, unit=known)
    # A noun that is no unit of measure ("12 apples") says what was counted; letters alone could be variables.
    noun = rest[0].isspace() and not FUNCTION.search(words)
    if noun and all(map(_counted, words.lower().split())):
        return replace(number, unit=unit("dollar")) if money else number
    return None


def _counted(word: str) -> bool:
    if word in NUMBER_WORDS or word in _MULTIPLES or word in _NO_NOUNS:
        return False
    return word in ("of", "in", "a") or (word.isalpha() and len(word) >= 3)


def _value(text: str, position: int) -> tuple[Number, int] | None:
    """The number that starts at ``position`` and where it ends."""
    if match := _REPEATING.match(text, position):
        whole, fixed, cycle = match["whole"] or "0", match["fixed"], match["cycle"]
        cycles = Fraction(int(cycle), (10 ** len(cycle) - 1) * 10 ** len(fixed))
        return Number(Fraction(int(whole + fixed), 10 ** len(fixed)) + cycles), match.end()
    if match := _POWER_OF_TEN.match(text, position):
        return Number(Fraction(10) ** int(match[1] or match[2])), match.end()
    if match := _FRACTION.match(text, position):
        number = _quotient(match)
        return (number, match.end()) if number is not None else None
    if match := _BASED.match(text, position):
        return Number(Fraction(int(match[1])), base=int(match[2] or match[3])), match.end()
    match = _SIMPLE.match(text, position)
    if match is None:
        return None
    number, position = _decimal(match["number"]), match.end()
    if scientific := _SCIENTIFIC.match(text, position):
        exponent = int(next(group for group in scientific.groups() if group is not None))
        if abs(exponent) > _MAX_EXPONENT:
            return None
        places = None if number.places is None else max(0, number.places - exponent)
        return replace(number, value=number.value * Fraction(10) ** exponent, places=places), scientific.end()
    return number, position


def _decimal(digits: str) -> Number:
    grouped = "," in digits
    digits = digits.replace(",", "").replace(" ", "").rstrip(".")
    whole, _, part = digits.partition(".")
    if not part:
        return Number(Fraction(int(whole or "0")), grouped=grouped)
    significant = len((whole + part).lstrip("0"))
    return Number(Fraction(int((whole or "0") + part), 10 ** len(part)), places=len(part), significant=significant)


def _quotient(match: re.Match[str]) -> Number | None:
    whole = match["whole"] or match["mixed"]
    top = _signed(match["top"] or match["mtop"] or match["stop"])
    bottom = _signed(match["bottom"] or match["mbottom"] or match["sbottom"])
    if bottom == 0:
        return None
    value = top / bottom
    if whole is not None:
        return Number(int(whole) + value) if 0 <= value < 1 else None
    return Number(value, division=value.denominator == 1)


def _signed(text: str) -> Fraction:
    text = text.strip("() ").replace(" ", "")
    return -_decimal(text[1:]).value if text.startswith("-") else _decimal(text).value
