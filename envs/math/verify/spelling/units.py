"""Units after a number: spellings, dimensions and sizes."""

from __future__ import annotations

import re
from collections import Counter
from fractions import Fraction
from typing import NamedTuple


class Unit(NamedTuple):
    """A unit of ``dimension``; ``size`` is in base units of that dimension."""

    dimension: str
    size: Fraction


_TABLE: dict[str, dict[str, str | int]] = {
    # dimension: {spellings separated by |: size}
    "length": {
        "mm|millimeter|millimetre": "1/1000",
        "cm|centimeter|centimetre": "1/100",
        "m|meter|metre": 1,
        "km|kilometer|kilometre": 1000,
        "in|inch|inches": "254/10000",
        "ft|foot|feet": "3048/10000",
        "yd|yard": "9144/10000",
        "mi|mile": "1609344/1000",
    },
    "length^3": {
        "ml|milliliter|millilitre": "1/1000000",
        "l|liter|litre": "1/1000",
        "gal|gallon": "3785411784/1000000000000",
        "qt|quart": "946352946/1000000000000",
        "pt|pint": "473176473/1000000000000",
    },
    "mass": {
        "mg|milligram": "1/1000000",
        "g|gram|gramme": "1/1000",
        "kg|kilogram": 1,
        "t|ton|tonne": 1000,
        "lb|pound": "45359237/100000000",
        "oz|ounce": "45359237/1600000000",
    },
    "time": {
        "ms|millisecond": "1/1000",
        "s|sec|second": 1,
        "min|minute": 60,
        "h|hr|hour": 3600,
        "day": 86400,
        "week": 604800,
    },
    "years": {"yr|year|year old|years old": 1, "month": "1/12"},
    "money": {"dollar|usd": 1, "cent": "1/100"},
    "euros": {"euro|eur": 1},
    "sterling": {"gbp": 1},
    "angle": {"degree|deg": 1},
    "angle in radians": {"rad|radian": 1},
    "temperature": {"degrees c|degrees celsius|celsius": 1},
    "temperature in Fahrenheit": {"degrees f|degrees fahrenheit|fahrenheit": 1},
    "length time^-1": {"mph": "1609344/3600000", "kph": "1000/3600"},
}
_POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
_POWERS_AFTER = {"squared": 2, "cubed": 3}
_WHOLE = re.compile(r"-?\d", re.ASCII)
_EXPONENT = re.compile(r"\s*\^\s*\{?\s*(-?[1-4])\s*\}?")


def _units() -> dict[str, Unit]:
    units = {}
    for dimension, rows in _TABLE.items():
        for spellings, size in rows.items():
            for spelling in spellings.split("|"):
                units[spelling] = Unit(dimension, Fraction(size))
                if len(spelling) > 1 and spelling[-1] != "s" and " " not in spelling:
                    units[spelling + "s"] = Unit(dimension, Fraction(size))
    return units


UNITS = _units()


def unit(words: str) -> Unit | None:
    """The unit that ``words`` name, also a product, power or quotient of known units; None if unknown.

    >>> unit("sq. cm") == unit("square centimeters") == unit("cm^2")
    True
    >>> unit("cm").dimension, unit("meters per second squared").dimension, unit("apples")
    ('length', 'length time^-2', None)
    """
    words = " ".join(re.sub(r"\\cdot|[.*]", " ", _EXPONENT.sub(r"^\1 ", words.lower())).split())
    if words in UNITS:
        return UNITS[words]
    powers: Counter[str] = Counter()
    size = Fraction(1)
    for i, part in enumerate(re.split(r"\s*/\s*|(?:^|\s)per\s", words)):
        for name, exponent in _factors(part):
            found = UNITS.get(name)
            if found is None:
                return None
            power = -exponent if i else exponent
            size *= found.size**power
            for factor in found.dimension.split():
                base, _, own = factor.partition("^")
                powers[base] += power * int(own or 1)
    dimension = " ".join(base if n == 1 else f"{base}^{n}" for base, n in sorted(powers.items()) if n)
    return Unit(dimension, size) if dimension else None


def _factors(words: str) -> list[tuple[str, int]]:
    """The factors of a product of units, with their exponents."""
    found: list[tuple[str, int]] = []
    power = 1
    for word in words.split():
        name, _, exponent = word.partition("^")
        if name in _POWERS:
            power = _POWERS[name]
        elif name in _POWERS_AFTER and found:
            found[-1] = (found[-1][0], found[-1][1] * _POWERS_AFTER[name])
        else:
            # With an invalid exponent, keep the whole word, which is not a known unit.
            known = _WHOLE.fullmatch(exponent)
            found.append((name, power * int(exponent)) if known else (word, power))
            power = 1
    return found
