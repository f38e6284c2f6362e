"""The calculator tool: exact rational arithmetic over a small grammar, bounded in size and time.

    sum     := product (("+" | "-") product)*
    product := unary (("*" | "/" | "mod") unary | juxtaposed)*
    unary   := ("-" | "+") unary | power
    power   := postfix ("^" unary)?
    postfix := atom ("!" | "%")*
    atom    := number | name "(" sum ("," sum)* ")" | "(" sum ")"
    number  := (digits ("." digits)? | "." digits) ("e" ("+" | "-")? digits)?

A factor may follow another without a sign if one of them has brackets, as in ``2(3)``, but not after a division, where
it could belong to either side. ``%`` before a number, name or bracket is the remainder, else a hundredth. ``**``,
``×``, ``·``, ``÷`` and ``−`` are read as their ASCII equivalents. Nothing is passed to Python's ``eval``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from fractions import Fraction

MAX_LENGTH = 400
"""Longest expression, in characters."""
MAX_DEPTH = 40
"""Deepest nesting of brackets, signs and powers."""
MAX_BITS = 1024
"""Largest numerator or denominator of any intermediate result, in bits (308 decimal digits)."""


class CalculatorError(ValueError):
    """An expression that cannot be evaluated; the agent reads the message."""


def calculate(expression: str) -> Fraction:
    """The exact value of ``expression``; raises :class:`CalculatorError`.

    >>> calculate("(3 + 4) * 5 / 2")
    Fraction(35, 2)
    >>> calculate("-7 mod 5"), calculate("2^-2"), calculate("gcd(12, 18)")
    (Fraction(3, 1), Fraction(1, 4), Fraction(6, 1))
    """
    if len(expression) > MAX_LENGTH:
        raise CalculatorError(f"the expression is longer than {MAX_LENGTH} characters")
    return _Reader(expression).read()


def _bounded(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
        raise CalculatorError("the result is too large")
    return value


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        raise CalculatorError("an exponent must be an integer")
    size = max(base.numerator.bit_length(), base.denominator.bit_length())
    # Powers of 0, 1 and -1 stay small; for any other base b of s bits, b^n has at least (s - 1) n bits.
    if size > 1 and (size - 1) * abs(exponent) > MAX_BITS:
        raise CalculatorError("the result is too large")
    if base == 0 and exponent < 0:
        raise CalculatorError("division by zero")
    if size > 1:
        return _bounded(base ** int(exponent))
    if exponent == 0:
        return Fraction(1)
    return base if exponent % 2 else abs(base)


def _integers(name: str, values: list[Fraction]) -> list[int]:
    if any(value.denominator != 1 for value in values):
        raise CalculatorError(f"{name} takes integers")
    return [int(value) for value in values]


def _root(value: Fraction) -> Fraction:
    if value < 0:
        raise CalculatorError("the square root of a negative number")
    root = Fraction(math.isqrt(value.numerator), math.isqrt(value.denominator))
    if root * root != value:
        raise CalculatorError("this square root is not a rational number")
    return root


def _factorial(value: int) -> int:
    if not 0 <= value <= 150:  # 150! has 873 bits, below MAX_BITS
        raise CalculatorError("factorial takes an integer from 0 to 150")
    return math.factorial(value)


FUNCTIONS: dict[str, tuple[int | None, Callable[[list[Fraction]], Fraction | int]]] = {
    # name: (number of arguments, None for one or more; function)
    "abs": (1, lambda v: abs(v[0])),
    "sqrt": (1, lambda v: _root(v[0])),
    "floor": (1, lambda v: math.floor(v[0])),
    "ceil": (1, lambda v: math.ceil(v[0])),
    "factorial": (1, lambda v: _factorial(*_integers("factorial", v))),
    "gcd": (None, lambda v: math.gcd(*_integers("gcd", v))),
    "lcm": (None, lambda v: math.lcm(*_integers("lcm", v))),
    "min": (None, min),
    "max": (None, max),
}

_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:\d+(?:\.\d+)?|\.\d+)(?:e[-+]?\d{1,4}(?![\da-z]))?)|(?P<name>[a-z]+)|(?P<sign>[-+*/^(),!%]))",
    re.ASCII,
)
_REMAINDER = re.compile(r"%(?=\s*[\d.(a-zA-Z])", re.ASCII)
_ASCII = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "–": "-", "[": "(", "]": ")"})


def _tokens(expression: str) -> list[str]:
    text = _REMAINDER.sub(" mod ", expression.translate(_ASCII)).replace("**", "^").lower().rstrip()
    tokens = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise CalculatorError(f"cannot read {text[position:].strip()[:12]!r}")
        tokens.append(match.group().strip())
        position = match.end()
    return tokens


class _Reader:
    """Recursive descent with a bounded depth, so Python's stack cannot overflow."""

    def __init__(self, expression: str):
        self.tokens = _tokens(expression)
        self.position = 0
        self.depth = 0

    def read(self) -> Fraction:
        if not self.tokens:
            raise CalculatorError("the expression is empty")
        value = self.sum()
        if self.position < len(self.tokens):
            raise CalculatorError(f"unexpected {self.tokens[self.position][:12]!r}")
        return value

    def peek(self) -> str:
        if self.position < len(self.tokens):
            return self.tokens[self.position]
        return ""

    def take(self, *choices: str) -> str:
        token = self.peek()
        if token not in choices:
            return ""
        self.position += 1
        return token

    def expect(self, token: str) -> None:
        if not self.take(token):
            next_token = self.peek()[:12]
            raise CalculatorError(f"expected {token!r} before {next_token!r}" if next_token else f"missing {token!r}")

    def sum(self) -> Fraction:
        value = self.product()
        while operator := self.take("+", "-"):
            right = self.product()
            value = _bounded(value + right if operator == "+" else value - right)
        return value

    def product(self) -> Fraction:
        value = self.unary()
        divided = False
        while operator := self.take("*", "/", "mod") or self.juxtaposed():
            if operator == "()" and divided:
                raise CalculatorError("after a division, write * between factors")
            divided = operator in ("/", "mod")
            right = self.power() if operator == "()" else self.unary()
            if divided and right == 0:
                raise CalculatorError("division by zero")
            if operator == "/":
                value = value / right
            elif operator == "mod":
                value = value - right * (value // right)
            else:
                value = value * right
            value = _bounded(value)  # before the next factor
        return value

    def unary(self) -> Fraction:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise CalculatorError(f"nested deeper than {MAX_DEPTH} levels")
        operator = self.take("-", "+")
        value = self.unary() if operator else self.power()
        self.depth -= 1
        return -value if operator == "-" else value

    def juxtaposed(self) -> str:
        """``()`` if a factor follows without a sign, next to a bracket."""
        before = self.tokens[self.position - 1]
        after = self.peek()
        if after == "(" or (before == ")" and (after[:1].isalnum() or after[:1] == ".")):
            return "()"
        return ""

    def postfix(self) -> Fraction:
        value = self.atom()
        operator = ""
        while following := self.take("!", "%"):
            if operator == following == "!":
                raise CalculatorError("double factorials are not supported; write factorial(factorial(n))")
            operator = following
            if operator == "!":
                value = Fraction(_factorial(*_integers("factorial", [value])))
            else:
                value = value / 100
        return value

    def power(self) -> Fraction:
        value = self.postfix()
        return _power(value, self.unary()) if self.take("^") else value

    def atom(self) -> Fraction:
        token = self.peek()
        if self.take("("):
            value = self.sum()
            self.expect(")")
            return value
        if token[:1].isdigit() or token[:1] == ".":
            self.position += 1
            if abs(int(token.partition("e")[2] or 0)) > MAX_BITS:
                raise CalculatorError("the result is too large")
            return _bounded(Fraction(token))
        if token in FUNCTIONS:
            self.position += 1
            return self.call(token)
        if not token:
            raise CalculatorError("the expression ends too early")
        hint = f"; functions: {', '.join(FUNCTIONS)}" if token.isalpha() else ""
        raise CalculatorError(f"unexpected {token[:12]!r}{hint}")

    def call(self, name: str) -> Fraction:
        self.expect("(")
        values = [self.sum()]
        while self.take(","):
            values.append(self.sum())
        self.expect(")")
        count, function = FUNCTIONS[name]
        if count is not None and len(values) != count:
            raise CalculatorError(f"{name} takes {count} argument, got {len(values)}")
        return _bounded(Fraction(function(values)))
