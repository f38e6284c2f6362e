r"""Residue classes: ``x \equiv 3 \pmod 7``, also written as ``x = 7k + 3``."""

from __future__ import annotations

import re
from fractions import Fraction

from gagpo.envs.math.verify.answers import Answer, Family, Formula, Number

_LETTER = r"(?:[a-z]|\\iota)"
_LINEAR = re.compile(
    rf"(?:(?P<constant>-?\d{{1,30}})\s*(?P<sign>[+-])\s*)?(?P<factor>-?\d{{1,30}})\s*(?:\\cdot\s*)?(?P<letter>{_LETTER})\s*(?:(?P<end>[+-]\s*\d{{1,30}}))?",
    re.ASCII,
)


def residue(answer: Answer) -> Number | None:
    """The residue class that ``answer`` describes, or None.

    >>> residue(Formula("7k + 3")).value, residue(Formula("3 + 7k")).modulus, residue(Formula("x^2"))
    (Fraction(3, 1), 7, None)
    """
    if isinstance(answer, Number):
        return answer if answer.modulus else None
    formula = answer.general if isinstance(answer, Family) else answer
    if not isinstance(formula, Formula):
        return None
    linear = _LINEAR.fullmatch(formula.latex.strip())
    if linear is None or not int(linear["factor"]) or linear["letter"] == formula.name:
        return None
    constant = int(linear["constant"] or 0) + int((linear["end"] or "0").replace(" ", ""))
    return Number(Fraction(constant), modulus=abs(int(linear["factor"])))


def same_residues(gold: Number, prediction: Number) -> bool:
    """Whether two residues are equal; compared with a plain number a residue must be the smallest one."""
    if gold.modulus and prediction.modulus:
        return gold.modulus == prediction.modulus and (gold.value - prediction.value) % gold.modulus == 0
    if prediction.modulus:
        return 0 <= prediction.value < prediction.modulus and gold.value == prediction.value
    return gold.value % Fraction(gold.modulus or 1) == prediction.value
