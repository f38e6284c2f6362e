"""Read numbers: integers, decimals, fractions, mixed and repeating ones, with signs, percent, money and units."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from fractions import Fraction

from gagpo.envs.math.verify.answers import Number
from gagpo.envs.math.verify.spelling import moments, normalise, number_words
from gagpo.envs.math.verify.spelling.brackets import enclosed
from gagpo.envs.math.verify.spelling.factors import LETTERS, MONEY_LETTERS, MULTIPLES, OPERATIONS
from gagpo.envs.math.verify.spelling.units import is_usual, unit

SIGNIFICANT_DIGITS = 6
"""A decimal equals a rounded value if it has at least this many significant digits, all of them correct."""
_MAX_EXPONENT = 300  # of ten; limits the digits of every later computation
_INTEGER = r"[1-9]\d{0,2}(?:,\d{3})+|\d{1,3}(?: \d{3})+|\d+"
_DECIMAL = rf"(?:{_INTEGER})?\.\d+|(?:{_INTEGER})\.?"
_SIMPLE = re.compile(rf"(?P<number>{_DECIMAL})", re.ASCII)
_SCIENTIFIC = re.compile(
    r"\s*(?:(?:\\times|\\cdot|\*|x)\s*10\s*\^\s*(?:\{\s*([-+]?\d{1,4})\s*\}|\(\s*([-+]?\d{1,4})\s*\)|([-+]?\d{1,4}))"
    r"|[eE]([-+]?\d{1,4})(?!\w))",
    re.ASCII,
)
_POWER_OF_TEN = re.compile(r"10\s*\^\s*(?:\{\s*(-?\d{1,3})\s*\}|(-?\d{1,3}))", re.ASCII)
_REPEATING = re.compile(
    r"(?P<whole>\d*)\.(?P<fixed>\d*)(?:\\(?:overline|bar|dot)\s*\{?|\()(?P<cycle>\d+)[})]?"
    r"|(?P<begun>\d*)\.(?P<start>\d*?)(?:(?P<digit>\d)(?P=digit){2,}|(?P<again>\d{2,12}?)(?P=again)+)\s*\\ldots",
    re.ASCII,
)
_DOTS = re.compile(r"(\.\d+)\s*\\ldots$")
_FRACTION = re.compile(
    rf"(?:(?P<whole>\d+)\s*(?=\\frac))?\\frac\{{\s*(?P<top>-?\s*(?:{_DECIMAL}))\s*\}}\{{\s*(?P<bottom>-?\s*(?:{_DECIMAL}))\s*\}}"
    rf"|(?P<mixed>\d+)\s+(?P<mtop>\d+)\s*/\s*(?P<mbottom>\d+)"
    rf"|(?P<stop>{_DECIMAL}|\(\s*-?\d+\s*\))\s*/\s*(?P<sbottom>-?(?:{_DECIMAL})|\(\s*-?\d+\s*\))"
    rf"|(?P<rtop>\d+)\s*:\s*(?P<rbottom>\d+)",
    re.ASCII,
)
_SYSTEMS = {"binary": 2, "ternary": 3, "octal": 8, "decimal": 10, "hexadecimal": 16, "hex": 16}
_BASED = re.compile(
    rf"\(?(\d+)\)?\s*(?:_\s*\{{?\s*\(?|\(?(?:in )?base[ -])(\d{{1,2}}|{'|'.join(number_words.SMALL)})\s*\)?\}}?"
    rf"|\(?(?P<digits>\d+)\)?,?\s+\(?(?:in )?(?P<system>{'|'.join(_SYSTEMS)})\)?",
    re.ASCII,
)
_PERCENT = re.compile(r"\s*(?:%|percent\b|per cent\b|percentage points\b)", re.IGNORECASE)
_UNIT = re.compile(r"\s*(?P<words>(?:[^\W\d_]|[./ -]|\\(?:cdot|mu|Omega)(?![a-zA-Z])|\^\s*\{?-?[1-4]\}?)+)$")
_NOUN = re.compile(r"of|in|a|sq\.?|cu|[a-z]{3,}(?:\^\{?[23]\}?|-squared)?")
"""A word of other letters may be a multiple: it is not counted."""
_SIGN = re.compile(r"\s*([-+])\s*")
_CURRENCIES = {
    normalise.CURRENCY: "dollar",
    "€": "euro",
    "£": "gbp",
    "¥": "yen",
    "₹": "rupee",
    "₩": "won",
    "元": "yuan",
}
_MONEY_WITH_LETTER = re.compile(r"(k|K|MM?|B|bn)(USD|EUR|GBP|JPY|INR|CNY|CHF)")
_MONEY_FIRST = re.compile(r"(USD|EUR|GBP|JPY|INR|CNY|CHF)\s*(?=[\d.])")
_ABOUT = re.compile(
    r"^(?:\\approx|\\sim|approximately|about|roughly|exactly|\\equiv"
    r"|(?:the )?(?:final )?answer:?(?: is:?)?)\s*",
    re.IGNORECASE,
)
MODULUS = re.compile(r"\s*\(?\s*\\?(?:[pb]?mod|modulo)(?![a-zA-Z])\s*\{?\s*(\d{1,30})\s*\}?\s*\)?$", re.ASCII)
_REMARK = re.compile(r"(?<=.)(\s*)\(([^()]*)\)$")
_ROOT = re.compile(r"(?:double|triple|repeated|real|simple) roots?")
_OR = re.compile(r"^(?:or|i\.e\.,?|=|\\approx)\s*")
_COMPOUND = re.compile(r"(?<=[a-zA-Z])[.,]?\s*(?:and\s+)?(?=\d)", re.ASCII)
_WHOLE_AND_PART = re.compile(r"(\d+) and (\d+\s*/\s*\d+|\\frac\{\d+\}\{\d+\})", re.ASCII)
FUNCTION = re.compile(r"\b(?:arc)?(?:sin|cos|tan|cot|sec|csc|log|exp|max|min|gcd|lcm|mod)\b")


def read_number(plain: str) -> Number | None:
    """The number in ``plain`` (output of :func:`gagpo.envs.math.verify.spelling.normalise.plain`), or None.

    Accepts number words, a remark in brackets, the modulus of a residue, and quantities in two units.

    >>> read_number("1,234.50").value, read_number("three and a half").value, read_number("x + 1")
    (Fraction(2469, 2), Fraction(7, 2), None)
    >>> read_number("5 (five)").value, read_number("5 (six)"), read_number("2 feet 6 inches").value
    (Fraction(5, 1), None, Fraction(5, 2))
    """
    text = plain if _REPEATING.search(plain) else _DOTS.sub(r"\1", plain)
    text = _ABOUT.sub("", text.strip())
    if text[:1].isalpha() or " and " in text or number_words.is_fraction(text):
        text = number_words.digits(text)
    if whole_and_part := _WHOLE_AND_PART.fullmatch(text):
        return _quantity(f"{whole_and_part[1]} {whole_and_part[2]}")
    if modulus := MODULUS.search(text):
        number = _quantity(text[: modulus.start()])
        if number is not None and int(modulus[1]):
            return replace(number, modulus=int(modulus[1]))
        return None
    number = _quantity(text) or _compound(text)
    if number is not None:
        return number
    remark = _REMARK.search(text)
    if remark is None:
        return None
    number = _quantity(text[: remark.start()])
    if number is not None and _harmless(number, remark[2], bool(remark[1])):
        return number
    return None


def _harmless(number: Number, remark: str, spaced: bool) -> bool:
    """Whether a remark in brackets repeats the number or contains no number; a factor is not a remark."""
    repeated_number = _quantity(number_words.digits(_OR.sub("", remark.strip())))
    if repeated_number is not None:
        return repeated_number.value == number.value and (spaced or not remark[:1].isdigit())
    if _ROOT.fullmatch(remark.strip()):
        return True
    return (
        counts(remark) and re.search("[a-zA-Z]{3}", remark) is not None and re.search(r"[\d\\=<>+*/^]", remark) is None
    )


def _compound(text: str) -> Number | None:
    """``2 feet 6 inches`` in the first unit: quantities of one dimension, each less than one of the previous unit."""
    total: Number | None = None
    size = Fraction(0)
    factors = _COMPOUND.split(text)
    for factor in factors if 1 < len(factors) <= 3 else ():
        number = _quantity(factor)
        if number is None or number.unit is None:
            return None
        if total is None or total.unit is None:
            total = replace(number, places=None)
        elif total.unit.dimension == number.unit.dimension and 0 <= number.value * number.unit.size < size:
            total = replace(total, value=total.value + number.value * number.unit.size / total.unit.size)
        else:
            return None
        size = number.unit.size
    return total


def _quantity(text: str) -> Number | None:
    """A number with sign, percent sign and unit, or an amount of money."""
    text = text.strip()
    if text.startswith("(") and text.endswith(")") and "," not in text and enclosed(text):
        text = text[1:-1].strip()
    factor = 1
    position = 0
    currency = ""
    while position < len(text) and position < 4:
        if match := _SIGN.match(text, position):
            factor = -factor if match[1] == "-" else factor
            position = match.end()
        elif text[position] in _CURRENCIES and not currency:
            currency = _CURRENCIES[text[position]]
            position += 1 + (text[position + 1 : position + 2] == " ")
        else:
            break
    if name := _MONEY_FIRST.match(text, position):
        currency = name[1].lower()
        position = name.end()
    if position and text[position : position + 1] == "(" and enclosed(text[position:]) and "," not in text:
        inner = _quantity(text[position:])
        return inner and replace(inner, value=factor * inner.value)
    value_end = _value(text, position)
    if value_end is None:
        return None
    number, position = value_end
    number = replace(number, value=factor * number.value)
    if match := _PERCENT.match(text, position):
        number = replace(number, percent=True)
        position = match.end()
    words_after = text[position:].rstrip(" .")
    if words_after.strip() in _CURRENCIES:
        currency = _CURRENCIES[words_after.strip()]
        words_after = ""
    if not words_after:
        return replace(number, unit=unit(currency)) if currency else number
    return _with_unit(number, words_after, currency)


def _with_unit(number: Number, text_after: str, currency: str) -> Number | None:
    match = _UNIT.fullmatch(text_after)
    if match is None or number.base is not None:
        return None
    unit_text = re.sub(r"^of an? ", "", match["words"].strip(" .-"))
    if (multiple := _multiplied(number, unit_text, text_after, currency)) is not None:
        return multiple
    if currency and unit_text.startswith(("/", "per ")):
        return replace(
            number, unit=unit(currency + (unit_text if unit_text[0] == "/" else f" {unit_text}")) or unit(currency)
        )
    full_unit = unit(unit_text)
    if full_unit is not None and (text_after[0].isspace() or (len(unit_text) > 1 and is_usual(unit_text))):
        return replace(number, unit=full_unit, multiple=LETTERS.get(unit_text, 1))
    # A noun says what was counted ("12 apples"); without a space, letters could be variables.
    nouns = re.sub(r"\s+(\^|(?=squared))", r"\1", unit_text.lower()).split()
    if not text_after[0].isspace() or FUNCTION.search(unit_text) or not all(map(_is_noun, nouns)):
        return None
    if currency:
        noun_unit = unit(currency)
    else:
        noun_unit = next(filter(None, map(unit, _beginnings(nouns))), None)
    return replace(number, unit=noun_unit, counted=noun_unit is None and not {"unit", "units"} & {*nouns})


def _multiplied(number: Number, words: str, text_after: str, currency: str) -> Number | None:
    """The number times a multiple in ``words``, as in ``5 million dollars`` or ``$5M``; None without one."""
    if letter := _MONEY_WITH_LETTER.fullmatch(words):  # 5 MUSD
        words = " ".join(letter.groups())
    first, _, further_words = words.partition(" ")
    if text_after[0].isspace() or text_after[0] == "-" or len(first) > 3:
        factor = MULTIPLES.get(first.lower().rstrip("."))
    else:
        factor = None
    if currency:
        factor = MONEY_LETTERS.get(first, factor)
    elif further_words and first in ("k", "K", "M", "MM", "B"):  # 5 M dollars
        factor = MONEY_LETTERS[first]
    if factor is None:
        return None
    number = replace(number, value=number.value * factor, places=None)
    if further_words:
        return _with_unit(number, f" {further_words}", currency)
    return replace(number, unit=unit(currency)) if currency else number


def _beginnings(nouns: list[str]) -> list[str]:
    """The first words, longest first, of a description such as ``minutes of work``, which may name a unit."""
    return [" ".join(nouns[:end]) for end in range(len(nouns) - 1, 0, -1) if len(nouns[end - 1]) > 2]


def counts(words: str) -> bool:
    """Whether ``words`` after a value may name what was counted; false for ``million``, ``squared`` and ``万``."""
    return words.isascii() and not any(word.strip(".-") in OPERATIONS for word in re.split(r"[\s-]+", words.lower()))


def _is_noun(word: str) -> bool:
    """Whether ``word`` may belong to the name of what is counted."""
    return word not in OPERATIONS and _NOUN.fullmatch(word) is not None


def _value(text: str, position: int) -> tuple[Number, int] | None:
    """The number at ``position`` and where it ends."""
    if match := _REPEATING.match(text, position):
        integer = match["whole"] or match["begun"] or "0"
        fixed = match["fixed"] or match["start"] or ""
        cycle = match["cycle"] or match["digit"] or match["again"]
        cycles = Fraction(int(cycle), (10 ** len(cycle) - 1) * 10 ** len(fixed))
        return Number(Fraction(int(integer + fixed), 10 ** len(fixed)) + cycles), match.end()
    if match := _POWER_OF_TEN.match(text, position):
        return Number(Fraction(10) ** int(match[1] or match[2])), match.end()
    if match := _FRACTION.match(text, position):
        number = _quotient(match)
        return (number, match.end()) if number is not None else None
    if match := _BASED.match(text, position):
        number = _based(match)
        return (number, match.end()) if number is not None else None
    match = _SIMPLE.match(text, position)
    if match is None:
        return None
    number = _decimal(match["number"])
    position = match.end()
    if scientific := _SCIENTIFIC.match(text, position):
        exponent = int(next(group for group in scientific.groups() if group is not None))
        if abs(exponent) > _MAX_EXPONENT:
            return None
        decimals = None if number.places is None else max(0, number.places - exponent)
        return replace(number, value=number.value * Fraction(10) ** exponent, places=decimals), scientific.end()
    return number, position


def _based(match: re.Match[str]) -> Number | None:
    """A number with its base; None if a digit is too large for it."""
    digits = match[1] or match["digits"]
    name = match[2] or match["system"]
    base = int(name) if name.isdigit() else (_SYSTEMS | number_words.SMALL)[name]
    if base > int(max(digits)):
        return Number(Fraction(int(digits)), base=base)
    return None


def _decimal(digits: str) -> Number:
    digits = digits.replace(",", "").replace(" ", "").rstrip(".")
    integer, _, fraction = digits.partition(".")
    if not fraction:
        return Number(Fraction(int(integer or "0")))
    significant = len((integer + fraction).lstrip("0"))
    return Number(
        Fraction(int((integer or "0") + fraction), 10 ** len(fraction)), places=len(fraction), significant=significant
    )


def _quotient(match: re.Match[str]) -> Number | None:
    integer = match["whole"] or match["mixed"]
    top = _signed(match["top"] or match["mtop"] or match["stop"] or match["rtop"])
    bottom = _signed(match["bottom"] or match["mbottom"] or match["sbottom"] or match["rbottom"])
    if bottom == 0:
        return None
    value = top / bottom
    if integer is not None:
        return Number(int(integer) + value) if 0 <= value < 1 else None
    time = moments.clock(match["rtop"], match["rbottom"]) if match["rtop"] else ""
    return Number(value, division=value.denominator == 1, clock=time)


def _signed(text: str) -> Fraction:
    text = text.strip("() ").replace(" ", "")
    if text.startswith("-"):
        return -_decimal(text[1:]).value
    return _decimal(text).value


def agrees(decimal: Fraction, places: int, exact: Fraction) -> bool:
    """Whether ``decimal`` is ``exact`` rounded (half up or half to even) or truncated to ``places``."""
    scaled = abs(exact) * 10**places
    shift = abs(decimal) * 10**places
    rounded = {math.floor(scaled), math.floor(scaled + Fraction(1, 2)), round(scaled)}
    return (decimal < 0) == (exact < 0) and shift in rounded
