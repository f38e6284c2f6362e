r"""Compare two formulas with computer algebra (math-verify on SymPy), with corrections.

Runs in verifier processes only, because it can take unbounded time and memory. Formulas are parsed by a LaTeX grammar;
the library's parser of plain expressions, which calls ``eval``, is never used.
"""

from __future__ import annotations

import functools
import itertools
import logging
import re
from fractions import Fraction
from typing import Any

from gagpo.envs.math.verify.answers import Number
from gagpo.envs.math.verify.numerals import SIGNIFICANT_DIGITS, agrees, read_number
from gagpo.envs.math.verify.spelling.normalise import plain
from gagpo.envs.math.verify.spelling.rewriting import rewrite, table
from gagpo.envs.math.verify.spelling.symbols import free_variables, variables
from gagpo.envs.math.verify.unfinished import close, coordinate, defined, evaluate, operations, unfinished, value

_DIGITS = 40
"""Values that differ in these digits are not equal; values that agree may be."""
_IMAGINARY = re.compile(r"\\[a-zA-Z]+|_\s*\{[^{}]*\}|_\s*\w|(?P<unit>i)(?![a-zA-Z]*\s*=)")
_BOUND_INDEX = re.compile(r"_\s*\{?\s*i\s*=")
_REWRITINGS = table(
    (r"(?<![\d.])(\d+)\s*\\frac\{(\d+)\}\{(\d+)\}", r"(\1+\\frac{\2}{\3})"),  # a mixed number
    (
        r"(?<![\d.])(\d+(?:\.\d+)?)\s*(?:\^\s*\{?\s*\\circ(?![a-zA-Z])\s*\}?|\\degree(?![a-zA-Z]))",
        r"\\frac{\1\\pi}{180}",
    ),
    flags=re.ASCII,
)
_DECIMAL = re.compile(r"(?<![\d.])(\d*)\.(\d+)(?![\d.])", re.ASCII)


class Unparsable(ValueError):
    """The grammar cannot parse this formula."""


@functools.lru_cache(maxsize=4096)
def _parsed_gold(latex: str, over_complex: bool) -> Any:
    return _parse(latex, over_complex)


def _parse(latex: str, over_complex: bool) -> Any:
    """The tree of a formula as written, with real variables unless ``over_complex``.

    Decimals and mixed numbers become fractions, degrees multiples of pi.
    """
    from latex2sympy2_extended import NormalizationConfig, latex2sympy, normalize_latex
    from latex2sympy2_extended.latex2sympy2 import ConversionConfig

    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    text = _DECIMAL.sub(lambda d: rf"\frac{{{int(d[1] + d[2])}}}{{{10 ** len(d[2])}}}", latex)
    text = rewrite(text, _REWRITINGS)
    if over_complex:
        # In braces, because the grammar drops an exponent after a bare I: it reads I^2 as I.
        text = _IMAGINARY.sub(lambda part: "{I}" if part["unit"] else part[0], text)
    tidy = NormalizationConfig(malformed_operators=True, nits=True, boxed="none")
    try:
        return latex2sympy(
            normalize_latex(text, tidy),
            is_real=not over_complex,
            normalization_config=None,
            conversion_config=ConversionConfig(lowercase_symbols=False),
        )
    except RecursionError:
        raise
    except Exception:
        raise Unparsable(f"cannot read {latex[:60]!r} as a formula") from None


def _complex(latex: str) -> bool:
    return any(match["unit"] for match in _IMAGINARY.finditer(latex)) and not _BOUND_INDEX.search(latex)


def equal(gold: str, prediction: str, unevaluated: bool = False) -> bool:
    """Whether two LaTeX formulas are equal; raises :class:`Unparsable`.

    unevaluated: accept a prediction with more unfinished arithmetic than the gold answer.
    """
    over_complex = _complex(gold) or _complex(prediction)
    if _complex(prediction) and not _complex(gold) and r"\sqrt{-" not in gold:
        return False  # a real answer written with complex numbers, such as a sine as exponentials
    gold_tree = _parsed_gold(gold, over_complex)
    prediction_tree = _parse(prediction, over_complex)
    if not free_variables(prediction) <= variables(gold):
        return False  # a new variable stands for something, or hides a constant
    extra_operations = frozenset() if unevaluated else operations(prediction, prediction_tree, of_variables=False)
    if extra_operations and not extra_operations <= _allowed_operations(gold, gold_tree):
        return False
    for decimal, exact in ((prediction, gold_tree), (gold, prediction_tree)):
        number = read_number(plain(decimal))
        if number is not None and number.places is not None:
            return _decimal_of(number, exact) and (unevaluated or exact is gold_tree or not unfinished(exact))
    allowed = unfinished(gold_tree) | ({"factorial"} if "binom" in gold else set())
    return _same(gold_tree, prediction_tree) and (unevaluated or unfinished(prediction_tree) <= allowed)


def _allowed_operations(gold: str, tree: Any) -> frozenset[str]:
    names = operations(gold, tree, of_variables=True)
    number = read_number(plain(gold))
    return names | {"root"} if number is not None and number.places is not None else names  # 1.4142136 for a root


def _same(gold: Any, prediction: Any) -> bool:
    import sympy
    from math_verify import verify

    relations = [isinstance(side, sympy.core.relational.Relational) for side in (gold, prediction)]
    if all(relations):
        return _same_relation(gold, prediction)
    if any(relations) and not isinstance(prediction, sympy.Set):
        return False
    if isinstance(gold, sympy.Expr) and isinstance(prediction, sympy.Expr):
        return _same_value(gold, prediction)
    return bool(verify([gold], [prediction], timeout_seconds=None, allow_set_relation_comp=True))


def _same_value(gold: Any, prediction: Any) -> bool:
    """Whether the difference is proved to be zero; where digits differ, no proof is tried."""
    import sympy

    names = sorted(gold.free_symbols | prediction.free_symbols, key=str)
    for point in (0, 1) if names else (0,):
        gold_value = value(gold, point, _DIGITS + 10)
        prediction_value = value(prediction, point, _DIGITS + 10)
        if gold_value is not None and prediction_value is not None and not close(gold_value, prediction_value, _DIGITS):
            return False
    difference = evaluate(gold.as_dummy()) - evaluate(prediction.as_dummy())  # bound variables may have any name
    if difference.has(sympy.Sum, sympy.Product, sympy.Integral, sympy.Limit, sympy.Derivative):
        return is_zero(difference.doit())
    if (
        names
        and difference != 0
        and gold.has(sympy.Abs) == prediction.has(sympy.Abs)
        and _same_where_defined(gold, prediction, names)
    ):
        # Roots and logarithms imply positive variables, which SymPy does not know: \ln x^2 is 2\ln x.
        positive = {name: sympy.Dummy(positive=True) for name in names}
        if all(name.is_real for name in names) and is_zero(difference.subs(positive)):
            return True
    return is_zero(difference)


def is_zero(tree: Any) -> bool:
    """Whether an expression is proved to be zero, never by digits: ``2^{200} + 1`` is not ``2^{200}``.

    SymPy proves it by simplification or by the minimal polynomial of an algebraic number.
    """
    import sympy

    if tree.is_Rational:
        return bool(tree == 0)
    if tree.equals(0):
        return True
    # Of inverse functions it knows no sums: a small angle is zero if its tangent is.
    angles = tree.atoms(sympy.asin, sympy.acos, sympy.atan)
    is_small = angles and not tree.free_symbols and abs(tree.evalf(20)) < 1
    return bool(is_small and sympy.tan(tree).expand(trig=True).equals(0))


def _same_where_defined(gold: Any, prediction: Any, names: list[Any]) -> bool:
    """Whether two expressions agree with variables of any sign, where no root or logarithm is of a negative number."""
    for factors in itertools.islice(itertools.product((1, -1), repeat=len(names)), 16):
        point = {name: factor * coordinate(str(name), 0) for name, factor in zip(names, factors, strict=True)}
        gold_value, prediction_value = (
            side.subs(point).evalf(_DIGITS) if defined(side, point) else None for side in (gold, prediction)
        )
        if (
            gold_value is not None
            and prediction_value is not None
            and not close(gold_value, prediction_value, _DIGITS // 2)
        ):
            return False
    return True


def _same_relation(gold: Any, prediction: Any) -> bool:
    """Whether two equations or inequalities are equivalent: the differences of their sides are multiples.

    A relation that is solved for a variable must be solved in the prediction too, except for polynomial curves and
    half-planes in x, y and z.
    """
    import sympy

    solved_for = gold.lhs if gold.lhs.is_Symbol or gold.lhs.is_Function else None
    if solved_for is not None and solved_for not in (prediction.lhs, prediction.rhs):
        sides = (gold.lhs, gold.rhs, prediction.lhs, prediction.rhs)
        names = gold.free_symbols | prediction.free_symbols
        if len(names) < 2 or not {str(name) for name in names} <= {"x", "y", "z"}:
            return False
        if not all(side.is_polynomial(*names) for side in sides):
            return False
    gold_difference, prediction_difference = (
        sympy.fraction(sympy.together(side.lhs - side.rhs))[0] for side in (gold, prediction)
    )
    ratio = sympy.cancel(sympy.expand(gold_difference) / sympy.expand(prediction_difference))
    if ratio.free_symbols or not ratio.is_finite or ratio.is_zero:
        return False
    oriented = prediction.reversed if ratio.is_negative else prediction
    return type(gold) is type(oriented)


def is_natural(latex: str, name: str, intervals: list[tuple[str, ...]]) -> bool:
    """Whether a region, as brackets and ends in LaTeX, is where a formula of one real variable is defined.

    It may leave out an end of that domain: ``x > 0`` for a root of x. All real numbers are no condition.
    """
    import sympy
    from sympy.calculus.util import continuous_domain

    tree = evaluate(_parse(latex, over_complex=False))
    if [str(symbol) for symbol in tree.free_symbols] != [name.lstrip("\\")]:
        return False
    region = sympy.Union(
        *(
            sympy.Interval(*(evaluate(_parse(end, over_complex=False)) for end in ends), opening == "(", closing == ")")
            for opening, *ends, closing in intervals
        )
    )
    domain = continuous_domain(tree, tree.free_symbols.pop(), sympy.S.Reals)
    if region in (sympy.S.Reals, sympy.S.EmptySet):
        return False
    return bool((domain - region).is_subset(domain.boundary) and region.is_subset(domain))


def _decimal_of(number: Number, value: Any) -> bool:
    """The decimal rule of :mod:`gagpo.envs.math.verify.compare`, for a value that needs computer algebra."""
    if getattr(value, "free_symbols", True):
        return False
    try:
        digits = value.evalf(40)
        exact = Fraction(str(digits))
    except (AttributeError, TypeError, ValueError, ZeroDivisionError):
        return False
    return number.significant >= SIGNIFICANT_DIGITS and agrees(number.value, number.places or 0, exact)
