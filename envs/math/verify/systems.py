"""Several solutions of a system, each with the names of its unknowns: ``x = 1, y = 2 or x = 2, y = 1``."""

from __future__ import annotations

import itertools
import re

from gagpo.envs.math.verify import relations
from gagpo.envs.math.verify.spelling import brackets

_INDEX = re.compile(r"_\{?\w\}?$")
_ENVIRONMENT = re.compile(r"(?:\\\{\s*)?\\begin\s*\{(cases|aligned|array)\}(?:(?!\\begin).)*?\\end\s*\{\1\}", re.DOTALL)
_BETWEEN = re.compile(r"[\s,;]*(?:(?:and|or)|\\(?:lor|land)(?![a-zA-Z]))?[\s,;]*")


def solutions(text: str) -> list[str] | None:
    """The solutions in ``text``, each as its named values; None if it is not a list of several.

    >>> solutions("x = 1, y = 2 or x = 2, y = 1"), solutions("x = 1 or x = 2"), solutions("x = 1, y = 2")
    (['x = 1, y = 2', 'x = 2, y = 1'], None, None)
    """
    if text.count("=") < 4:
        return None
    items, joints = brackets.split(text, relations.SEPARATOR)
    names = [_name(item) for item in items]
    if not all(names):
        return None
    if len({*names}) == len(names):  # x_1, y_1 and x_2, y_2
        items = [_without_index(item) for item in items]
        names = [_INDEX.sub("", name) for name in names]
    size = len({*names})
    groups = [items[start : start + size] for start in range(0, len(items), size)]
    is_complete = all({*names[start : start + size]} == {*names} for start in range(0, len(items), size))
    if size < 2 or len(groups) < 2 or not is_complete or len(items) % size:
        return None
    if any(joint.endswith("or") for number, joint in enumerate(joints, 1) if number % size):
        return None  # "or" within a solution
    return [", ".join(group) for group in groups]


def environments(text: str) -> list[str]:
    """The systems in ``text`` that only separators join; empty if there are fewer than two."""
    matches = list(_ENVIRONMENT.finditer(text))
    between = [text[match.end() : next_match.start()] for match, next_match in itertools.pairwise(matches)]
    if len(matches) < 2 or text[: matches[0].start()].strip() or text[matches[-1].end() :].strip():
        return []
    if all(map(_BETWEEN.fullmatch, between)):
        return [match[0] for match in matches]
    return []


def _name(part: str) -> str:
    statement = relations.statement(part)
    return statement.name if statement is not None else ""


def _without_index(part: str) -> str:
    name, equals, value = part.partition("=")
    return f"{_INDEX.sub('', name.strip())} {equals}{value}"
