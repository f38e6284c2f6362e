r"""Comparing two formulas with computer algebra (math-verify on SymPy), and putting right what it gets wrong.

Runs in verifier processes only: it can take arbitrarily long and arbitrarily much memory. Formulas are read by a LaTeX
grammar; the library's reader of plain expressions, which ends in Python's ``eval``, is never used.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from gagpo.envs.math.verify.answers import Number
from gagpo.envs.math.verify.compare import SIGNIFICANT_DIGITS, agrees
from gagpo.envs.math.verify.normalise import plain
from gagpo.envs.math.verify.numerals import read_number


class Unparsable(ValueError):
    """The grammar cannot read this formula."""


@functools.lru_cache(maxsize=4096)
def _parsed_gold(latex: str) -> Any:
    return _parse(latex)


def _parse(latex: str) -> Any:
    from math_verify import LatexExtractionConfig, parse

    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    config = LatexExtractionConfig(boxed_match_priority=-1)
    # Time is limited by this process's own timers; the library's would clash with them.
    found = parse(f"${latex}$", extraction_config=[config], fallback_mode="no_fallback", parsing_timeout=None)
    if not found:
        raise Unparsable(f"cannot read {latex[:60]!r} as a formula")
    return found[0]


def equal(gold: str, prediction: str, unevaluated: bool = False) -> bool:
    """Whether two LaTeX formulas mean the same; :class:`Unparsable` when the prediction cannot be read.

    Unless ``unevaluated``, a prediction that leaves more kinds of arithmetic to do than the gold answer is none.
    """
    from math_verify import verify

    wanted, given = _parsed_gold(gold), _parse(prediction)
    for decimal, value in ((prediction, wanted), (gold, given)):
        number = read_number(plain(decimal))
        if number is not None and number.places is not None:
            return _decimal_of(number, value) and (unevaluated or value is wanted or not arithmetic_left(value))
    same = bool(verify([wanted], [given], timeout_seconds=None, allow_set_relation_comp=True))
    return same and (unevaluated or arithmetic_left(given) <= arithmetic_left(wanted))


def _decimal_of(number: Number, value: Any) -> bool:
    """The rule for decimals of :mod:`gagpo.envs.math.verify.compare`, for a value that only computer algebra knows."""
    if getattr(value, "free_symbols", True):
        return False
    try:
        digits = value.evalf(40)
        exact = Fraction(str(digits))
    except (AttributeError, TypeError, ValueError, ZeroDivisionError):
        return False
    return number.significant >= SIGNIFICANT_DIGITS and agrees(number.value, number.places or 0, exact)


def arithmetic_left(tree: Any) -> frozenset[str]:
    r"""The kinds of arithmetic that a formula, as it was written, leaves to be done.

    ``sum``: terms that go together, as in ``2x + 3x`` and ``\sqrt{18} + \sqrt{8}``. ``product``: of integers.
    ``power``: of an integer other than 10. ``expansion``: a product or power of sums of constants. ``root``: of a
    constant with a root in it. ``matrix``: a sum, product or power of matrices. Equations leave nothing: there are many
    ways to write one.
    """
    import sympy

    if not isinstance(tree, sympy.Basic) or tree.has(sympy.core.relational.Relational):
        return frozenset()
    return frozenset(kind for node in sympy.preorder_traversal(tree) for kind in _kinds_left(node))


def _kinds_left(node: Any) -> Iterator[str]:
    import sympy

    if isinstance(node, sympy.MatMul | sympy.MatAdd):
        if sum(bool(getattr(part, "is_Matrix", False)) for part in node.args) > 1:
            yield "matrix"
    elif isinstance(node, sympy.MatPow | sympy.Inverse | sympy.Transpose):
        yield "matrix"
    elif isinstance(node, sympy.Add):
        kinds = [_evaluated(term).as_coeff_Mul()[1] for term in _terms(node)]
        if len(set(kinds)) < len(kinds):
            yield "sum"
    elif isinstance(node, sympy.Mul):
        factors = _factors(node)
        if sum(factor.is_Integer and abs(factor) != 1 for factor in factors) > 1:
            yield "product"
        if not node.free_symbols and sum(factor.is_Add for factor in factors) > 1:
            yield "expansion"
    elif isinstance(node, sympy.Pow):
        base, exponent = node.args
        if base.is_Integer and abs(base) not in (0, 1, 10) and exponent.is_Integer and exponent > 1:
            yield "power"
        if base.is_Add and not base.free_symbols and exponent.is_Integer and exponent > 1:
            yield "expansion"
        if _is_root(node) and not base.free_symbols and any(map(_is_root, sympy.preorder_traversal(base))):
            yield "root"


def _terms(node: Any) -> list[Any]:
    """The terms of a sum as written, those of sums within it among them."""
    return [part for term in node.args for part in (_terms(term) if term.is_Add else [term])]


def _factors(node: Any) -> list[Any]:
    return [part for factor in node.args for part in (_factors(factor) if factor.is_Mul else [factor])]


def _is_root(node: Any) -> bool:
    return node.is_Pow and node.exp.is_Rational and not node.exp.is_Integer


def _evaluated(node: Any) -> Any:
    """``node`` with the simplifications that SymPy does by itself: the parser keeps formulas as they were written."""
    return node.func(*map(_evaluated, node.args)) if node.args else node
