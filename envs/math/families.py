"""Six families of generated problems, each in four levels.

A family is a function ``(random generator, level) -> (text, steps)``. A step is a calculator expression; the steps are
a worked solution, and the value of the last one is the answer.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from fractions import Fraction

from gagpo.envs.math.stories import STORIES

Draft = tuple[str, list[str]]
LEVELS = (1, 2, 3, 4)

_ASK = ("What is {}?", "Compute {}.", "Find the value of {}.")


def _ask(rng: random.Random, expression: str) -> str:
    return rng.choice(_ASK).format(expression)


def _number(value: int) -> str:
    return str(value) if value >= 0 else f"({value})"


def _signed(value: int) -> str:
    """``value`` as the right-hand side of a sum: ``+ 3`` or ``- 3``."""
    return f"+ {value}" if value >= 0 else f"- {-value}"


def _combine(rng: random.Random, first: int, second: int, signs: str) -> tuple[str, int]:
    operator = rng.choice(signs)
    if operator == "/" and (second == 0 or first % second):
        operator = "+"
    if operator == "*" and abs(first * second) > 5000:
        operator = "-"
    value = {"+": first + second, "-": first - second, "*": first * second, "/": first // second if second else 0}[
        operator
    ]
    return operator, value


def arithmetic(rng: random.Random, level: int) -> Draft:
    """Sums, products and brackets of integers: two small operands at level 1, five nested ones at level 4."""
    if level == 1:
        a = rng.randint(0, 20)
        b = rng.randint(0, 20)
        expression = f"{a} + {b}" if rng.random() < 0.5 else f"{max(a, b)} - {min(a, b)}"
        return _ask(rng, expression), [expression]
    if level == 2:
        a = rng.randint(2, 12)
        b = rng.randint(2, 12)
        c = rng.randint(10, 99)
        d = rng.randint(10, 99)
        expression = rng.choice((f"{a} * {b}", f"{a * b} / {b}", f"{c} + {d}", f"{c} - {d}"))
        return _ask(rng, expression), [expression]
    steps: list[str] = []

    def tree(leaves: int) -> tuple[str, int]:
        if leaves == 1:
            value = rng.randint(1, 12 if level == 3 else 20)
            return str(value), value
        first_leaves = rng.randint(1, leaves - 1)
        first_text, first_value = tree(first_leaves)
        second_text, second_value = tree(leaves - first_leaves)
        operator, value = _combine(rng, first_value, second_value, "+-*/" if level == 4 else "+-*")
        steps.append(f"{_number(first_value)} {operator} {_number(second_value)}")
        first_text = f"({first_text})" if first_leaves > 1 else first_text
        second_text = f"({second_text})" if leaves - first_leaves > 1 else second_text
        return f"{first_text} {operator} {second_text}", value

    text, _ = tree(3 if level == 3 else 5)
    return _ask(rng, text), steps


def fractions(rng: random.Random, level: int) -> Draft:
    """Fractions: same denominator, different denominators, products and quotients, three terms with a bracket."""
    if level == 1:
        n = rng.randint(3, 15)
        a = rng.randint(1, n - 1)
        b = rng.randint(1, n - 1)
        operator = "+" if rng.random() < 0.5 else "-"
        top = a + b if operator == "+" else a - b
        return _ask(rng, f"{a}/{n} {operator} {b}/{n}"), [f"{a} {operator} {b}", f"{_number(top)} / {n}"]
    a, n = _proper(rng)
    b, m = _proper(rng)
    if level == 2:
        operator = rng.choice("+-")
        common = math.lcm(n, m)
        p = a * (common // n)
        q = b * (common // m)
        top = p + q if operator == "+" else p - q
        steps = [f"lcm({n}, {m})", f"{a} * {common // n}", f"{b} * {common // m}", f"{p} {operator} {q}"]
        return _ask(rng, f"{a}/{n} {operator} {b}/{m}"), [*steps, f"{_number(top)} / {common}"]
    if level == 3:
        if rng.random() < 0.5:
            text = f"({a}/{n}) * ({b}/{m})"
            steps = [f"{a} * {b}", f"{n} * {m}", f"{a * b} / {n * m}"]
        else:
            text = f"({a}/{n}) / ({b}/{m})"
            steps = [f"{a} * {m}", f"{n} * {b}", f"{a * m} / {n * b}"]
        return _ask(rng, text), steps
    c, k = _proper(rng)
    inner = rng.choice("+-")
    outer = rng.choice("*/")
    if inner == "+":
        value = Fraction(a, n) + Fraction(b, m)
    else:
        value = Fraction(a, n) - Fraction(b, m)
    text = f"({a}/{n} {inner} {b}/{m}) {outer} ({c}/{k})"
    return _ask(rng, text), [f"{a}/{n} {inner} {b}/{m}", f"({value}) {outer} ({c}/{k})"]


def _proper(rng: random.Random) -> tuple[int, int]:
    """Numerator and denominator of a proper fraction in lowest terms."""
    while True:
        bottom = rng.randint(2, 12)
        top = rng.randint(1, bottom - 1)
        if math.gcd(top, bottom) == 1:
            return top, bottom


def equations(rng: random.Random, level: int) -> Draft:
    """Linear equations in x: one step, two steps, x on both sides, and brackets with a rational solution."""
    x = rng.randint(-12, 12)
    a = rng.randint(2, 9)
    b = rng.choice([n for n in range(-20, 21) if n])
    if level == 1:
        return f"Solve for x: x {_signed(b)} = {x + b}.", [f"{x + b} {_signed(-b)}"]
    if level == 2:
        c = a * x + b
        return f"Solve for x: {a}x {_signed(b)} = {c}.", [f"{c} {_signed(-b)}", f"{_number(c - b)} / {a}"]
    if level == 3:
        c = rng.choice([n for n in range(1, 10) if n != a])
        d = (a - c) * x + b
        steps = [f"{a} - {c}", f"{d} {_signed(-b)}", f"{_number(d - b)} / {_number(a - c)}"]
        return f"Solve for x: {a}x {_signed(b)} = {'' if c == 1 else c}x {_signed(d)}.", steps
    d = rng.choice([n for n in range(2, 10) if n != a])
    c = rng.choice([n for n in range(-12, 13) if n])
    e = rng.choice([n for n in range(-9, 10) if n])
    constant_1 = a * b + c
    constant_2 = d * e
    steps = [
        f"{a} * {_number(b)} {_signed(c)}",
        f"{d} * {_number(e)}",
        f"{a} - {d}",
        f"{constant_2} {_signed(-constant_1)}",
    ]
    text = f"Solve for x: {a}(x {_signed(b)}) {_signed(c)} = {d}(x {_signed(e)})."
    return text, [*steps, f"{_number(constant_2 - constant_1)} / {_number(a - d)}"]


def modular(rng: random.Random, level: int) -> Draft:
    """Remainders, remainders of sums and products, of powers, and linear congruences with a prime modulus."""
    m = rng.randint(2, 12)
    if level == 1:
        a = rng.randint(m, 60)
        return f"What is the remainder when {a} is divided by {m}?", [f"{a} mod {m}"]
    a = rng.randint(2, 30)
    b = rng.randint(2, 30)
    if level == 2:
        operator = rng.choice("+*")
        value = a + b if operator == "+" else a * b
        text = f"What is the remainder when {a} {operator} {b} is divided by {m}?"
        return text, [f"{a} {operator} {b}", f"{value} mod {m}"]
    if level == 3:
        base = rng.randint(2, 12)
        exponent = rng.randint(3, 7)
        m = rng.randint(5, 23)
        text = f"What is the remainder when {base}^{exponent} is divided by {m}?"
        return text, [f"{base}^{exponent}", f"{base**exponent} mod {m}"]
    p = rng.choice((5, 7, 11, 13, 17, 19, 23))
    a = rng.randint(2, p - 1)
    b = rng.randint(1, p - 1)
    inverse = pow(a, -1, p)
    text = f"What is the smallest x >= 0 such that {a} * x leaves the remainder {b} when it is divided by {p}?"
    return text, [f"{a} * {inverse} mod {p}", f"{inverse} * {b}", f"{inverse * b} mod {p}"]


def sequences(rng: random.Random, level: int) -> Draft:
    """The next term: constant difference, constant ratio, growing differences, sums of the two before."""
    start = rng.randint(1, 20)
    if level == 1:
        d = rng.randint(1, 12)
        terms = [start + i * d for i in range(4)]
        text = f"The terms of a sequence grow by a fixed amount: {_join(terms)}. What is the next term?"
        return text, [f"{terms[-1]} - {terms[-2]}", f"{terms[-1]} + {d}"]
    if level == 2:
        q = rng.randint(2, 5)
        start = rng.randint(1, 9)
        terms = [start * q**i for i in range(4)]
        text = f"Each term of a sequence is a fixed multiple of the one before: {_join(terms)}. What is the next term?"
        return text, [f"{terms[-1]} / {terms[-2]}", f"{terms[-1]} * {q}"]
    if level == 3:
        d = rng.randint(1, 9)
        e = rng.randint(1, 6)
        terms = [start + i * d + e * i * (i - 1) // 2 for i in range(5)]
        last = terms[-1] - terms[-2]
        before = terms[-2] - terms[-3]
        text = f"The differences of a sequence grow by a fixed amount: {_join(terms)}. What is the next term?"
        steps = [f"{terms[-1]} - {terms[-2]}", f"{terms[-2]} - {terms[-3]}", f"{last} - {before}", f"{last} + {e}"]
        return text, [*steps, f"{terms[-1]} + {last + e}"]
    terms = [start, rng.randint(1, 20)]
    while len(terms) < 5:
        terms.append(terms[-1] + terms[-2])
    text = f"Each term of a sequence is the sum of the two before it: {_join(terms)}. What is the term after the next?"
    following = terms[-1] + terms[-2]
    return text, [f"{terms[-2]} + {terms[-1]}", f"{terms[-1]} + {following}"]


def _join(terms: list[int]) -> str:
    return ", ".join(map(str, terms))


def words(rng: random.Random, level: int) -> Draft:
    """Short stories: one step at level 1, three and more at level 4."""
    return rng.choice(STORIES[level])(rng)


FAMILIES: dict[str, Callable[[random.Random, int], Draft]] = {
    "arithmetic": arithmetic,
    "fractions": fractions,
    "equations": equations,
    "modular": modular,
    "words": words,
    "sequences": sequences,
}
