r"""Declarations after an answer that add nothing to it, and conditions in words.

``f(x) = 2x + 1 \text{ for all } x`` and ``f(x) = 2x + 1, x \in \mathbb{R}`` are ``f(x) = 2x + 1``. A free integer, as
in ``k\pi, k \in \mathbb{Z}``, is part of its answer (:mod:`gagpo.envs.math.verify.spelling.integers`).
"""

from __future__ import annotations

import re

from gagpo.envs.math.verify.spelling.symbols import VARIABLE, variables

_TEXT = r"(?:\\(?:text|mathrm|mbox)\s*\{\s*)?"
_END = r"\s*\}?\s*"
_LINK = r"(?:(?:for|where|with|and|when|if|here)\b\s*)?"
_START = rf"(?:\s*[,;(]|\s|(?<=[\w}})])(?=\\(?:text|forall)))\s*\(?\s*{_TEXT}{_LINK}{_END}"
_KIND = (
    r"(?:(?:real|complex|rational|integer|natural|whole|positive integer|non-?negative integer|arbitrary|constant)s?)"
)
_NUMBERS = r"(?:\s*(?:numbers?|values?|constants?))?(?:\s*of)?"
_NAMES = rf"(?P<names>{VARIABLE}(?:\s*,\s*{VARIABLE})*)"
_SET = r"\\mathbb\{(?P<set>[RCQNZ])\}(?P<part>\s*(?:[\^_]\s*(?:\{[^{}]*\}|\\[a-z]+|[+*>]|\d))+)?"
_QUANTIFIED = re.compile(
    rf"{_START}{_TEXT}(?:(?P<quantifier>all|any|every|each|some)\b|\\forall(?![a-zA-Z]))\s*(?:{_KIND}\b{_NUMBERS})?{_END}{_NAMES}"
    rf"(?:\s*\\in\s*{_SET}|{_END}{_TEXT}(?:in|\\in)?\s*(?:the )?(?:reals?(?: numbers)?|domain))?{_END}[)}}]*$"
)
_DESCRIBED = re.compile(
    rf"{_START}{_NAMES}\s*"
    rf"(?:\\in\s*{_SET}|{_TEXT}(?:is|are|being|be)?\s*(?:an?|any)?\s*(?:arbitrary )?{_KIND}{_NUMBERS})"
    rf"{_END}[)}}]*$"
)
_NAMELESS = re.compile(
    rf"{_START}{_TEXT}"
    rf"(?:(?:all|every|any) {_KIND}\s*(?:numbers?|values?)?|(?:on|over){_END}\\mathbb\{{[RC]\}}){_END}[)}}]*$"
)
_CONDITION = re.compile(
    rf"(?P<main>.*?[^\s,({{])\s*(?:,?\s*(?:\\(?:text|mathrm|mbox)\s*\{{\s*,?\s*(?:for|if|when|where|with)\s*\}}|\b(?:for|if|when|where)\b)\s*"
    rf"(?P<after>[^,()]+)|\(\s*(?:{_TEXT}(?:for|if|when|where|with)\s*\}}\s*)?(?P<inside>[^()]+)\)\s*)",
    re.DOTALL,
)
_RELATION = re.compile(
    rf"[^=]*?(?<![a-zA-Z\\])(?:{VARIABLE})\s*(?:<|>|\\(?:le|ge|ne|in)(?![a-zA-Z]))|.*(?:<|\\le)\s*{VARIABLE}"
)
_FUNCTION_OF = re.compile(r"\s*[a-zA-Z]'*(?:_\w)?\s*\(([^()]*)\)\s*(?:=|\\equiv)|\s*([a-zA-Z])_\{?([a-z])\}?\s*=")
_VARYING = frozenset("xyztmnk")
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
    for _ in range(3):
        shorter = _without_declaration(text)
        if shorter == text:
            break
        text = shorter
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


def _without_declaration(text: str) -> str:
    for pattern in (_QUANTIFIED, _DESCRIBED, _NAMELESS):
        declaration = pattern.search(text)
        if declaration is None:
            continue
        main = text[: declaration.start()].rstrip(" ,;")
        groups = declaration.groupdict()
        names = {re.sub(r"[\s{}]", "", name) for name in (groups.get("names") or "").split(",")} - {""}
        if not main or main.count("{") != main.count("}") or (groups.get("quantifier") == "some" and names & _VARYING):
            continue  # within other text, or true of some arguments only
        if _is_vacuous(main, names, groups.get("set") or "R", groups.get("part") or ""):
            return main
    return text


def _arguments(main: str) -> set[str]:
    """The variables on which the function or sequence on the left side of ``main`` depends."""
    function = _FUNCTION_OF.match(main)
    if function:
        return set(re.findall(r"[a-zA-Z]", f"{function[1] or ''}{function[3] or ''}"))
    return set()


def _is_vacuous(main: str, names: set[str], numbers: str, part: str) -> bool:
    """Whether the declaration of ``names`` adds nothing to ``main``."""
    if re.search(r"[<>]|\\(?:le|ge|ne|in)(?![a-zA-Z])", main):
        return False
    names_in_use = names <= variables(main) | _arguments(main)
    if _FUNCTION_OF.match(main):
        is_part = part and numbers in "RQC"  # such as the positive numbers
        return names_in_use and not is_part and (numbers not in "NZ" or names <= _arguments(main))
    return numbers in "RC" and not part and names_in_use and names <= {*_PLAIN_VARIABLES} and bool(variables(main))
