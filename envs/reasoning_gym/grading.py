"""Check a full score of reasoning-gym's verifiers by the value of the answer.

Several verifiers give the full score to wrong answers: they compare prefixes, accept NaN, ignore what follows the right
answer, or allow a tolerance. So the full score of a verifier is only taken where the answer also has the right value.
"""

from __future__ import annotations

import ast
import math
import operator
import re
import unicodedata
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Any

SEVERAL_ANSWERS = frozenset(
    {"bitwise_arithmetic", "boxnet", "complex_arithmetic", "countdown", "cryptarithm", "graph_color"}
    | {"intermediate_integration", "jugs", "kakurasu", "knight_swap", "n_queens", "palindrome_generation"}
    | {"polynomial_multiplication", "propositional_logic", "puzzle24", "quantum_lock", "rubiks_cube", "rush_hour"}
    | {"shortest_path", "simple_integration", "sokoban", "tower_of_hanoi", "word_ladder"}
)
"""Families with several right answers, whose verifier calculates whether an answer is right.

In every other family an answer is right if it has the value of the family's own answer.
"""
ANY_ORDER = frozenset(
    {"group_anagrams", "knights_knaves", "palindrome_partitioning", "polynomial_equations", "prime_factorization"}
)
"""Families whose verifier compares sets: the values of the family's own answer may come in another order."""
ROUNDED = {"coin_flip": 3, "decimal_arithmetic": 6, "power_function": 3}
"""Families whose answer may be rounded, and to how many significant digits at least."""
_FORMS = {
    "kakurasu": re.compile(r"[01\s]+"),
    "quantum_lock": re.compile(r"\s*[A-C](?:[\s,>→-]*[A-C])*\s*", re.IGNORECASE),
    "sokoban": re.compile(r"[UDLR\s,]+", re.IGNORECASE),
}
"""Forms of answers that are necessary because the family's verifier skips all other characters."""
_LARGEST = 400  # the power of ten up to which numbers are calculated with
_EXPRESSIONS = {"countdown": "target", "puzzle24": ""}
"""Families that ask for an expression of the given numbers, and the key of its value in the metadata, or else 24."""
_OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}
_TOKENS = re.compile(r"(?<![\w.)\]])[-+]?\d+(?:\.\d+)?(?:e[-+]?\d{1,9})?(?!\w)|\w+|[^\w\s]")
_UNIMPORTANT = frozenset("()[]{}'\"$,;.°")
_NONFINITE = re.compile(r"(?<![^\W\d_])(?:s?nan|inf|infinity|oo|zoo)j?(?![^\W\d_])", re.IGNORECASE)


def is_right(family: str, answer: str, entry: Mapping[str, Any]) -> bool:
    """Whether an answer to which the family's verifier gives the full score is right.

    entry: the problem as reasoning-gym describes it.
    """
    if family in _EXPRESSIONS:
        metadata = entry["metadata"]
        return _has_value(answer, metadata["numbers"], metadata.get(_EXPRESSIONS[family], 24))
    if family == "propositional_logic":  # its verifier takes any lower-case word as a variable
        return set(re.findall(r"\w+", answer)) <= set(entry["metadata"]["variables"])
    if family in _FORMS:
        return bool(_FORMS[family].fullmatch(answer))
    if family in ANY_ORDER:
        return _sorted_tokens(answer) == _sorted_tokens(str(entry["answer"]))
    return family in SEVERAL_ANSWERS or is_equal(answer, str(entry["answer"]), ROUNDED.get(family))


def is_equal(answer: str, expected: str, digits: int | None = None) -> bool:
    """Whether two answers have the same value: the same words, and numbers of equal value, in the same order.

    digits: significant digits that a rounded number must have; None if no number may be rounded.

    >>> is_equal("0.50", "0.5"), is_equal("1/2", "0.5"), is_equal("0", "0.3125"), is_equal("[1.0, 2]", "['1', '2']")
    (True, True, False, True)
    """
    if _plain(answer) == _plain(expected):
        return True
    if "," not in expected:  # separators of thousands
        answer = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", answer)
    tokens, expected_tokens = _tokens(answer), _tokens(expected)
    if len(expected_tokens) == 1 and len(tokens) == 3 and tokens[1] == "/":  # a fraction for a decimal number
        tokens = [_quotient(tokens[0], tokens[2])]
    if len(expected_tokens) == 2 and len(tokens) == 1 and isinstance(expected_tokens[1], str):  # a number without unit
        expected_tokens = [number for number in expected_tokens[:1] if not isinstance(number, str)]
    return len(tokens) == len(expected_tokens) and all(
        token == other or (digits is not None and _is_rounded(token, other, digits))
        for token, other in zip(tokens, expected_tokens, strict=True)
    )


def is_nonfinite(answer: str) -> bool:
    """Whether an answer contains NaN, an infinity, or a number that is too large for a float.

    >>> [is_nonfinite(text) for text in ("nan", "['1', 'NaN']", "1e999", "infj", "banana", "1e9")]
    [True, True, True, True, False, False]
    """
    numbers = [token for token in _tokens(answer) if isinstance(token, Decimal)]
    return bool(_NONFINITE.search(answer)) or any(math.isinf(float(number)) for number in numbers)


def _plain(text: str) -> str:
    return "".join(unicodedata.normalize("NFC", text).casefold().split())


def _tokens(text: str) -> list[str | Decimal | Fraction]:
    """The numbers and words of an answer, without brackets, quotes and commas."""
    text = re.sub(r"\\[dt]?frac\s*\{\s*(\d+)\s*\}\s*\{\s*(\d+)\s*\}", r"\1/\2", text.casefold().replace("−", "-"))
    return [_number(token) for token in _TOKENS.findall(text) if token not in _UNIMPORTANT]


def _number(token: str) -> str | Decimal:
    try:
        number = Decimal(token)
    except InvalidOperation:
        return token
    # The sign of -0 stays visible: it is wrong before a time such as -00:30.
    return number if number.is_finite() and (number or not number.is_signed()) else token


def _sorted_tokens(text: str) -> list[str]:
    """The tokens in an order of their own, without the words of a sentence around them."""
    return sorted(str(token) for token in _tokens(text) if token not in ("a", "an", "and", "is"))


def _quotient(numerator: object, denominator: object) -> str | Fraction:
    """A quotient of integers; '' for other values. Python compares it exactly with a Decimal."""
    for number in (numerator, denominator):
        if not isinstance(number, Decimal) or abs(number.adjusted()) > _LARGEST or number != number.to_integral_value():
            return ""
    if denominator == 0:
        return ""
    return Fraction(int(numerator), int(denominator))  # type: ignore[call-overload]


def _is_rounded(number: object, exact: object, min_digits: int) -> bool:
    """Whether ``number`` is ``exact`` rounded to its own last digit, and has enough significant digits."""
    if isinstance(number, Fraction) and isinstance(exact, Decimal):  # the family's answer is the rounded number
        fraction = number
        number = exact
        exact = Decimal(fraction.numerator) / Decimal(fraction.denominator)
    if not isinstance(number, Decimal) or not isinstance(exact, Decimal):
        return False
    _, digits, exponent = number.as_tuple()
    if len(digits) < min_digits or number.adjusted() != exact.adjusted() or abs(number.adjusted()) > _LARGEST:
        return False
    return abs(number - exact) <= Decimal((0, (5,), int(exponent) - 1))


def _has_value(expression: str, numbers: list[int], value: int) -> bool:
    """Whether an expression contains each of the numbers once, the four operations, and has this value."""
    used: list[int] = []

    def evaluate(node: ast.expr) -> Fraction:
        match node:
            case ast.Constant(value=int(number)) if not isinstance(number, bool):
                used.append(number)
                return Fraction(number)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -evaluate(operand)
            case ast.UnaryOp(op=ast.UAdd(), operand=operand):
                return evaluate(operand)
            case ast.BinOp(left=left, op=operation, right=right) if type(operation) in _OPERATORS:
                result: Fraction = _OPERATORS[type(operation)](evaluate(left), evaluate(right))
                return result
        raise ValueError(f"{type(node).__name__} is not allowed in an expression")

    try:
        result = evaluate(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError):
        return False
    return result == value and sorted(used) == sorted(numbers)
