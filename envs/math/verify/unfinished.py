r"""Find unfinished work in a formula, so the question cannot be returned as its own answer.

Integrals, sums, products, limits, derivatives and determinants always count as unevaluated; functions such as a sine, a
root or a binomial coefficient only if applied to constants: ``\sin\frac{\pi}{6}`` was not computed, but
``\frac{\sin x}{\cos x}`` is a form of ``\tan x``. Operations in the gold answer are allowed. Arithmetic and variables
without effect are looked for in the tree of the formula as written. Runs in verifier processes only.
"""

from __future__ import annotations

import itertools
import math
import re
import zlib
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from gagpo.envs.math.verify.spelling.symbols import variables

_ARITHMETIC = frozenset(("sum", "product", "power", "division", "denominator", "expansion"))
_MOST_TERMS = 12
"""Terms of a sum that are tried in pairs."""
_LARGEST_EXPONENT = 12
"""Brackets with a higher power are not expanded."""
# The grammar evaluates these when it reads them.
_EVALUATED = {
    "binom": re.compile(r"\\binom\s*\{[^a-zA-Z]*\}\s*\{[^a-zA-Z]*\}"),
    "gcd": re.compile(r"\\gcd(?![a-zA-Z])"),
    "lcm": re.compile(r"\\(?:lcm(?![a-zA-Z])|(?:operatorname\*?|text|mathrm)\s*\{\s*(?:lcm|gcd)\s*\})"),
    "determinant": re.compile(r"\\begin\s*\{vmatrix\}|\\det(?![a-zA-Z])"),
    "derivative": re.compile(r"[)\]}]\s*(?:'|\^\s*\{?\s*\\prime)"),
}
_INTEGER = r"[-\s(]*(\d+(?:\.\d*)?)[\s)]*"
_QUOTIENT = re.compile(
    rf"\\frac\s*\{{{_INTEGER}\}}\s*\{{{_INTEGER}\}}"
    r"|(?:(?<![\d.}^])(\d+)|\(\s*-?(\d+)\s*\))\s*/\s*\(?\s*-?(\d+)(?![\d.])",
    re.ASCII,
)
_EXPONENT = re.compile(r"(?<![a-zA-Z\\])e\s*\^\s*(?:\{((?:[^{}]|\{[^{}]*\})*)\}|(\S))")
_IMAGINARY = re.compile(r"(?<![a-zA-Z\\])i(?![a-zA-Z])")
_CIRCULAR = re.compile(r"^(a?)(?:sin|cos|tan|cot|sec|csc)$")


def operations(latex: str, tree: Any, of_variables: bool) -> frozenset[str]:
    r"""The operators and the functions of constants in a formula as written; with ``of_variables`` all functions."""
    import sympy

    names = {name for name, pattern in _EVALUATED.items() if pattern.search(latex)}
    for match in _QUOTIENT.finditer(latex):
        top, bottom = (Fraction(number) for number in match.groups() if number)
        if bottom and (top / bottom).denominator == 1:
            names.add("division")
    nodes = list(sympy.preorder_traversal(tree if isinstance(tree, sympy.Basic) else sympy.Tuple(*tree)))
    powers = [match[1] or match[2] for match in _EXPONENT.finditer(latex)]
    if len(powers) > sum(node is sympy.E or isinstance(node, sympy.exp) for node in nodes):
        names.add("power of e")  # such as e^0
    if any(_IMAGINARY.search(power) and (of_variables or not variables(power)) for power in powers):
        names |= {"exponential", "root"} if of_variables else {"exponential"}  # a root of unity
    if "binom" in latex and of_variables:
        names |= {"binom", "factorial"}  # a binomial coefficient that may stay can also be written with factorials
    operators = sympy.Integral | sympy.Sum | sympy.Product | sympy.Limit | sympy.Derivative
    applied = sympy.Function | sympy.Max | sympy.Min
    for node in nodes:
        if isinstance(node, operators):
            names.add(type(node).__name__)
        elif isinstance(node, sympy.Basic) and (of_variables or not node.free_symbols):
            if isinstance(node, applied) and (not isinstance(node, sympy.exp) or node.has(sympy.I)):
                # A sine is as unevaluated as the cosine of the other angle.
                names.add(_CIRCULAR.sub(r"\1sin", type(node).__name__))
            elif _is_root(node):
                names.add("root")
    return frozenset(names)


def unfinished(tree: Any) -> frozenset[str]:
    r"""The kinds of unfinished work in a formula as written.

    ``sum``: terms that can be combined (``2x + 3x``, ``\sqrt{18} + \sqrt{8}``), perhaps after expansion
        (``2(x + 1) + x``).
    ``product``: of numbers, of powers of e, of imaginary units, of roots of constants.
    ``power``: of an integer other than 10, of a power or product; a product of powers with one base.
    ``division``: by a number or factor that divides the numerator.
    ``denominator``: a sum of constants.
    ``expansion``: a product or power of sums of constants.
    ``root``: of a constant that contains a root.
    ``dummy``: a part with variables that does not depend on them.
    ``matrix``: a sum, product or power of matrices.
    Name of a function: one that simplifies away, such as ``\sin\frac{\pi}{3}`` or ``\ln e^x``.

    Arithmetic in equations does not count, because an equation can be written in many ways.
    """
    import sympy

    if not isinstance(tree, sympy.Basic):
        return frozenset()
    equation = isinstance(tree, sympy.core.relational.Relational)
    nodes = [node for side in (tree.args if equation else (tree,)) for node in sympy.preorder_traversal(side)]
    if any(isinstance(node, sympy.core.relational.Relational) for node in nodes):
        return frozenset()
    node_types = {node_type for node in nodes for node_type in _kinds(node)}
    if any(map(_has_dummies, nodes)):
        node_types.add("dummy")
    return frozenset(node_types - _ARITHMETIC if equation else node_types)


def value(tree: Any, point: int, digits: int) -> Any:
    """The value of an expression at ``point``, or None.

    Every variable is positive at points 0 and 1 and negative at point 2; its value depends on its name.
    """
    import sympy

    if tree.has(sympy.Sum, sympy.Product, sympy.Integral, sympy.Limit, sympy.Derivative):
        return None
    point_values = {symbol: coordinate(str(symbol), point) for symbol in tree.free_symbols}
    try:
        number = tree.evalf(digits, subs=point_values)
    except (ArithmeticError, AttributeError, NotImplementedError, TypeError, ValueError):
        return None
    if number.is_number and number.is_finite and not number.has(sympy.nan, sympy.zoo):
        return number
    return None


def defined(tree: Any, point: dict[Any, Any]) -> bool:
    """Whether no root, broken power or logarithm in an expression is of a negative number at a point."""
    import sympy

    inner = [node.base for node in tree.atoms(sympy.Pow) if not node.exp.is_integer]
    inner += [log.args[0] for log in tree.atoms(sympy.log)]
    return all(bool(node.subs(point).evalf(20).is_nonnegative) for node in inner)


def close(first: Any, second: Any, digits: int) -> bool:
    """Whether two numbers agree to ``digits`` significant digits, or are too small to tell them from zero."""
    size = abs(first) + abs(second)
    return bool(abs(first - second) <= size * Fraction(1, 10**digits) or size < Fraction(1, 10**60))


def coordinate(name: str, point: int) -> Any:
    """The value of variable ``name`` at ``point``: between 0.99 and 9, negative at point 2, the same in every process.

    A checksum and a prime denominator make it improbable that two different formulas agree by accident.
    """
    import sympy

    size = sympy.Rational(1001 + zlib.crc32(f"{name} {point}".encode()) % 8009, 1009)
    return -size if point == 2 else size


def _has_dummies(node: Any) -> bool:
    r"""Whether a part of a formula contains variables but does not depend on them: ``0x``, ``x^0``, ``\frac{x}{x}``."""
    import sympy

    if not isinstance(node, sympy.Expr) or node.is_Symbol or not node.free_symbols:
        return False
    values = [[value(argument, point, 20) for point in (0, 2)] for argument in (node.args if node.is_Add else [node])]
    if any(None in pair for pair in values):
        return False
    if node.is_Add:  # any two terms, as in \sin^2 x + \cos^2 x, or all of them
        varying = [pair for pair in values if not close(pair[0], pair[1], 15)][:_MOST_TERMS]
        sums = [
            [a + b for a, b in zip(first, second, strict=True)] for first, second in itertools.combinations(varying, 2)
        ]
        values = [*sums, [sum(column) for column in zip(*values, strict=True)]]
    return any(close(first, second, 15) for first, second in values)


def _kinds(node: Any) -> Iterator[str]:
    import sympy

    if isinstance(node, sympy.MatMul | sympy.MatAdd):
        if sum(bool(getattr(argument, "is_Matrix", False)) for argument in node.args) > 1:
            yield "matrix"
    elif isinstance(node, sympy.MatPow | sympy.Inverse | sympy.Transpose):
        yield "matrix"
    elif isinstance(node, sympy.Add):
        if _has_like_terms(node):
            yield "sum"
    elif isinstance(node, sympy.Mul):
        yield from _kinds_of_product(node)
    elif isinstance(node, sympy.Pow):
        yield from _kinds_of_power(node)
    root = _is_root(node)
    if node.is_Function or (root and not node.free_symbols):
        simple = evaluate(node)
        if root:
            remains = any(map(_is_root, sympy.preorder_traversal(simple)))
        else:
            remains = simple.has(node.func)
        if not remains and simple != sympy.E:
            yield "root of a power" if root else str(node.func)


def _has_like_terms(node: Any) -> bool:
    """Whether two terms of a sum can be combined, perhaps after expanding a bracket.

    A completed square is finished: ``(x - 3)^2 + 4`` has no terms with x to combine.
    """
    import sympy

    terms = [evaluate(term) for term in _terms(node)]
    previous_parts: set[Any] = set()
    for term in terms:
        bases = {base.as_coeff_Mul()[1] for base in sympy.Add.make_args(_expand(term))}
        if _is_square(term):
            bases = {base for base in bases if base.free_symbols}
        if bases & previous_parts:
            return True
        previous_parts |= bases
    term_bases = [term.as_coeff_Mul()[1] for term in terms]
    return len({*term_bases}) < len(term_bases) or (0 in terms and not node.has(sympy.I))  # 0 + 2i is a usual form


def _expand(term: Any) -> Any:
    """A number or variable times a bracket, or a number times a power of one, expanded; other terms unchanged."""
    product = _Product(term)
    sums = [factor for factor in product.factors if factor.is_Add or (factor.is_Pow and factor.base.is_Add)]
    other_factors = [factor for factor in product.factors if factor not in sums]
    if len(sums) != 1 or product.divisors or not all(factor.is_Symbol for factor in other_factors):
        return term
    exponent: Any = sums[0].exp if sums[0].is_Pow else 1
    if exponent != 1 and (other_factors or not (exponent.is_Integer and 1 < exponent <= _LARGEST_EXPONENT)):
        return term
    return term.expand()


def _is_square(term: Any) -> bool:
    return any(factor.is_Pow and factor.base.is_Add for factor in _Product(term).factors)


class _Product:
    """A product as written: integers other than 1 and other factors, in numerator and denominator."""

    def __init__(self, node: Any) -> None:
        self.numbers: list[int] = []
        self.factors: list[Any] = []
        self.divisors: list[int] = []
        self.denominators: list[Any] = []
        self._add(node, below=False)

    def _add(self, node: Any, below: bool) -> None:
        if node.is_Mul:
            for factor in node.args:
                self._add(factor, below)
        elif node.is_Pow and node.exp.is_Integer and node.exp == -1:
            self._add(node.base, not below)
        elif node.is_Rational:
            numbers = self.divisors if below else self.numbers
            divisors = self.numbers if below else self.divisors
            if abs(node.p) != 1:
                numbers.append(abs(node.p))
            if node.q != 1:
                divisors.append(node.q)
        else:
            (self.denominators if below else self.factors).append(node)


def _kinds_of_product(node: Any) -> Iterator[str]:
    import sympy

    product = _Product(node)
    roots = [factor.exp for factor in product.factors if _is_root(factor) and not factor.free_symbols]
    powers_of_e = [f for f in product.factors if f == sympy.E or (isinstance(f, sympy.exp) and not f.free_symbols)]
    if max(len(product.numbers), len(product.divisors), len(powers_of_e)) > 1 or len({*roots}) < len(roots):
        yield "product"
    if product.factors.count(sympy.I) > 1:
        yield "product"
    sums = [factor for factor in product.factors if factor.is_Add]
    if not node.free_symbols and (len(sums) > 1 or (sympy.I in product.factors and any(s.has(sympy.I) for s in sums))):
        yield "expansion"
    divisor = math.prod(product.divisors)
    if divisor > 1 and math.prod([*product.numbers, *map(_content, product.factors)]) % divisor == 0:
        yield "division"
    above, below = (
        [factor.as_base_exp() for factor in factors_of] for factors_of in (product.factors, product.denominators)
    )
    for (base, exponent), (other_base, _) in itertools.product(above, below):
        # A root over its own base is a rationalised denominator: \frac{\sqrt{x}}{2x}.
        root = exponent.is_Rational and not exponent.is_Integer
        if base == other_base and (base.free_symbols or exponent.free_symbols) and not root:
            yield "division"
    powers = [*above, *below]
    bases = [base for base, exponent in powers if base.is_Symbol and exponent.is_Integer]
    if len({*bases}) < len(bases) and any(base in bases and exponent != 1 for base, exponent in powers):
        yield "power"
    top, bottom = (sympy.Mul(*map(evaluate, factors_of)) for factors_of in (product.factors, product.denominators))
    shared = top.free_symbols & bottom.free_symbols
    polynomial = shared and top.is_polynomial(*shared) and bottom.is_polynomial(*shared)
    if polynomial and sympy.gcd(top, bottom).free_symbols:
        yield "division"


def _content(factor: Any) -> int:
    """The largest integer that divides every term of a sum."""
    if not factor.is_Add:
        return 1
    products = [_Product(evaluate(term)) for term in _terms(factor)]
    if any(product.divisors for product in products):
        return 1
    return math.gcd(*(math.prod(product.numbers) for product in products))


def _kinds_of_power(node: Any) -> Iterator[str]:
    import sympy

    base, exponent = node.args
    if exponent in (0, 1):
        yield "power"
    if exponent.is_Integer and abs(exponent) > 1:
        if (base.is_Rational and abs(base) != 10) or isinstance(base, sympy.exp):
            yield "power"
        if evaluate(base) in (sympy.I, -sympy.I):
            yield "power"
        if (base.is_Pow and base.exp.is_Rational) or (base.is_Mul and _Product(base).numbers):
            yield "power"
        if base.is_Add and not base.free_symbols:
            yield "expansion"
    if exponent.is_negative and not base.free_symbols and (base == sympy.I or (base.is_Add and base.is_algebraic)):
        yield "denominator"
    if _is_root(node) and base.is_Pow and base.base.is_Add and (base.exp * exponent).is_Integer:
        yield "power"
    if _is_root(node) and not base.free_symbols and any(map(_is_root, sympy.preorder_traversal(base))):
        yield "root"


def _terms(node: Any) -> list[Any]:
    """The terms of a sum as written, with those of nested sums."""
    return [inner for term in node.args for inner in (_terms(term) if term.is_Add else [term])]


def _is_root(node: Any) -> bool:
    import sympy

    return node.is_Pow and node.base != sympy.E and node.exp.is_Rational and not node.exp.is_Integer


def evaluate(node: Any) -> Any:
    """``node`` with SymPy's automatic simplifications, which the parser leaves out."""
    return node.func(*map(evaluate, node.args)) if node.args else node
