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


_CHARACTERS = str.maketrans(
    {
        **dict.fromkeys("−–—", "-"),
        "×": r"\times ",
        **dict.fromkeys("·⋅", r"\cdot "),
        **dict.fromkeys("÷⁄∕", "/"),
        "π": r"\pi ",
        "∞": r"\infty ",
        **dict.fromkeys("≤⩽", r"\le "),
        **dict.fromkeys("≥⩾", r"\ge "),
        "≠": r"\ne ",
        "≈": r"\approx ",
        "≡": r"\equiv ",
        "±": r"\pm ",
        "∓": r"\mp ",
        "∪": r"\cup ",
        "∩": r"\cap ",
        "∖": r"\setminus ",
        "∈": r"\in ",
        "∉": r"\notin ",
        "∧": r"\land ",
        "∨": r"\lor ",
        "∅": r"\emptyset ",
        **dict.fromkeys("⇒⟹", r"\implies "),
        "∴": "",
        "⟨": r"\langle ",
        "⟩": r"\rangle ",
        **{sign: rf"\mathbb{{{letter}}}" for sign, letter in zip("ℝℤℕℚℂ", "RZNQC", strict=True)},
        "∑": r"\sum ",
        "∏": r"\prod ",
        "∫": r"\int ",
        "√": "sqrt",
        "∛": "cbrt",
        "°": r"^{\circ}",
        "℃": r"^{\circ} C",
        "¢": " cents",
        "′": "'",
        "″": '"',
        "…": "...",
        "％": "%",
        **dict.fromkeys("\u00a0\u2009\u202f\u3000", " "),
        **dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff"),
        **dict(zip("（），；：＝＜＞＋－、", "(),;:=<>+-,", strict=True)),
        **dict.fromkeys("“”", '"'),
        **dict.fromkeys("‘’", "'"),
        **dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ₀₁₂₃₄₅₆₇₈₉", "0123456789+-n0123456789", strict=True)),
        **{chr(0xFF10 + digit): str(digit) for digit in range(10)},
        **{sign: _fraction(sign) for sign in "½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅐⅛⅜⅝⅞⅑⅒"},
        **{letter: _greek(letter) for letter in "αβγδεζηθικλμνξρστυφχψωΓΔΘΛΞΣΦΨΩ"},
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
