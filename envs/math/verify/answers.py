r"""Types of answers: number, choice letter, words, sequence, matrix, relation, formula.

A solved inequality is read as an interval. Numbers, choices, words, and sequences and matrices of them are compared
exactly in this process; a :class:`Formula` or :class:`Relation` may need computer algebra.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

from gagpo.envs.math.verify.spelling import normalise
from gagpo.envs.math.verify.spelling.units import Unit


@dataclass(frozen=True)
class Number:
    """An integer, decimal, fraction, mixed number, or number in scientific notation.

    places: digits after the decimal point; None unless written as a decimal.
    significant: significant digits of a decimal.
    percent: followed by a percent sign.
    counted: followed by a noun that is not a unit, as in ``12 apples``.
    base: 2 in ``1011_2``.
    multiple: 10^6 in ``5 M``, where the unit may also be a multiple.
    modulus: 7 in ``3 \\pmod 7``.
    name: ``x`` in ``x = 3``.
    division: an integer written as a quotient, such as ``14/2``.
    clock: the time that the same spelling may mean (``14:05``).
    """

    value: Fraction
    places: int | None = None
    significant: int = 0
    percent: bool = False
    unit: Unit | None = None
    counted: bool = False
    base: int | None = None
    multiple: int = 1
    modulus: int | None = None
    name: str = ""
    division: bool = False
    clock: str = ""


@dataclass(frozen=True)
class Choice:
    """The letter of a multiple-choice answer.

    value: the value it stands for, if written after it.
    """

    letter: str
    value: Answer | None = None


@dataclass(frozen=True)
class Words:
    """An answer in words, as :func:`gagpo.envs.math.verify.spelling.normalise.words` spells it."""

    text: str


@dataclass(frozen=True)
class Sequence:
    r"""Several answers.

    An interval is a sequence of its two ends, a union (``\cup``) a sequence of intervals, a function by cases
    (``cases``) one of pairs of value and condition (``if``). Items with names, as in ``x = 1, y = 2``, are coordinates.

    opening, closing: the brackets as written; empty for a bare list.
    name: the variable of an interval or union.
    label: ``C`` in ``C(10, 3)``, a point or a binomial coefficient.
    """

    items: tuple[Answer, ...]
    opening: str = ""
    closing: str = ""
    name: str = ""
    label: str = field(default="", compare=False)

    @property
    def ordered(self) -> bool:
        return self.opening in ("(", "[", "if")

    @property
    def pointed(self) -> bool:
        """Written like a point or vector; so are open intervals."""
        return (self.opening, self.closing) == ("(", ")") and not self.name


@dataclass(frozen=True)
class Matrix:
    """Rows of entries."""

    rows: tuple[tuple[Answer, ...], ...]


@dataclass(frozen=True)
class Formula:
    """An expression in normalised LaTeX, without name and unit.

    name: ``y`` in ``y = ...``.
    rounded: the decimal after it, as in ``\\sqrt{13} \\approx 3.606``.
    """

    latex: str
    name: str = ""
    unit: Unit | None = None
    rounded: Number | None = None


@dataclass(frozen=True)
class Family:
    r"""Answers with a free integer, as in ``k\pi, k \in \mathbb{Z}``.

    written: the answer with the integer's own name.
    general: the answer with a name that all families share.
    """

    written: Answer
    general: Answer


@dataclass(frozen=True)
class Relation:
    """An equation or inequality that is not solved for a variable, such as the equation of a curve."""

    latex: str


Answer = Number | Choice | Words | Sequence | Matrix | Formula | Relation | Family

NOTHING = Sequence((), r"\{", r"\}")
"""The empty set, also for "no solution"."""
INFINITY = Formula(r"\infty")
MINUS_INFINITY = Formula(r"-\infty")


def canonical(answer: Answer) -> str:
    r"""One spelling for equal answers, for counting votes and comparing transcripts.

    >>> x, y = Number(Fraction(2, 4), name="x"), Number(Fraction(3), percent=True, name="y")
    >>> canonical(x), canonical(Sequence((y, x))), canonical(Formula("2 x + 1", name="y"))
    ('1/2', 'x=1/2,y=3%', 'y=2x+1')
    """
    match answer:
        case Number():
            base = f"_{answer.base}" if answer.base else ""
            return f"{answer.value}{base}{'%' if answer.percent else ''}"
        case Choice():
            return answer.letter
        case Words():
            return answer.text
        case Sequence():
            items = [
                (f"{item.name}=" if isinstance(item, Number) and item.name else "") + canonical(item)
                for item in answer.items
            ]
            return f"{answer.opening}{','.join(items if answer.ordered else sorted(items))}{answer.closing}"
        case Matrix():
            return f"[{';'.join(','.join(map(canonical, row)) for row in answer.rows)}]"
        case Formula():
            name = f"{answer.name}=" if answer.name else ""
            return name + normalise.squeeze(answer.latex)
        case Relation():
            return normalise.squeeze(answer.latex)
        case Family():
            return canonical(answer.general)


def to_latex(answer: Answer) -> str:
    """``answer`` as LaTeX for a symbolic comparison."""
    match answer:
        case Number():
            if answer.places and not answer.percent:
                return _as_decimal(answer.value, answer.places)
            value = answer.value / 100 if answer.percent else answer.value
            if answer.unit and answer.unit.dimension == "angle":  # formulas are in radians
                value *= answer.unit.size
                return rf"\frac{{{value.numerator} \pi}}{{{180 * value.denominator}}}"
            top = f"{value.numerator}"
            if value.denominator == 1:
                return top
            return rf"\frac{{{top}}}{{{value.denominator}}}"
        case Choice():
            return answer.letter
        case Words():
            return rf"\text{{{answer.text}}}"
        case Sequence():
            joint = r" \cup " if answer.opening == r"\cup" else ", "
            inside = joint.join(to_latex(item) for item in answer.items)
            if joint != ", ":
                return inside
            return f"{answer.opening}{inside}{answer.closing}"
        case Matrix():
            rows = r" \\ ".join(" & ".join(map(to_latex, row)) for row in answer.rows)
            return rf"\begin{{pmatrix}}{rows}\end{{pmatrix}}"
        case Formula():
            if answer.name:
                return f"{answer.name}={answer.latex}"
            return answer.latex
        case Relation():
            return answer.latex
        case Family():
            return to_latex(answer.written)


def _as_decimal(value: Fraction, places: int) -> str:
    digits = str(abs(int(value * 10**places))).rjust(places + 1, "0")
    return f"{'-' if value < 0 else ''}{digits[:-places]}.{digits[-places:]}"
