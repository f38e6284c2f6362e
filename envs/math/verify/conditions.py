"""Whether a condition after a formula only states its natural domain, as in ``1/x, x != 0``.

Every finite end of the region must be a zero of a denominator, a radicand or the argument of a logarithm. Only values
that the exact calculator can compute count.
"""

from __future__ import annotations

import re
from fractions import Fraction

from gagpo.envs.math.calculator import CalculatorError, calculate
from gagpo.envs.math.verify import regions
from gagpo.envs.math.verify.answers import INFINITY, MINUS_INFINITY, Answer, Formula, Number, Sequence
from gagpo.envs.math.verify.spelling import brackets

_DENOMINATOR = re.compile(r"\\frac(?=\{)")
_RADICAND = re.compile(r"\\(?:sqrt(?=\{)|(?:ln|log)\s*(?:_\s*(?:\{[^{}]*\}|\w))?\s*(?=\(|\{|[a-zA-Z]))")


def is_natural(formula: Formula, condition: Answer) -> bool:
    """Whether ``condition`` is the natural domain of ``formula``, which for a sequence ``a_n`` is a positive index."""
    if not isinstance(condition, Sequence) or not condition.name or not regions.is_region(condition):
        return False
    intervals = regions.pieces(condition)
    ends = [end for interval in intervals for end in interval.items if end not in (INFINITY, MINUS_INFINITY)]
    values = [end.value for end in ends if isinstance(end, Number)]
    if len(values) < len(ends) or not values:
        return False
    if formula.name.endswith(f"_{condition.name}"):
        return (
            len(intervals) == 1
            and intervals[0].opening == "["
            and intervals[0].items[1] == INFINITY
            and values[0] in (0, 1)
        )
    if len(intervals) > 1 and intervals[0].items[0] == MINUS_INFINITY and intervals[-1].items[1] == INFINITY:
        zeros = _denominators(formula.latex)
        return len({*values}) == len(intervals) - 1 and all(
            any(_value(factor, condition.name, point) == 0 for factor in zeros) for point in values
        )
    if len(intervals) > 1:
        return False
    inside = _inside(intervals[0])
    return all(
        any(
            _value(factor, condition.name, end) == 0 and _value(factor, condition.name, inside) > 0
            for factor in _radicands(formula.latex)
        )
        for end in values
    )


def _inside(piece: Sequence) -> Fraction:
    """A number in an interval with at least one finite end."""
    low, high = (end.value if isinstance(end, Number) else None for end in piece.items)
    if low is None:
        return (high or Fraction(0)) - 1
    return low + 1 if high is None else (low + high) / 2


def _denominators(latex: str) -> list[str]:
    denominators = []
    for match in _DENOMINATOR.finditer(latex):
        _, end = brackets.inside(latex, match.end())
        if latex[end : end + 1] == "{":
            denominators.append(brackets.inside(latex, end)[0])
    return denominators + re.findall(r"/\s*(\([^()]*\)|[a-zA-Z])", latex)


def _radicands(latex: str) -> list[str]:
    radicands = []
    for match in _RADICAND.finditer(latex):
        bracket = latex[match.end() : match.end() + 1] in ("(", "{")
        radicands.append(brackets.inside(latex, match.end())[0] if bracket else latex[match.end()])
    return radicands


def _value(part: str, name: str, value: Fraction) -> Fraction:
    """The value of a polynomial in one variable; -1, which proves nothing, if the calculator cannot compute it."""
    text = part.replace("{", "(").replace("}", ")").replace(r"\cdot", "*")
    text = re.sub(rf"(?<![a-zA-Z\\]){re.escape(name)}(?![a-zA-Z])", f"({value})", text)
    text = re.sub(r"(?<=[\d)])\s*(?=\()", "*", text)
    try:
        return calculate(text)
    except CalculatorError:
        return Fraction(-1)
