r"""Decide whether an expression is zero by proof, never by digits: ``2^{200} + 1`` is not ``2^{200}``.

Runs in verifier processes only. A constant built from rationals, roots and functions of rational multiples of pi is an
algebraic number, which is zero if it is smaller than its separation bound. In other expressions pi, powers of e,
logarithms and variables are independent unknowns whose coefficients must be zero. What is left to SymPy's
simplification counts as zero only if it simplifies to zero.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

_MOST_DIGITS = 20_000
"""Separation bounds with more digits are not tried."""
_FACTORED = 10**18
"""Logarithms of integers up to this are split into those of primes."""


def is_zero(tree: Any) -> bool:
    """Whether an expression with SymPy's automatic simplifications is proved to be zero."""
    import sympy

    if tree.is_Rational:
        return bool(tree == 0)
    tree = tree.rewrite((sympy.sinh, sympy.cosh, sympy.tanh, sympy.coth), sympy.exp)
    is_algebraic_zero = _algebraic_zero(tree)
    if is_algebraic_zero is not None:
        return is_algebraic_zero
    if all(map(_algebraic_zero, _coefficients(tree))) or (not tree.free_symbols and _is_linear_form_zero(tree)):
        return True
    return bool((tree.free_symbols or tree.atoms(sympy.Function)) and sympy.simplify(tree) == 0)


def _coefficients(tree: Any) -> list[Any]:
    """The algebraic coefficients of the numerator, as a polynomial in everything that is not algebraic."""
    import sympy

    small = all(not log.args[0].is_Integer or log.args[0] < _FACTORED for log in tree.atoms(sympy.log))
    tree = sympy.expand(sympy.expand_log(tree, factor=small))
    powers = [power for power in tree.atoms(sympy.exp) if power.exp.is_Rational]
    denominator = math.lcm(*(power.exp.q for power in powers))
    root = sympy.Dummy(positive=True)  # exp(1/denominator), so exp(1/2) and exp(3/2) are powers of one unknown
    tree = tree.xreplace({power: root ** (power.exp * denominator) for power in powers})
    tree = tree.xreplace({sympy.E: root**denominator})
    grouped: dict[Any, list[Any]] = defaultdict(list)
    for term in sympy.Add.make_args(sympy.expand(sympy.fraction(sympy.together(tree))[0])):
        factors: dict[bool, list[Any]] = {True: [], False: []}
        for factor in sympy.Mul.make_args(term):
            factors[_size(factor, set(), set()) is not None].append(factor)
        grouped[sympy.Mul(*factors[False])].append(sympy.Mul(*factors[True]))
    return [sympy.Add(*coefficients) for coefficients in grouped.values()]


def _algebraic_zero(tree: Any) -> bool | None:
    """Whether an algebraic number is zero; None if it may not be algebraic or its bound has too many digits.

    An algebraic integer of degree D whose conjugates are at most u is 0 or at least u^(1 - D) (Burnikel, Funke,
    Mehlhorn, Schirra and Schmitt, A Separation Bound for Real Algebraic Expressions, 2001).
    """
    import sympy

    roots: set[Any] = set()
    orders: set[int] = {1}
    size = _size(tree, roots, orders)
    if size is None:
        return None
    above, below = size
    # The number is a quotient of algebraic integers, of which all conjugates are at most 2^above and 2^below: unless it
    # is zero, it is at least 2^-(above (degree - 1) + below). Two more digits absorb the rounding of the logarithms.
    degree = math.prod(node.exp.q for node in roots) * int(sympy.totient(math.lcm(*orders)))
    digits = int((above * (degree - 1) + below) * math.log10(2)) + 2
    if digits > _MOST_DIGITS:
        return None
    value = tree.evalf(10, maxn=digits + int(above) + 20)
    return bool(abs(value) < sympy.Float(10) ** -digits)


def _size(node: Any, roots: set[Any], orders: set[int]) -> tuple[float, float] | None:
    """Upper bounds of numerator and denominator over all conjugates, as logarithms to base 2; None if not algebraic.

    Collects the roots in ``roots`` and the orders of roots of unity in ``orders``.
    """
    import sympy

    if node.is_Rational:
        return math.log2(max(1, abs(node.p))), math.log2(node.q)
    if node is sympy.I:
        orders.add(4)
        return 0.0, 0.0
    turns = _turns(node)
    if turns is not None:
        orders.update((4, 2 * int(turns.q)))
        return 1.0, 1.0
    sizes = [_size(argument, roots, orders) for argument in node.args[: 1 if node.is_Pow else None]]
    algebraic_sizes = [size for size in sizes if size is not None]
    if len(algebraic_sizes) < len(sizes) or not algebraic_sizes:
        return None
    if node.is_Add:
        below = sum(size[1] for size in algebraic_sizes)
        return max(size[0] + below - size[1] for size in algebraic_sizes) + math.log2(len(algebraic_sizes)), below
    if node.is_Mul:
        return sum(size[0] for size in algebraic_sizes), sum(size[1] for size in algebraic_sizes)
    if not (node.is_Pow and node.exp.is_Rational):
        return None
    [(above, below)] = algebraic_sizes
    if node.exp.q > 1:
        roots.add(sympy.Pow(node.base, sympy.Rational(1, node.exp.q), evaluate=False))
        degree = int(node.exp.q)
        if above >= below:
            above = (above + below * (degree - 1)) / degree
        else:
            below = (above * (degree - 1) + below) / degree
    above, below = (above, below) if node.exp > 0 else (below, above)
    return above * abs(node.exp.p), below * abs(node.exp.p)


def _turns(node: Any) -> Any:
    """r for a trigonometric function of r pi, or the exponential of r i pi, with a rational r; else None."""
    import sympy

    if isinstance(node, sympy.functions.elementary.trigonometric.TrigonometricFunction):
        turns = node.args[0] / sympy.pi
    elif isinstance(node, sympy.exp):
        turns = node.exp / (sympy.I * sympy.pi)
    else:
        return None
    return turns if turns.is_Rational else None


def _is_linear_form_zero(tree: Any) -> bool:
    """Whether a sum of rational multiples of pi, logarithms and inverse trigonometric functions is proved to be zero.

    Each is a logarithm of an algebraic number, so the sum is zero if it is small and its exponential is 1.
    """
    import sympy

    terms = []
    for term in sympy.Add.make_args(sympy.expand(tree)):
        factor, atom = term.as_coeff_Mul()
        argument = _exponential(atom)
        if argument is None:
            return False
        terms.append((factor, argument))
    multiple = math.lcm(*(int(factor.q) for factor, _ in terms))
    product = sympy.Mul(*(argument ** (factor * multiple) for factor, argument in terms))
    return bool(abs(tree.evalf(10)) * multiple < 1) and _algebraic_zero(product - 1) is True


def _exponential(atom: Any) -> Any:
    """The exponential of an inverse function, with an angle times i; None for other atoms."""
    import sympy

    if atom is sympy.pi:
        return sympy.Integer(-1)
    if not atom.args:
        return None
    x = atom.args[0]
    if isinstance(atom, sympy.log):
        return x if x.is_positive else None
    if isinstance(atom, sympy.atan):
        return (1 + sympy.I * x) / sympy.sqrt(1 + x**2)
    if isinstance(atom, sympy.asin):
        return sympy.sqrt(1 - x**2) + sympy.I * x
    if isinstance(atom, sympy.acos):
        return x + sympy.I * sympy.sqrt(1 - x**2)
    return None
