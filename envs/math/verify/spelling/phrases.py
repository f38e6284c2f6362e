r"""English phrases as LaTeX: ``no solution``, ``all real numbers except 2``, ``x is at least 3``."""

from __future__ import annotations

import re

from gagpo.envs.math.verify.spelling.rewriting import rewrite, table

_SIGNED = {
    "": r"\mathbb{R}",
    "positive": r"(0, \infty)",
    "negative": r"(-\infty, 0)",
    "nonnegative": r"[0, \infty)",
    "non-negative": r"[0, \infty)",
    "nonzero": r"\mathbb{R} \setminus \{0\}",
    "non-zero": r"\mathbb{R} \setminus \{0\}",
}
_NOTHING = re.compile(
    r"(?:(?:(?:the|this) \w+ )?(?:has|have) |there (?:is|are|exists?) )?(?:no(?: (?:real|such|valid|possible))?|zero) "
    r"(?:solutions?|roots?|values?(?: of \w)?)(?: exists?)?|(?:the )?(?:empty|null) set|none|no such \w"
)
_ALL_REALS = re.compile(
    r"(?:\w (?:is|can be|may be|\\in|=) )?(?:for )?(?:the set of )?(?:(?:all|any|every|the) )?"
    r"(?P<sign>(?:(?:positive|negative|non-?negative|non-?zero) )?)real(?:s| numbers?| values?| \w)?(?: of \w)?"
    r"(?: (?:except|besides|other than)(?: for)? (?:\w = )?(?P<points>[^a-z]*(?:(?:and|or) [^a-z]*)?))?"
)
_SENTENCES = table(
    (r"^(?:so|hence|thus|therefore),?\s+", ""),
    (r"^[a-z]{3,30}(?: [a-z]{2,30}){0,2}:\s+(?=[-\d\\(])", ""),
    (r"^(?:the )?(?:solutions?|roots?|zeros?)(?: set)? (?:is|are):?\s+", ""),
    (r"^(?:either|both|exactly|at|a total of|(?:the )?points?)\s+(?=[-\d\\(])", ""),
    (r"^(?:the )?(?:(?:half-)?open |closed )?interval\s+(?=[(\[])", ""),
    (r"^(?:for )?all real (?:numbers |values )?(?=\w\s*(?:[<>]|\\(?:le|ge|ne)\b))", ""),
    (r"^all (?:real )?numbers (?:\w )?(?:greater|more|larger) than ([-\d./]+)$", r"(\1, \\infty)"),
    (r"^all (?:real )?numbers (?:\w )?(?:less|smaller) than ([-\d./]+)$", r"(-\\infty, \1)"),
    (r"^(?:there are )?infinite(?:ly many)?(?: solutions?)?$", r"\\infty"),
    (r"(?<=^\w )is positive$", "> 0"),
    (r"(?<=^\w )is negative$", "< 0"),
    (r"(?<=^\w )is non-?negative$", r"\\ge 0"),
    (r"^the (?:value|values) of (\w) (?:is|are)\s+", r"\1 = "),
    (r"(?<!\w)is (?:greater than or equal to|at least|no less than|not less than)\s+", r"\\ge "),
    (r"(?<!\w)is (?:less than or equal to|at most|no more than|not more than)\s+", r"\\le "),
    (r"(?<=\b\w )(?:is )?(?:strictly )?(?:greater|more|larger) than\s+", "> "),
    (r"(?<=\b\w )(?:is )?(?:strictly )?(?:less|smaller) than\s+", "< "),
    (r"(?<!\w)(?:is not equal to|does not equal|is not|cannot be|cannot equal)\s+(?=[-\d\\])", r"\\ne "),
    (r"(?<!\w)(?:is equal to|equals|is)\s+(?=[-\d\\])", "= "),
    (r"^(\d+) to (\d+)$", r"\1:\2"),
    (r"^(\d+) (?:in|out of|chances? in) (\d+)$", r"\\frac{\1}{\2}"),
    (r"^positive (?=\\infty)|(?<= )positive (?=\\infty)", ""),
    (r"^(?:negative|minus) (?=\\infty)", "-"),
    (r"^(?:DNE|(?:is )?undefined)$", "does not exist"),
    flags=re.IGNORECASE,
)


def to_latex(plain: str) -> str:
    r"""An answer without text wrappers, with known English phrases as LaTeX.

    >>> to_latex("No solutions"), to_latex("all real numbers except 2"), to_latex("x is at least 3")
    ('\\emptyset', '\\mathbb{R} \\setminus \\{2\\}', 'x \\ge 3')
    """
    lower = plain.lower()
    if _NOTHING.fullmatch(lower):
        return r"\emptyset"
    if reals := _ALL_REALS.fullmatch(lower):
        line = _SIGNED[reals["sign"].strip()]
        points = re.sub(r"\s*,?\s*\b(?:and|or)\b\s*", ", ", reals["points"] or "").strip()
        return rf"{line} \setminus \{{{points}\}}" if points else line
    return rewrite(plain, _SENTENCES)
