r"""Bringing an answer, as people and models write it, into one spelling.

:func:`latex` keeps the answer LaTeX (what a symbolic comparison reads); :func:`plain` also unwraps ``\text{...}`` and
its kin (what numbers, units and words are read from); :func:`squeeze` drops every difference that never matters
between two formulas, so that equal ones are usually equal strings.
"""

from __future__ import annotations

import re

_CHARACTERS = str.maketrans(
    {
        "−": "-",
        "–": "-",
        "—": "-",
        "×": r"\times ",
        "·": r"\cdot ",
        "⋅": r"\cdot ",
        "÷": "/",
        "π": r"\pi ",
        "∞": r"\infty ",
        "≤": r"\le ",
        "≥": r"\ge ",
        "≈": r"\approx ",
        "±": r"\pm ",
        "∪": r"\cup ",
        "∈": r"\in ",
        "°": r"^{\circ}",
        "½": r"\frac{1}{2}",
        "⅓": r"\frac{1}{3}",
        "⅔": r"\frac{2}{3}",
        "¼": r"\frac{1}{4}",
        "¾": r"\frac{3}{4}",
        "²": "^{2}",
        "³": "^{3}",
        "％": "%",
        "\u00a0": " ",
        "\u2009": " ",
        "\u202f": " ",
        "“": '"',
        "”": '"',
        "’": "'",
        **{chr(0xFF10 + digit): str(digit) for digit in range(10)},
    }
)
CURRENCY = "¤"
"""Stands for the dollar sign of an amount of money, once the dollar signs around formulas are gone."""

_SPACING = re.compile(
    r"(?<!\\)\\(?:[,;:> ]|(?:quad|qquad|thinspace|medspace|displaystyle|textstyle|limits|hfill)(?![a-zA-Z]))|~"
)
_SIZING = re.compile(r"\\(?:left|right)\s*\.|\\(?:left|right|[bB]igg?[lrm]?)(?![a-zA-Z])\s*")
_FRACTION = re.compile(r"\\[dtc]frac(?![a-zA-Z])")
_BARE_FRACTION = re.compile(r"\\frac\s*(?:(\d)|\{([^{}]*)\})\s*(?:(\d)|\{([^{}]*)\})")
_BARE_ROOT = re.compile(r"\\sqrt\s*(\d|[a-zA-Z])(?![a-zA-Z])")
_ROOT = re.compile(r"√\s*(?:\(([^()]*)\)|(\d+(?:\.\d+)?|[a-zA-Z]))")
_BOX = re.compile(r"^\\(?:boxed|fbox)\s*\{(.*)\}$", re.DOTALL)
_WRAPPED = re.compile(
    r"\\(?:text(?:bf|it|rm|sf|tt|normal|up)?|mathrm|mathbf|mathit|mathsf|mathtt|mbox|hbox|bf|rm|operatorname\*?|emph|mathbb)"
    r"\s*\{([^{}]*)\}"
)
_DEGREES = re.compile(r"\^\s*(?:\\circ(?![a-zA-Z])|\{\s*\\circ\s*\})|\\degree(?![a-zA-Z])")
_SYNONYMS = {"leq": r"\le", "leqslant": r"\le", "geq": r"\ge", "geqslant": r"\ge", "varnothing": r"\emptyset"}
_SYNONYM = re.compile(rf"\\({'|'.join(_SYNONYMS)})(?![a-zA-Z])")
_DELIMITERS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("**", "**"), ("`", "`"), ('"', '"'))
_SAME_WORDS = {"no solutions": "no solution", "no real solutions": "no real solution"}
_ENDINGS = " \t\n.,;"


def latex(answer: str) -> str:
    r"""``answer`` as tidy LaTeX, without the delimiters around it.

    >>> latex(r"$\dfrac12$."), latex("½"), latex(r"\left( 1,\, 2 \right)")
    ('\\frac{1}{2}', '\\frac{1}{2}', '( 1, 2 )')
    """
    text = answer.translate(_CHARACTERS).replace("{,}", ",").replace(r"\!", "").strip()
    text = _strip_delimiters(text)
    text = text.replace(r"\$", CURRENCY).replace(r"\%", "%").replace("{%}", "%")
    text = re.sub(r"\$(?=\s*-?[\d.])", CURRENCY, text).replace("$", "")
    text = _SPACING.sub(" ", text)
    text = _SIZING.sub("", text)
    text = _FRACTION.sub(r"\\frac", text)
    text = _BARE_FRACTION.sub(lambda m: rf"\frac{{{m[1] or m[2] or ''}}}{{{m[3] or m[4] or ''}}}", text)
    text = _ROOT.sub(lambda m: rf"\sqrt{{{m[1] or m[2]}}}", text)
    text = _BARE_ROOT.sub(r"\\sqrt{\1}", text)
    text = _SYNONYM.sub(lambda m: _SYNONYMS[m[1]], text)
    return " ".join(text.split())


def _strip_delimiters(text: str) -> str:
    """Take away punctuation at the end and what stands around the whole answer, layer by layer."""
    for _ in range(8):
        before = text
        text = text.rstrip(_ENDINGS) if not text.endswith((r"\,", r"\;")) else text[:-2].rstrip()
        text = text.lstrip()
        for opening, closing in _DELIMITERS:
            inner = text[len(opening) : len(text) - len(closing)]
            around = len(text) > len(opening) + len(closing) and text.startswith(opening) and text.endswith(closing)
            # \(1\) \(2\) and $1$, $2$ are two formulas, which the delimiters do not stand around.
            if around and opening not in inner and not inner.endswith("\\"):
                text = inner.strip()
        if (box := _BOX.match(text)) and _balanced(box[1]):
            text = box[1].strip()
        if text == before:
            break
    return text


def _balanced(text: str) -> bool:
    depth = 0
    for character in text:
        depth += (character == "{") - (character == "}")
        if depth < 0:
            return False
    return depth == 0


def plain(text: str) -> str:
    r"""The output of :func:`latex` with text wrappers and degree signs turned into words.

    >>> plain(r"5\text{ cm}"), plain(r"90^\circ")
    ('5 cm', '90 degrees')
    """
    for _ in range(4):
        unwrapped = _WRAPPED.sub(r" \1 ", text)
        if unwrapped == text:
            break
        text = unwrapped
    return " ".join(_DEGREES.sub(" degrees ", text).split()).rstrip(" .,;").lstrip(" ,;")


def is_text(text: str) -> bool:
    r"""Whether the output of :func:`latex` is one ``\text{...}`` and nothing else."""
    match = _WRAPPED.fullmatch(text.strip())
    return match is not None and re.search("[a-zA-Z]", match[1]) is not None


def squeeze(text: str) -> str:
    r"""The output of :func:`latex` without spaces, multiplication signs and needless braces.

    >>> squeeze(r"2 \cdot x^{3}") == squeeze("2x^3")
    True
    """
    text = re.sub(r"\\(?:cdot|times|ast)(?![a-zA-Z])\s*(?=[a-zA-Z\\(])|\*(?=\s*[a-zA-Z(])", " ", text)
    text = re.sub(r"([\^_])\s*\{\s*(\w)\s*\}", r"\1\2", text)
    # A space that ends a command's name is kept: \pi x is not \pix.
    text = re.sub(r"(\\[a-zA-Z]+)\s+(?=[a-zA-Z])", "\\1\0", text)
    return re.sub(r"\s+", "", text).replace("\0", " ")


def words(text: str) -> str:
    """The output of :func:`plain` for comparing words: lower case, no articles, no punctuation at either end.

    >>> words("The  Blue Car."), words("6:30 p.m.")
    ('blue car', '6:30 pm')
    """
    text = re.sub(r"\b([ap])\.\s?m\b\.?", r"\1m", text.casefold())
    text = text.strip(" .,;:!?'\"()").replace("-", " ")
    text = " ".join(word for word in text.split() if word not in ("the", "a", "an"))
    return _SAME_WORDS.get(text, text)
