r"""Typed mathematics as LaTeX: ``2*sqrt(3)/pi``, ``x**2``, ``x >= 2``, ``(-inf, 1) U (3, inf)``."""

from __future__ import annotations

import re

from gagpo.envs.math.verify.spelling import brackets
from gagpo.envs.math.verify.spelling.rewriting import rewrite, table

_REWRITINGS = table(
    (r"\*\*", "^"),
    (r"<=", r"\\le "),
    (r">=", r"\\ge "),
    (r"(?<![\d)!])!=|=/=", r"\\ne "),  # after a digit it is a factorial: 5!=120
    (r"\+/-|^\+-", r"\\pm "),
    (r"(?<![\\a-zA-Z])(?:a|arc)(?=(?:sin|cos|tan)\s*[(^])", r"\\arc"),
    (r"(?<![\\a-zA-Z])((?:sin|cos|tan|cot|csc|sec)h?)(?=\s*[(^])", r"\\\1"),
    (r"(?<![\\a-zA-Z])(sin|cos|tan|ln|log|exp)(?=\s*[(^_]|\s+(?:[a-z](?![a-z])|[\d\\]))", r"\\\1"),
    (r"(?<![\\a-zA-Z])(pi|theta|alpha|beta|phi|lambda)(?![a-zA-Z])", r"\\\1 "),
    (r"(?<![\\a-zA-Z])[iI]nf(?:inity|ty)?(?![a-zA-Z])", r"\\infty "),
    (r"(?<![\\a-zA-Z])oo(?![a-zA-Z])", r"\\infty "),
    (r"(?<=\d)\s*root\s+(?=\d)", " sqrt "),
    (r"^<([^<>]*,[^<>]*)>$", r"(\1)"),
    (r"(?<=[)\]}])\s*U\s*(?=[(\[\\])|(?<![\\a-zA-Z])union(?![a-zA-Z])", r" \\cup "),
)
_BEFORE_BRACKET = re.compile(r"(?P<mark>\^|(?<![a-zA-Z])\\?(?P<name>sqrt|cbrt|abs))\s*\(")
_BARE_ROOT = re.compile(r"(?<![\\a-zA-Z])(sqrt|cbrt)\s*(\d+(?:\.\d+)?|[a-zA-Z](?![a-zA-Z]))")
_COMMANDS = {"sqrt": r"\sqrt", "cbrt": r"\sqrt[3]", "abs": ""}


def to_latex(text: str) -> str:
    r"""``text`` with typed operators and functions as LaTeX.

    >>> to_latex("2*sqrt(3)/pi"), to_latex("x**(1/2) >= 2"), to_latex("5!=120")
    ('2*\\sqrt{3}/\\pi ', 'x^{1/2} \\ge  2', '5!=120')
    """
    text = rewrite(text, _REWRITINGS)
    if r"\begin" not in text:
        text = re.sub(r"\s*\\?&\s*", " and ", text)
    text = _BARE_ROOT.sub(lambda root: f"{_COMMANDS[root[1]]}{{{root[2]}}}", text)
    position = 0
    while match := _BEFORE_BRACKET.search(text, position):
        # Replace the round brackets by braces.
        inner, end = brackets.inside(text, match.end() - 1)
        if not text.endswith(")", match.end(), end):
            break
        mark = _COMMANDS.get(match["name"], "^")
        inner = f"|{inner}|" if match["name"] == "abs" else f"{{{inner}}}"
        text = f"{text[: match.start()]}{mark}{inner}{text[end:]}"
        position = match.start() + len(mark) + 1
    return text
