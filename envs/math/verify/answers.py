r"""What an answer can be: a number, a choice letter, words, a sequence of answers, a matrix, a relation, or a formula.

A solved inequality is read as the interval that it describes, so intervals have one form. Numbers, choices, words, and
sequences and matrices of them can be compared exactly and at once; a :class:`Formula` or a :class:`Relation` may need
computer algebra.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from gagpo.envs.math.verify.spelling import normalise
from gagpo.envs.math.verify.spelling.units import Unit


@dataclass(frozen=True)
class Number:
    """A number written out: an integer, a decimal, a fraction, a mixed number, or in scientific notation.

    places: digits after the decimal point, None unless written as a decimal. significant: its significant digits.
    percent: a percent sign follows. unit: a known unit. base: of ``1011_2``. modulus: of ``3 \\pmod 7``. name: ``x`` in
    ``x = 3``. division: written as a quotient of two integers although its value is one. items: the list that the same
    spelling stands for as well (1 and 234 of ``1,234``).
    """

    value: Fraction
    places: int | None = None
    significant: int = 0
    percent: bool = False
    unit: Unit | None = None
    base: int | None = None
    modulus: int | None = None
    name: str = ""
    division: bool = False
    items: tuple[Fraction, ...] = ()


@dataclass(frozen=True)
class Choice:
    """The letter of a multiple-choice answer."""

    letter: str


@dataclass(frozen=True)
class Words:
    """An answer in words, in the spelling of :func:`gagpo.envs.math.verify.spelling.normalise.words`."""

    text: str


@dataclass(frozen=True)
class Sequence:
    r"""Several answers: ``opening`` and ``closing`` are the brackets as written, empty for a bare list.

    An interval is a sequence of its two ends, a union (``\cup``) one of intervals; ``name`` is the variable that lies
    in it. Items with names of their own, as in ``x = 1, y = 2``, are coordinates.
    """

    items: tuple[Answer, ...]
    opening: str = ""
    closing: str = ""
    name: str = ""

    @property
    def ordered(self) -> bool:
        return self.opening in ("(", "[")

    @property
    def pointed(self) -> bool:
        """Written as a point or a vector is, which an open interval is too."""
        return (self.opening, self.closing) == ("(", ")") and not self.name


@dataclass(frozen=True)
class Matrix:
    """Rows of entries."""

    rows: tuple[tuple[Answer, ...], ...]


@dataclass(frozen=True)
class Formula:
    """An expression, as tidy LaTeX; ``name`` is the ``y`` of ``y = ...`` and ``unit`` the unit, which it does not hold.

    rounded: the decimal that was written after it, as in ``\\sqrt{13} \\approx 3.606``.
    """

    latex: str
    name: str = ""
    unit: Unit | None = None
    rounded: Number | None = None


@dataclass(frozen=True)
class Relation:
    """An equation or inequality that is not solved for a variable: a question, or the equation of a curve."""

    latex: str


Answer = Number | Choice | Words | Sequence | Matrix | Formula | Relation

NOTHING = Sequence((), r"\{", r"\}")
"""The empty set, which "no solution" means too."""
INFINITY, MINUS_INFINITY = Formula(r"\infty"), Formula(r"-\infty")


def canonical(answer: Answer) -> str:
    r"""One spelling for answers that say the same: what votes are counted by and transcripts compared by.

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


def to_latex(answer: Answer) -> str:
    """``answer`` as LaTeX for a symbolic comparison."""
    match answer:
        case Number():
            if answer.places and not answer.percent:
                return _as_decimal(answer.value, answer.places)
            value = answer.value / 100 if answer.percent else answer.value
            if answer.unit and answer.unit.dimension == "angle":  # a formula it is compared with is in radians
                return rf"\frac{{{value.numerator} \pi}}{{{180 * value.denominator}}}"
            top = f"{value.numerator}"
            return top if value.denominator == 1 else rf"\frac{{{top}}}{{{value.denominator}}}"
        case Choice():
            return answer.letter
        case Words():
            return rf"\text{{{answer.text}}}"
        case Sequence():
            joint = r" \cup " if answer.opening == r"\cup" else ", "
            inside = joint.join(to_latex(item) for item in answer.items)
            return inside if joint != ", " else f"{answer.opening}{inside}{answer.closing}"
        case Matrix():
            rows = r" \\ ".join(" & ".join(map(to_latex, row)) for row in answer.rows)
            return rf"\begin{{pmatrix}}{rows}\end{{pmatrix}}"
        case Formula():
            return f"{answer.name}={answer.latex}" if answer.name else answer.latex
        case Relation():
            return answer.latex


def _as_decimal(value: Fraction, places: int) -> str:
    digits = str(abs(int(value * 10**places))).rjust(places + 1, "0")
    return f"{'-' if value < 0 else ''}{digits[:-places]}.{digits[-places:]}"


def as_list(answer: Number) -> Sequence | None:
    """``1,234`` read as the two numbers 1 and 234, ``3 and 1/2`` as 3 and 1/2: the other meaning the spelling has."""
    return Sequence(tuple(map(Number, answer.items))) if answer.items else None
