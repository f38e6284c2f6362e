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
    groups = _groups(items, joints)
    group_names = [[_name(item) for item in group] for group in groups]
    if len({*map(tuple, map(sorted, group_names))}) > 1:  # x_1, y_1 and x_2, y_2
        groups = [[_without_index(item) for item in group] for group in groups]
        group_names = [[_name(item) for item in group] for group in groups]
    unknowns = sorted(group_names[0])
    if (
        len(groups) < 2
        or len({*unknowns}) < max(2, len(unknowns))
        or any(sorted(row) != unknowns for row in group_names)
    ):
        return None
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


def _groups(parts: list[str], joints: list[str]) -> list[list[str]]:
    """The parts of each solution: separated by "or", else by semicolons, else where the first name comes again."""
    if any(_is_or(joint) for joint in joints):
        cuts = [_is_or(joint) for joint in joints]
    elif any(joint.startswith(";") for joint in joints) and not all(joint.startswith(";") for joint in joints):
        cuts = [joint.startswith(";") for joint in joints]
    else:
        cuts = [_name(item) == _name(parts[0]) for item in parts[1:]]
    groups = [[parts[0]]]
    for item, is_start in zip(parts[1:], cuts, strict=True):
        if is_start:
            groups.append([item])
        else:
            groups[-1].append(item)
    return groups


def _is_or(joint: str) -> bool:
    return joint.endswith("or")


def _name(part: str) -> str:
    statement = relations.statement(part)
    return statement.name if statement is not None else ""


def _without_index(part: str) -> str:
    name, equals, value = part.partition("=")
    return f"{_INDEX.sub('', name.strip())} {equals}{value}"
