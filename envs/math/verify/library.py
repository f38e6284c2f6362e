"""The reading of the math-verify library, for answers that the rules of this package cannot read.

Runs in verifier processes only. The library throws text, units and unfinished work away, so its verdict counts only if
it finds the answers equal and nothing of the prediction was dropped. Its parser of plain expressions, which calls
``eval``, is never used.
"""

from __future__ import annotations

import re
from typing import Any

from gagpo.envs.math.verify.spelling import normalise
from gagpo.envs.math.verify.spelling.symbols import variables
from gagpo.envs.math.verify.unevaluated import unevaluated_operations
from gagpo.envs.math.verify.unfinished import unfinished

_DROPPED = re.compile(
    r"\\(?:text|mathrm|mbox|operatorname|begin)|[,;=<>%¤$!|]|\\(?:le|ge|ne|in|approx|equiv|pm|cup)(?![a-zA-Z])"
)
"""Text, lists, relations and units: parts that the library may leave out or read otherwise."""


def equal(gold: str, prediction: str) -> bool:
    """Whether the library reads two equal formulas, all of the prediction, as finished as the gold answer."""
    gold_latex, prediction_latex = (normalise.latex(answer) for answer in (gold, prediction))
    if (
        _DROPPED.search(prediction_latex)
        or unevaluated_operations(gold_latex, prediction_latex)
        or not variables(prediction_latex) <= variables(gold_latex)
    ):
        return False
    trees = [_parsed(text) for text in (gold_latex, prediction_latex)]
    return None not in trees and _agree(*trees)


def _parsed(latex: str) -> Any:
    """The tree that the library reads from a formula, or None."""
    import sympy
    from math_verify import LatexExtractionConfig, parse

    trees = parse(
        f"${latex}$", extraction_config=[LatexExtractionConfig()], fallback_mode="no_fallback", parsing_timeout=None
    )
    if trees and isinstance(trees[0], sympy.Expr):
        return trees[0]
    return None


def _agree(gold: Any, prediction: Any) -> bool:
    from math_verify import verify

    return unfinished(prediction) <= unfinished(gold) and bool(verify([gold], [prediction], timeout_seconds=None))
