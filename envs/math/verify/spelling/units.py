"""Units after a number: spellings, dimensions and sizes."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple


class Unit(NamedTuple):
    """A unit of ``dimension``; ``size`` is in base units of that dimension."""

    dimension: str
    size: Fraction


_TABLE = """
*m meter metre = length; *g gram gramme = mass; *s second sec = time; *A ampere amp = current; *mol mole = amount
*K kelvin = kelvins; *cd candela = luminosity; *rad radian = radians; dB decibel = decibels; *B byte = information
degree deg = angle; year yr year_old years_old = years; revolution rev = revolutions; partperunit = ratio
degree_C degrees_C celsius degree_celsius degrees_celsius centigrade = Celsius
degree_F degrees_F fahrenheit degree_fahrenheit degrees_fahrenheit = Fahrenheit
*Hz hertz = s^-1; *N newton = kg m s^-2; *Pa pascal = N m^-2; *J joule = N m; *W watt = J s^-1; *C coulomb = A s
*V volt = W A^-1; *F farad = C V^-1; *ohm ohm = V A^-1; *S siemens = A V^-1; *Wb weber = V s; *T tesla = Wb m^-2
*H henry henries = Wb A^-1; *Bq becquerel = s^-1; *Gy gray = J kg^-1; *Sv sievert = J kg^-1; *lm lumen = cd
*lx lux = cd m^-2; *L liter litre = 1/1000 m^3; *l = L; *M molar = mol L^-1; *bit bit = 1/8 B; *bar bar = 100000 Pa
*eV electronvolt electron_volt = 1602176634/10000000000000000000000000000 J; *cal calorie = 4184/1000 J
*Wh watthour = 3600 J; *pc parsec = 30856775814913673 m; t ton tonne = 1000 kg; min minute = 60 s; h hr hour = 60 min
kt kiloton kilotonne = 1000 t; Mt megaton megatonne = 1000 kt; Gt gigaton gigatonne = 1000 Mt; quintal = 100 kg
jin = 1/2 kg; liang = 1/20 kg
day = 24 h; week = 7 day; fortnight = 14 day; month = 1/12 year; decade = 10 year; century centuries = 100 year
millennium millennia = 1000 year
arcminute arcmin = 1/60 degree; arcsecond arcsec = 1/60 arcmin; gradian gon = 9/10 degree
in inch inches = 254/10000 m; ft foot feet = 12 in; yd yard = 3 ft; mi mile = 1760 yd; furlong = 220 yd; fathom = 2 yd
chain = 22 yd; league = 3 mi
nmi nautical_mile = 1852 m; ly light_year lightyear = 9460730472580800 m; AU astronomical_unit = 149597870700 m
micron = 1/1000 mm; angstrom = 1/10 nm; hectare ha = 10000 m^2; acre = 4840 yd^2; cc = cm^3
gal gallon = 231 in^3; qt quart = 1/4 gal; pt pint = 1/2 qt; cup = 1/2 pt; fluid_ounce fl_oz = 1/8 cup
tablespoon tbsp = 1/2 fl_oz; teaspoon tsp = 1/3 tbsp; lb pound = 45359237/100000 g; oz ounce = 1/16 lb; st stone = 14 lb
carat = 1/5 g; grain = 1/7000 lb; dyn dyne = 1/100000 N; erg = 1/10000000 J; gauss = 1/10000 T
atm atmosphere = 101325 Pa; mmHg torr = 1/760 atm
psi = 6894757/1000 Pa; btu = 1055 J; hp horsepower = 745699872/1000000 W; mph = mi h^-1
kph kmh = km h^-1; knot = nmi h^-1; rpm = rev min^-1; per_mille permille = 1/1000 partperunit
basis_point = 1/10000 partperunit; ppm = 1/1000000 partperunit
dollar usd = dollars; cent = 1/100 dollar; gbp = sterling; pence = 1/100 gbp; euro eur = euros; yen jpy = yen
yuan renminbi rmb cny = yuan; jiao = 1/10 yuan; half_km = 500 m
rupee inr = rupees; won krw = won; peso mxn = pesos; franc chf = francs
ruble rouble rub = rubles; krona kronor krone kroner = crowns; lira = lira; shekel = shekels; rand = rand
zloty = zlotys
"""
"""``symbol names = definition`` with ``_`` for a space; a definition of one unknown word is a dimension of its own.

After an asterisk, the symbol and the names take SI prefixes.
"""
_PREFIXES = [
    *(("Q", "quetta", 30), ("R", "ronna", 27), ("Y", "yotta", 24), ("Z", "zetta", 21), ("E", "exa", 18)),
    *(("P", "peta", 15), ("T", "tera", 12), ("G", "giga", 9), ("M", "mega", 6), ("k", "kilo", 3), ("h", "hecto", 2)),
    *(("da", "deca", 1), ("da", "deka", 1), ("d", "deci", -1), ("c", "centi", -2), ("m", "milli", -3)),
    *(("u", "micro", -6), ("n", "nano", -9), ("p", "pico", -12), ("f", "femto", -15), ("a", "atto", -18)),
    *(("z", "zepto", -21), ("y", "yocto", -24), ("r", "ronto", -27), ("q", "quecto", -30)),
]
_BINARY_PREFIXES = [("Ki", "kibi", 10), ("Mi", "mebi", 20), ("Gi", "gibi", 30), ("Ti", "tebi", 40)]
_POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
_POWERS_AFTER = {"squared": 2, "cubed": 3}
_WHOLE = re.compile(r"-?\d", re.ASCII)
_EXPONENT = re.compile(r"\s*\^\s*\{?\s*(-?[1-4])\s*\}?")
_SIGNS = ((re.compile(r"\\mu\s*"), "u"), (re.compile(r"\\Omega"), "ohm"), (re.compile(r"\\cdot|[.*]"), " "))


@functools.cache
def _units() -> dict[str, Unit]:
    """Units by spelling, with plurals and prefixes."""
    units: dict[str, Unit] = {}
    for entry in _TABLE.replace("\n", ";").strip(";").split(";"):
        spellings, _, definition = entry.strip().partition(" = ")
        if definition[0].isdigit():
            size, _, words = definition.partition(" ")
        else:
            size = "1"
            words = definition
        composed = _compose(words, units.get)
        if composed:
            base_unit = Unit(composed.dimension, Fraction(size) * composed.size)
        else:
            base_unit = Unit(words, Fraction(1))
        symbol, *names = spellings.lstrip("*").replace("_", "\0").split()
        spelling_units = {name.replace("\0", " "): base_unit for name in (symbol, *names)}
        if spellings.startswith("*"):
            for prefix, long, exponent in _PREFIXES:
                prefixed_unit = Unit(base_unit.dimension, base_unit.size * Fraction(10) ** exponent)
                spelling_units |= {prefix + symbol: prefixed_unit, **{long + name: prefixed_unit for name in names}}
            for prefix, long, exponent in _BINARY_PREFIXES if base_unit.dimension == "information" else ():
                prefixed_unit = Unit(base_unit.dimension, base_unit.size * 2**exponent)
                spelling_units |= {prefix + symbol: prefixed_unit, **{long + name: prefixed_unit for name in names}}
        plurals = {f"{name}s": unit for name, unit in spelling_units.items() if len(name) > 1 and name[-1] != "s"}
        units = {**plurals, **spelling_units, **units}
    return units


@functools.lru_cache(maxsize=1024)
def unit(words: str) -> Unit | None:
    """The unit that ``words`` name, also a product, power or quotient of known units; None if unknown.

    Symbols are case-sensitive where another unit differs in case only.

    >>> unit("sq. cm") == unit("square centimeters") == unit("cm^2")
    True
    >>> unit("mA") == unit("MA"), unit("Kg") == unit("kg"), unit("kJ") == unit("kilojoules")
    (False, True, True)
    >>> unit("cm").dimension, unit("meters per second squared").dimension, unit("apples")
    ('length', 'length time^-2', None)
    """
    for symbol, replacement in _SIGNS:
        words = symbol.sub(replacement, words)
    return _compose(" ".join(_EXPONENT.sub(r"^\1 ", words).split()), _find_unit)


def is_usual(words: str) -> bool:
    """Whether ``words`` may follow a number without a space: ``2cl`` is a quantity, ``2rs`` is a product."""
    symbol = re.split(r"[\^/ ]", words)[0]
    return symbol in _USUAL.split() or symbol != words or len(symbol) > 3


_USUAL = """
mm cm dm hm km mms cms dms kms mg kg kgs ml mL cl cL dl dL min hr hrs ms ft in yd yds mi lb lbs oz gal Hz kHz MHz GHz kN
kJ kW MW kPa hPa MPa mA mV kV eV keV MeV mol cal dB kB MB GB TB ha mph kph rpm rad deg
"""


def _find_unit(word: str) -> Unit | None:
    return _units().get(word) or (_units().get(word.lower()) if len(word) > 1 else None)


def _compose(words: str, find_unit: Callable[[str], Unit | None]) -> Unit | None:
    single_unit = find_unit(words)
    if single_unit:
        return single_unit
    powers: Counter[str] = Counter()
    size = Fraction(1)
    for i, term in enumerate(re.split(r"\s*/\s*|(?:^|\s)per\s", words)):
        for name, exponent in _factors(term):
            factor_unit = find_unit(name)
            if factor_unit is None:
                return None
            power = -exponent if i else exponent
            size *= factor_unit.size**power
            for factor in factor_unit.dimension.split():
                base, _, factor_exponent = factor.partition("^")
                powers[base] += power * int(factor_exponent or 1)
    dimension = " ".join(base if n == 1 else f"{base}^{n}" for base, n in sorted(powers.items()) if n)
    return Unit(dimension, size) if dimension else None


def _factors(words: str) -> list[tuple[str, int]]:
    """The factors of a product of units, with their exponents."""
    factors: list[tuple[str, int]] = []
    power = 1
    for word in words.split():
        name, _, exponent = word.partition("^")
        if name.lower() in _POWERS:
            power = _POWERS[name.lower()]
        elif name.lower() in _POWERS_AFTER and factors:
            factors[-1] = (factors[-1][0], factors[-1][1] * _POWERS_AFTER[name.lower()])
        else:
            # With an invalid exponent, keep the whole word, which is not a known unit.
            is_integer = _WHOLE.fullmatch(exponent)
            factors.append((name, power * int(exponent)) if is_integer else (word, power))
            power = 1
    return factors


_KELVIN = re.compile(r"(?<![$\d.])(\d+(?:\.\d+)?)(?:\s|~|\\[, ])*\\(?:text|mathrm)\s*\{\s*K\s*\}(?=\s*\$?$)")


def in_kelvin(text: str, gold: str) -> str:
    r"""``text`` with kelvin written out, where the gold answer is in ``\text{K}``. Elsewhere 5 K is five thousand.

    >>> in_kelvin(r"5\text{ K}", r"300 \text{ K}"), in_kelvin(r"5\text{ K}", "5000")
    ('5\\text{ kelvin}', '5\\text{ K}')
    """
    return _KELVIN.sub(r"\1\\text{ kelvin}", text) if _KELVIN.search(gold) else text
