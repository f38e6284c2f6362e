r"""Unicode characters as LaTeX: ``½``, ``√``, ``≤``, ``x₁``, ``10⁻³``."""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction


def _fraction(sign: str) -> str:
    value = Fraction(unicodedata.numeric(sign)).limit_denominator(10)
    return rf"\frac{{{value.numerator}}}{{{value.denominator}}}"


def _greek(letter: str) -> str:
    name = unicodedata.name(letter).split()[-1].replace("LAMDA", "LAMBDA")
    return rf"\{name.lower() if letter.islower() else name.capitalize()} "


_COMMANDS = (
    "times:× cdot:·⋅ pi:π infty:∞ le:≤⩽ ge:≥⩾ ne:≠ approx:≈ equiv:≡ pm:± mp:∓ cup:∪ cap:∩ setminus:∖ in:∈ notin:∉ "
    "land:∧ lor:∨ emptyset:∅ implies:⇒⟹ langle:⟨ rangle:⟩ sum:∑ prod:∏ int:∫"
)
_CHARACTERS = str.maketrans(
    {
        **{letter: _greek(letter) for letter in "αβγδεζηθικλμνξρστυφχψωΓΔΘΛΞΣΦΨΩ"},
        **{
            sign: rf"\{name} " for name, _, signs in (row.partition(":") for row in _COMMANDS.split()) for sign in signs
        },
        **{sign: rf"\mathbb{{{letter}}}" for sign, letter in zip("ℝℤℕℚℂ", "RZNQC", strict=True)},
        **{sign: _fraction(sign) for sign in "½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅐⅛⅜⅝⅞⅑⅒"},
        **dict(zip("√∛°℃¢", ("sqrt", "cbrt", r"^{\circ}", r"^{\circ} C", " cents"), strict=True)),
        **dict(zip("µ\u2126Å", (r"\mu ", r"\Omega ", " angstrom"), strict=True)),
        **dict(zip("…∴′″％", ("...", "", "'", '"', "%"), strict=True)),
        **dict.fromkeys("−–—", "-"),
        **dict.fromkeys("÷⁄∕", "/"),
        **dict.fromkeys("“”", '"'),
        **dict.fromkeys("‘’", "'"),
        **dict.fromkeys("\u00a0\u2009\u202f\u3000", " "),
        **dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff"),
        **dict(zip("（），；：＝＜＞＋－、", "(),;:=<>+-,", strict=True)),
        **dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ₀₁₂₃₄₅₆₇₈₉", "0123456789+-n0123456789", strict=True)),
        **{chr(0xFF10 + digit): str(digit) for digit in range(10)},
    }
)
_SCRIPTS = ((re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ]+"), "^"), (re.compile("[₀₁₂₃₄₅₆₇₈₉]+"), "_"))


def to_latex(text: str) -> str:
    r"""``text`` with mathematical characters as LaTeX; ``√`` becomes the word ``sqrt``, because it has no braces.

    >>> to_latex("10⁻³"), to_latex("x₁ ≤ ½")
    ('10^{-3}', 'x_{1} \\le  \\frac{1}{2}')
    """
    if text.isascii():
        return text
    for run, mark in _SCRIPTS:
        text = run.sub(rf"{mark}{{\g<0>}}", text)
    return text.translate(_CHARACTERS)
