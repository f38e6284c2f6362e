r"""Declarations after an answer that add nothing to it, and conditions in words.

``f(x) = 2x + 1 \text{ for all } x`` and ``f(x) = 2x + 1, x \in \mathbb{R}`` are ``f(x) = 2x + 1``. A free integer, as
in ``k\pi, k \in \mathbb{Z}``, is part of its answer (:mod:`gagpo.envs.math.verify.spelling.integers`).
"""

from __future__ import annotations

import re

from gagpo.envs.math.verify.spelling.symbols import VARIABLE, variables

_TEXT = r"\\(?:text|mathrm|mbox)\s*\{"
_SET = r"\\mathbb\{(?P<set>[RCQNZ])\}(?P<part>\s*(?:[\^_]\s*(?:\{[^{}]*\}|\\[a-z]+|[+*>]|\d))+)?"
_INTEGER = r"(?:(?:positive|non-?negative) )?integer|natural|whole|rational"
_KIND = rf"\b(?:all|any|every|each|(?P<some>some)|real|complex|(?P<integer>{_INTEGER})|constant|domain)s?\b"
_FILLER = r"\b(?:for|where|with|and|when|if|here|is|are|be|being|an?|the|of|in|arbitrary|numbers?|values?)\b"
_DECLARED = rf"{_KIND}|\\forall(?![a-zA-Z])|(?:\\in|\b(?:on|over)\s*\}})\s*{_SET}"
_CLAUSE = re.compile(rf"(?:{_TEXT}|[}}(),;]|\s|{_FILLER}|(?P<kind>{_DECLARED})|{VARIABLE})*")
_START = re.compile(rf"\s*(?:[,;(]|{_TEXT}|\\forall(?![a-zA-Z])|\b(?:for|where|with|all|any|on|over)\b)")
_NAME = re.compile(VARIABLE)
_NO_NAME = re.compile(rf"{_SET}|\b(?:is|are|be|being) an?\b")
_CONDITION = re.compile(
    rf"(?P<main>.*?[^\s,({{])\s*(?:,?\s*(?:\\(?:text|mathrm|mbox)\s*\{{\s*,?\s*(?:for|if|when|where|with)\s*\}}|\b(?:for|if|when|where)\b)\s*"
    rf"(?P<after>[^,()]+)|\(\s*(?:{_TEXT}\s*(?:for|if|when|where|with)\s*\}}\s*)?(?P<inside>[^()]+)\)\s*)",
    re.DOTALL,
)
_RELATION = re.compile(
    rf"[^=]*?(?<![a-zA-Z\\])(?:{VARIABLE})\s*(?:<|>|\\(?:le|ge|ne|in)(?![a-zA-Z]))|.*(?:<|\\le)\s*{VARIABLE}"
)
_FUNCTION_OF = re.compile(r"\s*[a-zA-Z]'*(?:_\w)?\s*\(([^()]*)\)\s*(?:=|\\equiv)|\s*([a-zA-Z])_\{?([a-z])\}?\s*=")
_VARYING = frozenset("xyztmnk")
_INDICES = frozenset("ijklmnpq")
"""Arguments that are integers anyway; for others the integers are only some of their values."""
_PLAIN_VARIABLES = ("x", "y", "z", "t", "u", "s", "r", "a", "b", "c", r"\theta", r"\alpha")


def stripped(text: str) -> str:
    r"""``text`` without vacuous declarations, and with conditions in words or brackets after a comma.

    >>> stripped(r"f(x)=2x+1 \text{ for all } x"), stripped(r"a_n=2n-1, n \in \mathbb{N}^*")
    ('f(x)=2x+1', 'a_n=2n-1')
    >>> stripped(r"y = x^2 (x > 0)"), stripped(r"2k\pi, k \in \mathbb{R}")
    ('y = x^2, x > 0', '2k\\pi, k \\in \\mathbb{R}')
    """
    if r"\begin" in text or not re.search(
        r"\\in(?![a-zA-Z])|\\forall|[<>]|\\(?:le|ge|ne|text)(?![a-zA-Z])|\b(?:for|where)\b", text
    ):
        return text
    for start in _START.finditer(text, 1):
        main = text[: start.start()].rstrip(" ,;")
        clause = _CLAUSE.fullmatch(text, start.start())
        if clause and clause["kind"] and all(main.count(a) == main.count(b) for a, b in ("{}", "()")):
            if _is_vacuous(main, clause):
                text = main
            break
    condition = _CONDITION.fullmatch(text)
    if condition is None:
        return text
    main = condition["main"]
    if not variables(main) or main.count("{") != main.count("}"):
        return text
    relation = (condition["after"] or condition["inside"]).strip()
    if _RELATION.match(relation):
        return f"{main.strip()}, {relation}"
    return text


def _arguments(main: str) -> set[str]:
    """The variables on which the function or sequence on the left side of ``main`` depends."""
    function = _FUNCTION_OF.match(main)
    if function:
        return set(re.findall(r"[a-zA-Z]", f"{function[1] or ''}{function[3] or ''}"))
    return set()


def _is_vacuous(main: str, clause: re.Match[str]) -> bool:
    """Whether the declaration ``clause`` adds nothing to ``main``."""
    names = {re.sub(r"[\s{}]", "", name[0]) for name in _NAME.finditer(_NO_NAME.sub(" ", clause[0]))}
    numbers = clause["set"] or ("Z" if clause["integer"] else "R")
    if re.search(r"[<>]|\\(?:le|ge|ne|in)(?![a-zA-Z])", main) or (clause["some"] and names & _VARYING):
        return False  # true of some arguments only
    names_in_use = names <= variables(main) | _arguments(main)
    if _FUNCTION_OF.match(main):
        is_part = clause["part"] and numbers in "RC"  # such as the positive numbers
        return names_in_use and not is_part and (numbers in "RC" or names <= _arguments(main) & _INDICES)
    return (
        numbers in "RC"
        and not clause["part"]
        and names_in_use
        and names <= {*_PLAIN_VARIABLES}
        and bool(variables(main))
    )
