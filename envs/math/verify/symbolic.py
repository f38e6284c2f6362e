r"""Comparing two formulas with computer algebra (math-verify on SymPy), and putting right what it gets wrong.

Runs in verifier processes only: it can take arbitrarily long and arbitrarily much memory. Formulas are read by a LaTeX
grammar; the library's reader of plain expressions, which ends in Python's ``eval``, is never used.
"""

from __future__ import annotations

import functools
import logging
from fractions import Fraction
from typing import Any

from gagpo.envs.math.verify.answers import Number
from gagpo.envs.math.verify.compare import SIGNIFICANT_DIGITS, agrees
from gagpo.envs.math.verify.normalise import plain
from gagpo.envs.math.verify.numerals import read_number


class Unparsable(ValueError):
    """The grammar cannot read this formula."""


@functools.lru_cache(maxsize=4096)
def _parsed_gold(latex: str) -> Any:
    return _parse(latex)


def _parse(latex: str) -> Any:
    from math_verify import LatexExtractionConfig, parse

    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    config = LatexExtractionConfig(boxed_match_priority=-1)
    # Time is limited by this process's own timers; the library's would clash with them.
    found = parse(f"${latex}$", extraction_config=[config], fallback_mode="no_fallback", parsing_timeout=None)
    if not found:
        raise Unparsable(f"cannot read {latex[:60]!r} as a formula")
    return found[0]


def equal(gold: str, prediction: str) -> bool:
    """Whether two LaTeX formulas mean the same; :class:`Unparsable` when the prediction cannot be read."""
    from math_verify import verify

    wanted, given = _parsed_gold(gold), _parse(prediction)
    for decimal, value in ((prediction, wanted), (gold, given)):
        number = read_number(plain(decimal))
        if number is not None and number.places is not None:
            return _decimal_of(number, value)
    return bool(verify([wanted], [given], timeout_seconds=None, allow_set_relation_comp=True))


def _decimal_of(number: Number, value: Any) -> bool:
    """The rule for decimals of :mod:`gagpo.envs.math.verify.compare`, for a value that only computer algebra knows."""
    if getattr(value, "free_symbols", True):
        return False
    try:
        digits = value.evalf(40)
        exact = Fraction(str(digits))
    except (AttributeError, TypeError, ValueError, ZeroDivisionError):
        return False
    return number.significant >= SIGNIFICANT_DIGITS and agrees(number.value, number.places or 0, exact)
