r"""What an answer can be: a number, a choice letter, words, a sequence of answers, or a formula.

Everything but a formula can be compared exactly and at once; only a :class:`Formula` ever needs computer algebra.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from gagpo.envs.math.verify import normalise
from gagpo.envs.math.verify.units import Unit


@dataclass(frozen=True)
class Number:
    """A number written out: an integer, a decimal, a fraction, a mixed number, or in scientific notation.

    places: digits after the decimal point, None unless written as a decimal. significant: its significant digits.
    percent: a percent sign follows. unit: a known unit. base: of ``1011_2``. name: ``x`` in ``x = 3``.
    division: written as a quotient of two integers although its value is one. grouped: written with commas.
    """

    value: Fraction
    places: int | None = None
    significant: int = 0
    percent: bool = False
    unit: Unit | None = None
    base: int | None = None
    name: str = ""
    division: bool = False
    grouped: bool = False


@dataclass(frozen=True)
class Choice:
    """The letter of a multiple-choice answer."""

    letter: str


@dataclass(frozen=True)
class Words:
    """An answer in words, in the spelling of :func:`gagpo.envs.math.verify.normalise.words`."""

    text: str


@dataclass(frozen=True)
class Sequence:
    """Several answers: ``opening`` and ``closing`` are the brackets as written, empty for a bare list."""

    items: tuple[Answer, ...]
    opening: str = ""
    closing: str = ""

    @property
    def ordered(self) -> bool:
        return self.opening in ("(", "[")


@dataclass(frozen=True)
class Formula:
    """Anything else, as tidy LaTeX; ``name`` is the ``y`` of ``y = ...``, which ``latex`` no longer holds."""

    latex: str
    name: str = ""


Answer = Number | Choice | Words | Sequence | Formula


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
        case Formula():
            name = f"{answer.name}=" if answer.name else ""
            return name + normalise.squeeze(answer.latex)


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
        case Formula():
            return f"{answer.name}={answer.latex}" if answer.name else answer.latex


def _as_decimal(value: Fraction, places: int) -> str:
    digits = str(abs(int(value * 10**places))).rjust(places + 1, "0")
    return f"{'-' if value < 0 else ''}{digits[:-places]}.{digits[-places:]}"


def thousands_as_list(answer: Number) -> Sequence | None:
    """``1,234`` read as the two numbers 1 and 234: the other meaning that spelling has."""
    if answer.places is not None or answer.value.denominator != 1 or not answer.grouped:
        return None
    digits = str(abs(int(answer.value)))
    first = len(digits) % 3 or 3
    groups = [digits[:first], *(digits[i : i + 3] for i in range(first, len(digits), 3))]
    sign = -1 if answer.value < 0 else 1
    return Sequence(tuple(Number(Fraction(int(group) * (sign if i == 0 else 1))) for i, group in enumerate(groups)))
