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
    wanted, given = (normalise.latex(answer) for answer in (gold, prediction))
    if _DROPPED.search(given) or unevaluated_operations(wanted, given) or not variables(given) <= variables(wanted):
        return False
    trees = [_parsed(text) for text in (wanted, given)]
    return None not in trees and _agree(*trees)


def _parsed(latex: str) -> Any:
    """The tree that the library reads from a formula, or None."""
    import sympy
    from math_verify import LatexExtractionConfig, parse

    found = parse(
        f"${latex}$", extraction_config=[LatexExtractionConfig()], fallback_mode="no_fallback", parsing_timeout=None
    )
    return found[0] if found and isinstance(found[0], sympy.Expr) else None


def _agree(wanted: Any, given: Any) -> bool:
    from math_verify import verify

    return unfinished(given) <= unfinished(wanted) and bool(verify([wanted], [given], timeout_seconds=None))
