r"""Binomial coefficients in other notations as ``\binom``: ``C_{10}^3``, ``{}_{10}C_3``, ``10 \text{ choose } 3``."""

from __future__ import annotations

import re

_NAME = r"(?:C|\\(?:mathrm|text|mathbf|operatorname|mathsf)\s*\{\s*C\s*\})"
_ARGUMENT = r"(?:\{{\s*(?P<{0}>[^{{}}]{{1,20}})\}}|(?P<{0}_>\w))"
_TOP = _ARGUMENT.format("top")
_BOTTOM = _ARGUMENT.format("bottom")
_SCRIPTS = (
    re.compile(rf"(?<![a-zA-Z\\]){_NAME}\s*_\s*{_TOP}\s*\^\s*{_BOTTOM}"),
    re.compile(rf"(?<![a-zA-Z\\]){_NAME}\s*\^\s*{_BOTTOM}\s*_\s*{_TOP}"),
    re.compile(rf"(?:\{{\s*\}}\s*|^|(?<=[\s=+*/({{-]))[_^]\s*{_TOP}\s*{_NAME}\s*_\s*{_BOTTOM}"),
)
_CHOOSE = re.compile(
    r"(?P<top>\d+|[a-z])\s*(?:\\(?:text|mathrm)\s*\{\s*choose\s*\}|\bchoose\b)\s*(?P<bottom>\d+|[a-z])(?!\w)"
)


def to_latex(text: str) -> str:
    r"""``text`` with its binomial coefficients as ``\binom``.

    >>> to_latex("C_{10}^3"), to_latex("{}_{10}C_3"), to_latex("C_1^2"), to_latex("2C_1 + 3C_2")
    ('\\binom{10}{3}', '\\binom{10}{3}', 'C_1^2', '2C_1 + 3C_2')
    """
    if "choose" in text:
        text = _CHOOSE.sub(_binomial, text)
    if "C" in text:
        for pattern in _SCRIPTS:
            text = pattern.sub(_binomial, text)
    return text


def _binomial(match: re.Match[str]) -> str:
    r"""The match as ``\binom``; unchanged if its numbers are none, as in the power ``C_1^2`` of a constant."""
    groups = match.groupdict()
    top, bottom = ((groups[name] or groups.get(f"{name}_") or "").strip() for name in ("top", "bottom"))
    if top.isdecimal() and not (bottom.isdecimal() and int(bottom) <= int(top)):
        return match[0]
    return rf"\binom{{{top}}}{{{bottom}}}"
