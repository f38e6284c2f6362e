r"""Functions by cases: rows of a value and its condition, in any order."""

from __future__ import annotations

import re
from collections.abc import Callable

from gagpo.envs.math.verify import regions, relations
from gagpo.envs.math.verify.answers import Answer, Formula, Number, Sequence, Words
from gagpo.envs.math.verify.spelling import normalise

_IF = re.compile(r",?\s*(?:\\(?:text\w*|mathrm|mbox)\s*\{\s*)?\b(?:if|when|for|where|otherwise|else)\b")
_LEADING = re.compile(r"^\W*(?:(?:if|when|for|where)\b\s*)?(?:[a-zA-Z] (?:is )?(?=[a-z]{2}))?", re.ASCII)
_OTHERWISE = re.compile(r"otherwise|else(?:where)?|(?:in )?(?:all|any|every) other\b.*")


def rows(body: str) -> list[tuple[str, str]] | None:
    r"""The values and conditions in the rows of an environment; None if a row has no condition.

    >>> rows(r"x, & \text{if } x > 0 \\ -x & \text{otherwise}"), rows(r"x + y &= 3 \\ x &= 1")
    ([('x', 'x > 0'), ('-x', 'otherwise')], None)
    """
    cases = []
    for row in filter(None, (row.strip(" ,;.&") for row in body.split(r"\\"))):
        value, mark, condition = row.partition("&")
        start = None if mark else _IF.search(row)
        if start:
            value = row[: start.start()]
            condition = row[start.start() :]
        condition = normalise.plain(condition.replace("&", " "))
        if relations.is_relation(condition[:4].lstrip("\\lgne")[:1]) or not value.strip(" ,;"):
            return None  # a system of equations, aligned at the sign
        condition = _LEADING.sub("", condition)
        if not relations.is_relation(condition) and not re.search("[a-z]{3}", condition):
            return None
        cases.append((value.strip(" ,;"), condition))
    return cases if len(cases) > 1 else None


def function(cases: list[tuple[str, str]], read: Callable[[str], Answer]) -> Sequence:
    """The function as a set of pairs; "otherwise" becomes the rest of the real line where that is known.

    read: reads a value or a condition.
    """
    pairs: list[tuple[Answer, Answer]]
    pairs = [(read(value), Words("otherwise") if _OTHERWISE.fullmatch(text) else read(text)) for value, text in cases]
    conditions = [region for _, condition in pairs if (region := _region(condition))]
    names = {region.name for region in conditions}
    if len(conditions) == len(pairs) - 1 and len(names) == 1:
        complement = regions.complement(regions.union(conditions, ""), names.pop())
        pairs = [
            (value, complement if complement and condition == Words("otherwise") else condition)
            for value, condition in pairs
        ]
    return Sequence(tuple(Sequence(pair, "if", "if") for pair in pairs), "cases", "cases")


def _region(condition: Answer) -> Sequence | None:
    if isinstance(condition, Number | Formula) and condition.name:
        point: Number | Formula
        if isinstance(condition, Number):
            point = Number(condition.value)
        else:
            point = Formula(condition.latex)
        return regions.interval(point, point, "[", "]", condition.name)
    if isinstance(condition, Sequence) and condition.name and regions.is_region(condition):
        return condition
    return None
