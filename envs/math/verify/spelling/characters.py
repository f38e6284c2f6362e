r"""Characters that stand for LaTeX: ``½``, ``√``, ``≤``, ``x₁``, ``10⁻³``."""

from __future__ import annotations

import re

_CHARACTERS = str.maketrans(
    {
        **dict.fromkeys("−–—", "-"),
        "×": r"\times ",
        **dict.fromkeys("·⋅", r"\cdot "),
        "÷": "/",
        "⁄": "/",
        "∕": "/",
        "π": r"\pi ",
        "∞": r"\infty ",
        "≤": r"\le ",
        "⩽": r"\le ",
        "≥": r"\ge ",
        "⩾": r"\ge ",
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
        "⇒": r"\implies ",
        "⟹": r"\implies ",
        "∴": "",
        "⟨": r"\langle ",
        "⟩": r"\rangle ",
        "ℝ": r"\mathbb{R}",
        "ℤ": r"\mathbb{Z}",
        "ℕ": r"\mathbb{N}",
        "ℚ": r"\mathbb{Q}",
        "ℂ": r"\mathbb{C}",
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
        **{chr(0xFF10 + digit): str(digit) for digit in range(10)},
        **{
            sign: rf"\frac{{{value[0]}}}{{{value[1:]}}}"
            for sign, value in zip(
                "½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅐⅛⅜⅝⅞⅑⅒",
                [
                    "12",
                    "13",
                    "23",
                    "14",
                    "34",
                    "15",
                    "25",
                    "35",
                    "45",
                    "16",
                    "56",
                    "17",
                    "18",
                    "38",
                    "58",
                    "78",
                    "19",
                    "110",
                ],
                strict=True,
            )
        },
        **{
            letter: rf"\{name} "
            for letter, name in zip(
                "αβγδεζηθκλμνξρστφχψωΓΔΘΛΣΦΨΩ",
                [
                    "alpha",
                    "beta",
                    "gamma",
                    "delta",
                    "epsilon",
                    "zeta",
                    "eta",
                    "theta",
                    "kappa",
                    "lambda",
                    "mu",
                    "nu",
                    "xi",
                    "rho",
                    "sigma",
                    "tau",
                    "phi",
                    "chi",
                    "psi",
                    "omega",
                    "Gamma",
                    "Delta",
                    "Theta",
                    "Lambda",
                    "Sigma",
                    "Phi",
                    "Psi",
                    "Omega",
                ],
                strict=True,
            )
        },
    }
)
_RAISED, _LOWERED = "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "₀₁₂₃₄₅₆₇₈₉"
_SCRIPTS = {
    "^": (re.compile(f"[{_RAISED}]+"), str.maketrans(_RAISED, "0123456789+-n")),
    "_": (re.compile(f"[{_LOWERED}]+"), str.maketrans(_LOWERED, "0123456789")),
}


def to_latex(text: str) -> str:
    r"""``text`` with its mathematical characters as LaTeX; ``√`` becomes the word ``sqrt``, which has no braces.

    >>> to_latex("10⁻³"), to_latex("x₁ ≤ ½")
    ('10^{-3}', 'x_{1} \\le  \\frac{1}{2}')
    """
    if text.isascii():
        return text
    for mark, (run, digits) in _SCRIPTS.items():
        text = run.sub(lambda found, mark=mark, digits=digits: f"{mark}{{{found[0].translate(digits)}}}", text)
    return text.translate(_CHARACTERS)
