r"""Variables of a formula, as opposed to letters of commands, constants and words."""

from __future__ import annotations

import functools
import re

_GREEK = (
    "(?:var)?(?:epsilon|theta|rho|phi|sigma)|alpha|beta|gamma|delta|zeta|eta|iota|kappa|lambda|mu|nu|xi|tau|upsilon|chi"
    "|psi|omega|Gamma|Delta|Theta|Lambda|Xi|Sigma|Upsilon|Phi|Psi|Omega|ell"
)
_INDEX = r"(?:\s*_\s*(?:\{[^{}]*\}|\w))?'*"
VARIABLE = rf"(?:\\(?:{_GREEK})(?![a-zA-Z])|(?<![a-zA-Z\\])[a-zA-Z](?![a-zA-Z])){_INDEX}"
"""A single variable: one letter with index and primes."""

_WORDS = re.compile(r"\\(?:text\w*|operatorname\*?|mbox)\s*\{[^{}]*\}|\\(?:mathrm|mathbf|hat|vec)\s*\{([^{}]*)\}")
_LETTERS = re.compile(
    rf"(?P<greek>\\(?:{_GREEK})(?![a-zA-Z]))(?P<i>{_INDEX})|\\[a-zA-Z]+|(?P<latin>[a-zA-Z])(?P<j>{_INDEX})"
)
_BINDS = re.compile(
    r"\\(?:sum|prod|lim|max|min|i{0,3}int|oint)(?![a-zA-Z])(?:\s*(?:\\limits)?\s*_\s*(?:\{\s*([a-zA-Z])(?![a-zA-Z])|[^{]))?"
)
_DIFFERENTIAL = re.compile(r"(?<![a-zA-Z\\])d\s*([a-zA-Z])(?![a-zA-Z])|\\mathrm\s*\{\s*d\s*\}\s*([a-zA-Z])(?![a-zA-Z])")
_SET = re.compile(r"\\mathbb\s*\{?\s*([A-Z])\s*\}?")


@functools.lru_cache(maxsize=4096)
def variables(latex: str) -> frozenset[str]:
    r"""The variables of a formula in normalised LaTeX, with indices, without ``e`` and ``i``; ``x'`` is not ``x``.

    >>> sorted(variables(r"\frac{x_1 + \theta}{e^{i\pi}} \text{ cm}")), variables(r"\mathbb{R}")
    (['\\theta', 'x_1'], frozenset({'mathbb R'}))
    """
    names = {f"mathbb {name}" for name in _SET.findall(latex)}
    text = _WORDS.sub(
        lambda word: f" {word[1]} " if word[1] and len(word[1].strip()) == 1 else " ", _SET.sub(" ", latex)
    )
    for letter in _LETTERS.finditer(text):
        name = letter["greek"] or letter["latin"]
        if name is None or name in ("e", "i"):
            continue
        names.add(re.sub(r"[\s{}]", "", name + (letter["i"] or letter["j"] or "")))
    return frozenset(names)


def free_variables(latex: str) -> frozenset[str]:
    r"""The variables of a formula that no sum, product, limit or integral binds.

    >>> sorted(free_variables(r"\sum_{k=1}^n k")), sorted(free_variables(r"\int_0^x t^2 dt"))
    (['n'], ['x'])
    """
    bound_names = {name for name in _BINDS.findall(latex) if name}
    if "int" in latex:
        bound_names |= {"d", *(name for names in _DIFFERENTIAL.findall(latex) for name in names)}
    return variables(latex) - bound_names
