r"""Normalise the spelling of an answer.

:func:`latex` returns LaTeX for symbolic comparison; :func:`plain` also unwraps ``\text{...}`` and similar commands, for
reading numbers, units and words; :func:`squeeze` drops insignificant differences, so that equal formulas are usually
equal strings.
"""

from __future__ import annotations

import re

from gagpo.envs.math.verify.spelling import binomials, characters, plain_text
from gagpo.envs.math.verify.spelling.rewriting import rewrite, table

CURRENCY = "¤"
"""Replaces the dollar sign of an amount of money, to distinguish it from those around formulas."""

_DECORATIONS = re.compile(
    r"\\(?:hspace|vspace|color|tag|label)\*?\s*\{[^{}]*\}|\\textcolor\s*\{[^{}]*\}"
    r"|\\(?:tiny|small|normalsize|[lL]arge|LARGE|[hH]uge|checkmark|square|blacksquare|Box|qed|therefore|underline"
    r"|displaystyle|textstyle|limits|mathstrut|hfill)(?![a-zA-Z])"
)
_SPACING = re.compile(r"(?<!\\)\\(?:[,;:> /]|(?:quad|qquad|thinspace|medspace)(?![a-zA-Z]))|~")
_SIZING = re.compile(r"\\(?:left|right)\s*\.|\\(?:left|right|[bB]igg?[lrm]?)(?![a-zA-Z])\s*")
_BARE_FRACTION = re.compile(
    r"\\frac(?:(?:\s+([a-zA-Z])(?=[\s{])|\s*(\d)|\s*\{([^{}]*)\}))\s*(?:(\d|[a-zA-Z](?![a-zA-Z]))|\{([^{}]*)\})"
)
_BARE_ROOT = re.compile(r"\\sqrt\s*(\d|[a-zA-Z])(?![a-zA-Z])")
_BOX = re.compile(r"^\\(?:[bB]oxed|fbox|framebox|bbox)\s*\{(.*)\}$", re.DOTALL)
_WRAPPED = re.compile(
    r"\\(?:text(?:bf|it|rm|sf|tt|normal|up)?|math(?:rm|bf|it|sf|tt)|[mh]box|bf|rm|operatorname\*?|emph|boldsymbol)"
    r"\s*\{((?:[^{}]|\{[^{}]*\})*)\}"
)
_DEGREES = re.compile(r"\^\s*(?:\\circ(?![a-zA-Z])|\{\s*\\circ\s*\})|\\degree(?![a-zA-Z])")
_DOUBLED = re.compile(r"\\\\(?=[a-zA-Z]{2})")
"""The backslashes of a command that was escaped twice."""
_DELIMITERS = (
    ("$$", "$$"),
    (r"\$", r"\$"),
    ("$", "$"),
    (r"\(", r"\)"),
    (r"\[", r"\]"),
    ("**", "**"),
    ("`", "`"),
    ('"', '"'),
)
_ENDING = re.compile(r"(?:(?<!\\)\\[,;:! ]|[\s.,;])+$")
_SYNONYMS = {
    synonym: command
    for command, synonyms in {
        r"\le ": "leq leqslant leqq",
        r"\ge ": "geq geqslant geqq",
        r"\ne ": "neq",
        "<": "lt",
        ">": "gt",
        r"\{": "lbrace",
        r"\}": "rbrace",
        "[": "lbrack",
        "(": "langle lparen",
        ")": "rangle rparen",
        "]": "rbrack",
        ":": "colon",
        "|": "mid vert lvert rvert Vert lVert rVert",
        r"\land ": "wedge",
        r"\lor ": "vee",
        r"\setminus ": "backslash smallsetminus",
        r"\emptyset ": "varnothing",
        r"\implies ": "Rightarrow Longrightarrow iff Leftrightarrow Longleftrightarrow",
        r"\ldots ": "dots cdots dotsc dotsb",
        r"\log_{10}": "lg",
        r"\frac": "dfrac tfrac cfrac nicefrac sfrac flatfrac",
        r"\mathbb{R}": "R reals Reals",
        r"\mathbb{Z}": "Z",
        r"\mathbb{N}": "N",
        r"\mathbb{Q}": "Q",
        r"\degree ": "textdegree",
    }.items()
    for synonym in synonyms.split()
}
_SYNONYM = re.compile(rf"\\({'|'.join(sorted(_SYNONYMS, key=len, reverse=True))})(?![a-zA-Z])")
_DEGREE = r"(?:\^\s*\{?\s*\\circ(?![a-zA-Z])\s*\}?|\\degree(?![a-zA-Z])|°)"
_PRIME = r"(?:'|\^?\s*\{?\s*\\prime(?![a-zA-Z])\s*\}?|′)"
_REWRITINGS = table(
    (r"\\not\s*=", r"\\ne "),
    (r"(?<!\\)\\\|", "|"),
    (r"^(?:\s*\\\\(?![a-zA-Z]{2}))+|(?:\\\\\s*|\\newline(?![a-zA-Z]))+$", ""),
    (r"\\bm(?![a-zA-Z])", r"\\boldsymbol"),
    (r"\\(?:mathcal|mathrm|text)\s*(?:\{\s*O\s*\}|O(?![a-zA-Z]))\s*(?=\(|\\left)", "O"),
    (r"\\(?:text|mathrm|operatorname)\s*\{\s*mod\s*\}", r"\\bmod "),
    (r"\\(?:operatorname\s*\{\s*)?(arc)?tg(?![a-zA-Z])(?:\s*\})?", r"\\\1tan "),
    (r"\\(?:operatorname\s*\{\s*)?(arc)?co?tg(?![a-zA-Z])(?:\s*\})?", r"\\\1cot "),
    (r"\s*(?::=|\\coloneqq(?![a-zA-Z]))", " ="),
    (r"^\s*=", ""),
    (r"^\\text(?:bf)?\s*\{\s*(?:[Tt]he )?(?:[Ff]inal )?[Aa]nswer(?: is)?:?\s*\}\s*(?=\S)", ""),
    (r"\{([^{}]*)\\over(?![a-zA-Z])([^{}]*)\}", r"\\frac{\1}{\2}"),
    (r"\\(?:mathrm|text)(?:\s*\{\s*([ei])\s*\}|\s+([ei])(?![a-zA-Z]))|\\([ij])math(?![a-zA-Z])", r"\1\2\3"),
    (r"\\(?:operatorname\*?|mathrm|text)\s*\{\s*((?:arc)?(?:sin|cos|tan|cot|sec|csc)h?|ln|log|exp|gcd)\s*\}", r"\\\1 "),
    (r"\\(?:text|mathrm|mbox)\s*\{\s*(,?)\s*(and|or)\s*,?\s*\}", r"\1 \2 "),
    (r"\\(?:text|mathrm|mbox)\s*\{\s*([,;])\s*\}", r"\1 "),
    (r"\{([^{}]*)\\choose(?![a-zA-Z])([^{}]*)\}", r"\\binom{\1}{\2}"),
    (
        r"\\frac\s*\{\s*\\(?:text|mathrm)\{([^{}]*)\}\s*\}\s*\{\s*\\(?:text|mathrm)\{([^{}]*)\}(\^[23])?\s*\}",
        r"\\text{\1/\2\3}",
    ),
    (r"(?<![\\a-zA-Z^_}\]])\{(\d+)\}", r"\1"),
    (r"(?<=\d)\{(\\[dt]?frac\{\d+\}\{\d+\})\}", r"\1"),
    (r"(?<=\d)'(?=\d{3}(?!\d))", ""),
    (r"\\div(?![a-zA-Z])", "/"),
    (r"\\log\s*_\s*(?:e(?![a-zA-Z])|\{\s*e\s*\})", r"\\ln "),
    (r"\\(?:mathbb|Bbb)\s*\{?\s*([A-Z])(?![a-zA-Z])\s*\}?", r"\\mathbb{\1}"),
    (r"\\(?:hat|vec|mathbf|boldsymbol)\s*(?:\{\s*([ijk])\s*\}|([ijk])(?![a-zA-Z]))", r"\\mathbf{\1\2}"),
    # An ordinal, not 5 stone.
    (r"(\d)\s*\^\s*\{?\s*\\(?:text|mathrm)\s*\{\s*(?:st|nd|rd|th)\s*\}\s*\}?", r"\1"),
    (r"(\d)\s*\\(?:text|mathrm)\s*\{(?:(?<=1\\text\{)st|(?<=1\\mathrm\{)st|nd|rd|th)\s*\}", r"\1"),
    (r"(?<=1)st(?![a-zA-Z])|(?<=\d)(?:nd|rd|ths?)(?![a-zA-Z])", ""),
    (r"(\.\d+|[,+-]\s*)\.\.\.", r"\1\\ldots "),
    (rf"({_DEGREE})\s*(\d+)\s*{_PRIME}\s*(\d+(?:\.\d+)?)\s*(?:\"|{_PRIME}{{2}})", r"\1 \2 arcminutes \3 arcseconds"),
    (rf"({_DEGREE})\s*(\d+(?:\.\d+)?)\s*{_PRIME}", r"\1 \2 arcminutes"),
    (r"(?<=\d)\s*'\s*(\d+)\s*(?:\"|'')", r" feet \1 inches"),
    (r"^0x(\d+)$", r"\1_{16}"),
    (r"^0b([01]+)$", r"\1_{2}"),
    (r"^0o([0-7]+)$", r"\1_{8}"),
    (r"\\(?:bf|it|rm)(?![a-zA-Z])", ""),
)


def latex(answer: str) -> str:
    r"""``answer`` as normalised LaTeX, without delimiters around it.

    >>> latex(r"$\dfrac12$."), latex("½"), latex(r"\left( 1,\, 2 \right)")
    ('\\frac{1}{2}', '\\frac{1}{2}', '( 1, 2 )')
    """
    text = _decimal_point(characters.to_latex(answer)).replace("{,}", ",").replace(r"\!", "").strip()
    text = _DECORATIONS.sub(" ", text)
    text = rewrite(text, _REWRITINGS)
    if r"\begin" not in text:
        text = _DOUBLED.sub(r"\\", text)
    text = _strip_delimiters(text)
    text = re.sub(r"US\s*(?=\\?\$)", "", text).replace(r"\$", CURRENCY).replace(r"\%", "%").replace("{%}", "%")
    text = re.sub(r"\$(?=\s*-?[\d.])", CURRENCY, text).replace("$", "")
    text = _SIZING.sub("", _SPACING.sub(" ", text))
    text = _SYNONYM.sub(lambda m: _SYNONYMS[m[1]], text)
    text = _BARE_FRACTION.sub(lambda m: rf"\frac{{{m[1] or m[2] or m[3] or ''}}}{{{m[4] or m[5] or ''}}}", text)
    text = binomials.to_latex(text)
    text = plain_text.to_latex(_BARE_ROOT.sub(r"\\sqrt{\1}", text))
    # Of a chain of conclusions the last one is the answer.
    steps = [step for step in text.split(r"\implies") if step.strip()]
    return " ".join(steps[-1].split()) if steps else ""


_DECIMAL_COMMA = re.compile(
    r"(?<![\d.,}])(?P<whole>0|\d{1,3}(?:(?:\.|\\[,;: ]|[ ~])\d{3})+|\d+)\{,\}(?P<part>\d+)(?!\d|\{,\}|[.,]\d)", re.ASCII
)


def _decimal_point(text: str) -> str:
    r"""``text`` with the comma of ``3{,}5`` as a decimal point; that of ``1{,}234`` may separate thousands.

    >>> _decimal_point("3{,}5"), _decimal_point("1.234{,}5"), _decimal_point("1{,}234"), _decimal_point("0{,}125")
    ('3.5', '1234.5', '1{,}234', '0.125')
    """
    if "{,}" not in text:
        return text

    def rewritten(number: re.Match[str]) -> str:
        integer = number["whole"]
        fraction = number["part"]
        if len(fraction) == 3 and integer.isdigit() and integer != "0" and len(integer) <= 3:
            return number[0]
        return f"{re.sub(r'[^0-9]', '', integer)}.{fraction}"

    return _DECIMAL_COMMA.sub(rewritten, text)


def _strip_delimiters(text: str) -> str:
    """Strip punctuation at the end and delimiters around the whole answer, layer by layer."""
    for _ in range(8):
        before = text
        text = _ENDING.sub("", text).lstrip()
        for opening, closing in _DELIMITERS:
            inner = text[len(opening) : len(text) - len(closing)]
            around = len(text) > len(opening) + len(closing) and text.startswith(opening) and text.endswith(closing)
            # \(1\) \(2\) and $1$, $2$ are two formulas, not one in delimiters.
            if around and opening not in inner and not inner.endswith("\\"):
                text = inner.strip()
        box = _BOX.match(text)
        if box and _balanced(box[1]):
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
    r"""The output of :func:`latex` without text wrappers and with degree signs as words.

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
    r"""Whether the output of :func:`latex` is a single ``\text{...}``."""
    return _WRAPPED.fullmatch(text.strip()) is not None


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
    """The output of :func:`plain` for comparing words: lower case, without articles and outer punctuation.

    >>> words("The  Blue Car."), words("6:30p.m."), words("It is Monday")
    ('blue car', '6:30 pm', 'monday')
    """
    text = re.sub(r"(?<![a-z])([ap])\.?\s?m\b\.?", r" \1m", text.casefold())
    text = re.sub(r"^\s*(?:(?:it|this|the (?:answer|day|result|function)|[a-z]) is|it's|on)\s+(?!not\b)", "", text)
    text = text.strip(" .,;:!?'\"()").replace(" - ", ", ").replace("-", " ")
    return " ".join(word for word in text.split() if word not in ("the", "a", "an"))
