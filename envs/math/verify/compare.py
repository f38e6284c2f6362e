"""Whether two answers are the same, under a stated policy.

Numbers, choices, words and sequences of them are decided here, exactly. Formulas are left to ``symbolic``, a function
that the caller supplies: computer algebra in a verifier process, or one that says "not here" (:class:`NeedsAlgebra`).
Both callers run this same code, so that a verdict does not depend on where it was reached.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal, get_args

from gagpo.envs.errors import InvalidArgument
from gagpo.envs.math.verify import normalise
from gagpo.envs.math.verify.answers import (
    Answer,
    Choice,
    Formula,
    Number,
    Sequence,
    Words,
    canonical,
    thousands_as_list,
    to_latex,
)
from gagpo.envs.math.verify.unevaluated import left_to_do

SIGNIFICANT_DIGITS = 6
"""A decimal equals a value it is not exactly if it has this many significant digits and all of them are right."""

PercentPolicy = Literal["either", "value", "unit"]


@dataclass(frozen=True)
class Policy:
    """What counts as the same answer.

    percent: where only one side has a percent sign, ``value`` accepts 50 % for 0.5, ``unit`` for 50, and ``either``
    for both (but 0.5 % only for 0.005). unevaluated: accept what is still to be done: arithmetic (``3 + 4`` or
    ``14/2`` for 7), and integrals, sums, products, limits, derivatives and functions of constants that the gold answer
    does not hold itself; refused by default, because a question could then be handed back as its own answer.
    """

    percent: PercentPolicy = "either"
    unevaluated: bool = False

    def __post_init__(self) -> None:
        if self.percent not in get_args(PercentPolicy):
            raise InvalidArgument(
                f"no percent policy {self.percent!r}; choose from {', '.join(get_args(PercentPolicy))}"
            )


class NeedsAlgebra(Exception):
    """The comparison comes to a formula, which only a verifier process may look at."""


Symbolic = Callable[[str, str, bool], bool]
"""Whether gold answer and prediction are equal, as LaTeX; the flag says whether arithmetic may be left to do."""


def not_here(gold: str, prediction: str, unevaluated: bool) -> bool:
    """The ``symbolic`` of a process that has no computer algebra."""
    raise NeedsAlgebra


def same(gold: Answer, prediction: Answer, policy: Policy, symbolic: Symbolic) -> bool:
    """Whether ``prediction`` says what ``gold`` says. Not symmetric: the gold answer sets the form."""
    match gold, prediction:
        case (Number(), Number()):
            return same_numbers(gold, prediction, policy)
        case (Choice(), Choice()):
            return gold.letter == prediction.letter
        case (Choice(), Formula()):
            return gold.letter == prediction.latex.upper()
        case (Words(), _) | (_, Words()):
            return _same_words(gold, prediction)
        case (Sequence(), Sequence()):
            return _same_sequences(gold, prediction, policy, symbolic)
        case (Sequence(items=(item,)), _):
            return same(item, prediction, policy, symbolic)
        case (_, Sequence(items=(item,))):
            return same(gold, item, policy, symbolic)
        case (Sequence(), Number()):
            other = thousands_as_list(prediction)
            return other is not None and not gold.opening and same(gold, other, policy, symbolic)
        case (Number(), Sequence()):
            other = thousands_as_list(gold)
            return other is not None and not prediction.opening and same(other, prediction, policy, symbolic)
        case (Number(), Formula()):
            # A long decimal stands for a value that is exact as a formula only: 1.4142136 for a root of 2.
            rounded = gold.places is not None and gold.significant >= SIGNIFICANT_DIGITS
            return (policy.unevaluated or rounded) and _equal(gold, prediction, policy, symbolic)
        case (Formula(), Formula()) if gold.name and prediction.name and gold.name != prediction.name:
            return False
        case (Formula(), _) | (Sequence(), Formula()):
            return _same_formulas(gold, prediction, policy, symbolic)
    return False


def _equal(gold: Answer, prediction: Answer, policy: Policy, symbolic: Symbolic) -> bool:
    wanted, given = to_latex(gold), to_latex(prediction)
    if not policy.unevaluated:
        left = left_to_do(wanted, given)
        if left - {"root"} if isinstance(gold, Number) else left:  # a root is what a long decimal stands for
            return False
    return symbolic(wanted, given, policy.unevaluated)


def same_numbers(gold: Number, prediction: Number, policy: Policy) -> bool:
    if gold.name and prediction.name and gold.name != prediction.name:
        return False
    if prediction.division and not gold.division and not policy.unevaluated:
        return False
    if gold.base or prediction.base:
        bases = {number.base for number in (gold, prediction) if number.base}
        return len(bases) == 1 and gold.value == prediction.value
    if (gold.unit and prediction.percent) or (gold.percent and prediction.unit):
        return False
    if gold.unit and prediction.unit:
        if gold.unit.dimension != prediction.unit.dimension:
            return False
        return _close(gold, prediction, prediction.unit.size / gold.unit.size)
    if gold.percent == prediction.percent or policy.percent == "unit":
        return _close(gold, prediction)
    # Exactly one side has the sign; its value is a hundredth of what is written.
    if _close(gold, prediction, Fraction(1, 100) if prediction.percent else Fraction(100)):
        return True
    # 0.5 % for a gold answer of 0.5 is a mistake; 50 % for one of 50 answers a question for a percentage.
    asked_for = gold.percent or abs(prediction.value) > 1
    return policy.percent == "either" and asked_for and _close(gold, prediction)


def _close(gold: Number, prediction: Number, scale: Fraction = Fraction(1)) -> bool:
    """Equal once the prediction is multiplied by ``scale``, or equal as far as the shorter decimal goes."""
    if gold.value == prediction.value * scale:
        return True
    decimals = [
        (number, other)
        for number, other in ((gold, prediction.value * scale), (prediction, gold.value / scale))
        if number.places is not None
    ]
    if not decimals:
        return False
    shorter, exact = min(decimals, key=lambda pair: pair[0].significant)
    return shorter.significant >= SIGNIFICANT_DIGITS and agrees(shorter.value, shorter.places or 0, exact)


def agrees(decimal: Fraction, places: int, exact: Fraction) -> bool:
    """Whether ``decimal`` is ``exact`` rounded (half up or half to even) or cut off at ``places``."""
    scaled, shift = abs(exact) * 10**places, abs(decimal) * 10**places
    rounded = {math.floor(scaled), math.floor(scaled + Fraction(1, 2)), round(scaled)}
    return (decimal < 0) == (exact < 0) and shift in rounded


_RELATION = re.compile(r"[=<>]|\\(?:le|ge|lt|gt|ne|neq)(?![a-zA-Z])")
_PLAIN_REPLIES = ("yes", "no", "true", "false")


def _same_words(gold: Answer, prediction: Answer) -> bool:
    wanted, given = (
        side.text if isinstance(side, Words) else normalise.words(normalise.plain(to_latex(side)))
        for side in (gold, prediction)
    )
    if wanted in _PLAIN_REPLIES:
        given = given.partition(",")[0].strip()
    return wanted == given


def _same_formulas(gold: Answer, prediction: Answer, policy: Policy, symbolic: Symbolic) -> bool:
    if canonical(gold) == canonical(prediction):
        return True
    if isinstance(gold, Formula) and isinstance(prediction, Formula) and not (gold.name and prediction.name):
        # A name on one side is what the other side leaves out, unless it belongs to an equation.
        if not _RELATION.search(gold.latex + prediction.latex):
            gold, prediction = replace(gold, name=""), replace(prediction, name="")
        if canonical(gold) == canonical(prediction):
            return True
    return _equal(gold, prediction, policy, symbolic)


def _same_sequences(gold: Sequence, prediction: Sequence, policy: Policy, symbolic: Symbolic) -> bool:
    if len(gold.items) != len(prediction.items):
        return False
    openings = {gold.opening, prediction.opening}
    if r"\cup" in openings and not openings <= {r"\cup", ""}:
        return False
    if gold.ordered and prediction.opening:
        if (gold.opening, gold.closing) != (prediction.opening, prediction.closing):
            return False
    elif gold.ordered and (gold.opening, gold.closing) != ("(", ")"):
        return False  # an interval needs its brackets; a pair or a point may come without
    elif prediction.ordered and (prediction.opening, prediction.closing) != ("(", ")"):
        return False
    if gold.ordered or prediction.ordered:
        pairs = zip(gold.items, prediction.items, strict=True)
        return all(same(wanted, given, policy, symbolic) for wanted, given in pairs)
    remaining = list(prediction.items)
    for wanted in gold.items:
        # Equal spelling first: it spares a symbolic comparison with every other item.
        remaining.sort(key=lambda given: canonical(given) != canonical(wanted))
        for i, given in enumerate(remaining):
            if same(wanted, given, policy, symbolic):
                del remaining[i]
                break
        else:
            return False
    return True
