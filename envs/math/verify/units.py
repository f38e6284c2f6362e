"""Units that may follow a number: their spellings, what they measure, and how much of it."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple


class Unit(NamedTuple):
    """``dimension`` is what is measured; ``size`` is how much of the dimension's base unit one of these is."""

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
    "mass": {"mg|milligram": "1/1000000", "g|gram|gramme": "1/1000", "kg|kilogram": 1, "t|ton|tonne": 1000},
    "time": {
        "s|sec|second": 1,
        "min|minute": 60,
        "h|hr|hour": 3600,
        "day": 86400,
        "week": 604800,
    },
    "years": {"yr|year|year old|years old": 1, "month": "1/12"},
    "volume": {"ml|milliliter|millilitre": "1/1000", "l|liter|litre": 1},
    "money": {"dollar|usd": 1, "cent": "1/100"},
    "angle": {"degree|deg": 1},
    "speed": {
        "m/s|meter per second|meters per second": 1,
        "km/h|kph|kilometer per hour|kilometers per hour": "1000/3600",
        "mph|mi/h|mile per hour|miles per hour": "1609344/3600000",
    },
}
_POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}


def _units() -> dict[str, Unit]:
    units = {}
    for dimension, rows in _TABLE.items():
        for spellings, size in rows.items():
            for spelling in spellings.split("|"):
                units[spelling] = Unit(dimension, Fraction(size))
                if len(spelling) > 2 and spelling[-1] != "s" and "/" not in spelling and " " not in spelling:
                    units[spelling + "s"] = Unit(dimension, Fraction(size))
    return units


UNITS = _units()


def unit(words: str) -> Unit | None:
    """The unit that ``words`` name, or None when they name none of the table.

    >>> unit("sq. cm") == unit("square centimeters") == unit("cm^2")
    True
    >>> unit("cm").dimension, unit("apples")
    ('length', None)
    """
    words = " ".join(words.lower().replace(".", " ").split())
    power = 1
    if match := re.fullmatch(r"(.+?)\s*\^\s*\{?([23])\}?", words):
        words, power = match[1], int(match[2])
    else:
        first, _, rest = words.partition(" ")
        if first in _POWERS and rest:
            words, power = rest, _POWERS[first]
        elif rest.endswith((" squared", " cubed")) or rest in ("squared", "cubed"):
            words, _, last = words.rpartition(" ")
            power = 2 if last == "squared" else 3
    found = UNITS.get(words)
    if found is None or power == 1:
        return found
    return Unit(f"{found.dimension}^{power}", found.size**power)
