r"""Equations and inequalities: their variable, and whether they are solved.

A relation is solved if a variable stands alone on one side: ``x > 3``, ``3 = x``, ``-2 < x < 5``. ``2x + 1 > 5`` is not
solved; it could be the question.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from gagpo.envs.math.calculator import CalculatorError, calculate
from gagpo.envs.math.verify import regions
from gagpo.envs.math.verify.answers import Answer, Number, Relation, Sequence
from gagpo.envs.math.verify.spelling import brackets, normalise
from gagpo.envs.math.verify.spelling.symbols import VARIABLE, free_variables, variables

_OPERATOR = re.compile(r"[<>=]|\\(?:le|ge|ne|in|notin|equiv)(?![a-zA-Z])")
SEPARATOR = re.compile(r"\s*[,;]\s*(?:(?:and|or)\s+)?|\s+(?:and|or)\s+|\s*\\(?:land|lor)(?![a-zA-Z])\s*")
"""Separators of list items and conditions."""
_VARIABLE = re.compile(VARIABLE)
_CONSTANTS = ("e", "i")
_VECTOR = r"\\(?:overline|widehat|vec|over(?:left)?(?:right)?arrow|mathbf|boldsymbol|bar|hat)\s*\{[^{}]*\}"
_NAMED = re.compile(
    # f(x + 1), P(A \cap B), E[X], (f \circ g)(x)
    r"(?:[fghFGHPEV](?:_\w|_\{[^{}]*\})?(?:'*|\^\s*\{\s*-1\s*\})|\(\s*f[^()]*g\s*\))\s*[(\[].*[)\]]"
    r"|[a-mo-wA-W](?:_\w|_\{[^{}]*\})?'*\([\w, ]{1,12}\)|[nxyz]'*\([a-zA-Z]\)"  # p(2), y(t), but not the product x(2)
    r"|(?:\\?[a-zA-Z]+(?:\s+|(?=\\)|(?=\()|$)){1,6}(?:\([\w, ]{1,12}\))?"  # total cost, m\angle A, \gcd(a, b), \sin x
    rf"|\[[A-Z]+\]|\|(?:[zw]|[^|=]*[A-Z][^|=]*)\||(?:\|\s*)?{_VECTOR}(?:\s*\\(?:cdot|times)\s*{_VECTOR})*(?:\s*\|)?"
    r"|\\frac\s*\{\s*(?:\\mathrm\{d\}|d)\s*[a-zA-Z]\s*\}\s*\{\s*(?:\\mathrm\{d\}|d)\s*[a-zA-Z]\s*\}"
    # [ABC], |z|, \overline{AB}, \vec{a} \cdot \vec{b}, \frac{dy}{dx}
    r"|n\([^()]*[A-Z][^()]*\)|\\#\s*[A-Z]|[a-zA-Z]\s*\^\s*\{?\s*(?:\*|\\ast|\\star)\s*\}?"  # n(A \cup B), \#A, x^*
)


class Statement(NamedTuple):
    """``name = left = ... = value``.

    name: empty for a description.
    lefts: the sides in between.
    contained: the variable lies in the value, as in ``x \\in [0, 1]``.
    """

    name: str
    lefts: list[str]
    value: str
    contained: bool


def statement(text: str) -> Statement | None:
    r"""The statement in ``text`` (normalised LaTeX), or None without an equation or for an unsolved one.

    >>> statement("3 = x"), statement("x = 3")[2], statement("2x + 1 = 5"), statement(r"\sqrt{16} = 4")[1:3]
    (Statement(name='x', lefts=[], value='3', contained=False), '3', None, (['\\sqrt{16}'], '4'))
    """
    sides, operators = brackets.split(text, _OPERATOR)
    if not operators or not all(sides) or not all(operator in ("=", r"\equiv", r"\in") for operator in operators):
        return None
    contained = operators[0] == r"\in"
    first, *lefts, last = sides
    if (contained and lefts) or any(brackets.split(side, SEPARATOR)[1] for side in sides[:-1]):
        return None
    name = name_of(first)
    if name is not None:
        return Statement(name, lefts, last, contained)
    if not contained and not lefts and variable(last):
        return Statement(variable(last), [], first, False)
    constant = not free_variables(" ".join(sides[:-1]))
    if constant:
        return Statement("", sides[:-1], last, contained)
    return None


def variable(text: str) -> str:
    """``text`` as a variable, in one spelling; empty if it is not one.

    >>> variable("x_{1}"), variable("2x"), variable("e")
    ('x_1', '', '')
    """
    match = _VARIABLE.fullmatch(text.strip())
    if match is None or match[0] in _CONSTANTS:
        return ""
    return re.sub(r"[\s{}]", "", match[0])


def name_of(side: str) -> str | None:
    r"""The name on one side of an equation: a variable or applied function; empty for a description, None for others.

    >>> name_of("x"), name_of("f(x)"), name_of(r"\text{Area}"), name_of("2x")
    ('x', 'f(x)', '', None)
    """
    plain = normalise.plain(side)
    if name := variable(plain):
        return name
    if not _NAMED.fullmatch(plain) or plain in _CONSTANTS or re.fullmatch(r"\\[a-zA-Z]+", plain):
        return None
    description = re.search(r"[a-zA-Z]{3}", plain) or len(plain) > 12 or "|" in plain
    return "" if description else "".join(plain.split())


def holds(lefts: list[str], value: Number) -> bool:
    """Whether the sides before a number equal it, as far as the calculator can tell."""
    for side in lefts:
        if name_of(side):
            continue  # x = y = 5, AB = CD = 5
        try:
            difference = calculate(_arithmetic(side)) - (value.value / 100 if value.percent else value.value)
            if difference % value.modulus if value.modulus else difference:
                return False
        except CalculatorError:
            # Accept what it cannot compute, such as roots and sums, but not lists or parts of them.
            if not re.search(r"\\[a-zA-Z]|[!|%^]", side) or "," in side.partition("(")[0]:
                return False
    return True


def _arithmetic(text: str) -> str:
    """LaTeX arithmetic in the calculator's grammar."""
    text = re.sub(r"\\frac\{([^{}]*)\}\{([^{}]*)\}", r"((\1)/(\2))", text)
    return re.sub(r"\\(?:times|cdot)(?![a-zA-Z])", "*", text).replace("{", "(").replace("}", ")")


def is_relation(text: str) -> bool:
    """Whether ``text`` contains an equation or inequality outside all brackets."""
    return bool(brackets.split(text, _OPERATOR)[1])


def solved(text: str, read: Callable[[str], Answer]) -> Sequence | Relation | None:
    r"""The region of a solved inequality, a :class:`Relation` for an unsolved one, None if ``text`` is neither.

    A variable bounded by coordinates (``y > 2x + 1``) is not an interval.

    read: reads the ends.
    """
    sides, operators = brackets.split(text, _OPERATOR)
    if not operators:
        return None
    region: Sequence | None = None
    subject_index, name = _subject(sides)
    ends = sides[:subject_index] + sides[subject_index + 1 :]
    if name and not any(name in variables(end) or variables(end) & {"x", "y", "z"} for end in ends):
        if len(sides) == 2:
            if subject_index and operators[0] in _MIRRORED:
                operator = _MIRRORED[operators[0]]
            else:
                operator = operators[0]
            if operator in (*_MIRRORED, regions.UNEQUAL):
                region = regions.half_line(operator, read(ends[0]), name)
        else:
            if operators[0] in (regions.GREATER, regions.GREATER_OR_EQUAL):  # from the lower end to the upper one
                ends = ends[::-1]
                operators = [_MIRRORED.get(sign, sign) for sign in operators[::-1]]
            if all(sign in _LOWER for sign in operators):
                opening = _LOWER[operators[0]]
                closing = _UPPER[operators[1]]
                region = regions.interval(read(ends[0]), read(ends[1]), opening, closing, name)
    return region or Relation(text)


_MIRRORED = {
    regions.LESS: regions.GREATER,
    regions.GREATER: regions.LESS,
    regions.LESS_OR_EQUAL: regions.GREATER_OR_EQUAL,
    regions.GREATER_OR_EQUAL: regions.LESS_OR_EQUAL,
}
_LOWER = {regions.LESS: "(", regions.LESS_OR_EQUAL: "["}
_UPPER = {regions.LESS: ")", regions.LESS_OR_EQUAL: "]"}


def _subject(sides: list[str]) -> tuple[int, str]:
    """The index of the side that is a variable, and that variable; empty if the relation is not solved.

    Of two variables it is x, y or z, else the later letter, so ``a > b`` and ``b < a`` are read alike.
    """
    names = [variable(side) for side in sides]
    if len(sides) == 3:
        return 1, names[1] if all(sides) else ""
    if len(sides) != 2 or not all(sides):
        return 0, ""
    subject_index = max((0, 1), key=lambda i: (names[i] != "", names[i][:1] in ("x", "y", "z"), names[i]))
    return subject_index, names[subject_index]
