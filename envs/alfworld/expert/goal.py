"""Reading a task text: the wanted object, the operation and the target.

ALFWorld's templates are parsed exactly; other sentences, as people write them, by the words that they contain.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gagpo.envs.alfworld.games.catalogue import ROOMS, USUAL_PLACES


@dataclass(frozen=True)
class HouseholdGoal:
    """Type names in lower case. operation: ``clean``, ``heat``, ``cool``, ``light`` (look under a lamp) or empty."""

    object_type: str
    target: str = ""
    operation: str = ""
    lamp: str = ""
    count: int = 1


_ADJECTIVES = {"clean": "clean", "hot": "heat", "cool": "cool", "cold": "cool"}
_ARTICLE = r"(?:an?|some|the|one)"
_TO = rf"(?:in|on) (?:{_ARTICLE} )?(?P<target>\w+)"
_TEMPLATES = (
    re.compile(
        rf"(?:look at|examine) (?:{_ARTICLE} )?(?P<object_type>\w+) "
        rf"(?:under|with|by|using) (?:{_ARTICLE} )?(?P<lamp>\w+)"
    ),
    re.compile(rf"put {_ARTICLE} (?P<adjective>clean|hot|cool|cold) (?P<object_type>\w+) {_TO}"),
    re.compile(rf"(?P<operation>clean|heat|cool) {_ARTICLE} (?P<object_type>\w+) and put it {_TO}"),
    re.compile(rf"put (?P<two>two) (?P<object_type>\w+) {_TO}"),
    re.compile(rf"find (?P<two>two) (?P<object_type>\w+) and put them {_TO}"),
    re.compile(rf"put {_ARTICLE} (?P<object_type>\w+) {_TO}"),
)

_OPERATION_WORDS = {
    "clean": r"clean\w*|wash\w*|rins\w*",
    "heat": r"heat\w*|hot|warm\w*|cook\w*|microwaved",
    "cool": r"cool\w*|cold|chill\w*|refrigerated",
}


def read_goal(text: str, receptacles: set[str]) -> HouseholdGoal | None:
    """The goal that ``text`` states, or None if it is not understood.

    receptacles: the receptacle types in the room, in lower case.

    >>> read_goal("put a hot mug in shelf.", {"shelf", "microwave"})
    HouseholdGoal(object_type='mug', target='shelf', operation='heat', lamp='', count=1)
    """
    plain = " ".join(re.findall(r"\w+", text.lower()))
    for template in _TEMPLATES:
        # A match without a known receptacle or lamp means something else.
        match = template.fullmatch(plain)
        if match:
            groups = match.groupdict()
            if groups.get("target") and groups["target"] not in receptacles:
                continue
            if groups.get("lamp") and "lamp" not in groups["lamp"]:
                continue
            operation = groups.get("operation") or _ADJECTIVES.get(groups.get("adjective") or "", "")
            if groups.get("lamp"):
                operation = "light"
            return HouseholdGoal(
                groups["object_type"],
                groups.get("target") or "",
                operation,
                groups.get("lamp") or "",
                2 if "two" in groups else 1,
            )
    return _by_words(plain, receptacles)


def _by_words(plain: str, receptacles: set[str]) -> HouseholdGoal | None:
    object_names = {type_name.lower(): _pattern(type_name) for type_name in USUAL_PLACES}
    lamps = [name for name in object_names if "lamp" in name]
    object_types = _mentions(plain, {name: pattern for name, pattern in object_names.items() if name not in lamps})
    if not object_types:
        return None
    lamp = _mentions(plain, {name: object_names[name] for name in lamps})
    if lamp or re.search(r"\b(?:lamp|light)\b", plain):
        return HouseholdGoal(object_types[0], operation="light", lamp=lamp[0] if lamp else "lamp")
    camel = {receptacle.lower(): receptacle for room in ROOMS.values() for receptacle in room.ranges}
    receptacle_names = {name: _pattern(camel.get(name, name)) for name in receptacles}
    # All patterns compete, so that "toilet paper" does not mention a toilet.
    targets = [name for name in _mentions(plain, object_names | receptacle_names) if name in receptacle_names]
    if not targets:
        return None
    operation = next((name for name, words in _OPERATION_WORDS.items() if re.search(rf"\b(?:{words})\b", plain)), "")
    count = 2 if re.search(r"\b(?:two|both|2|pair)\b", plain) else 1
    return HouseholdGoal(object_types[0], targets[-1], operation, count=count)


def _pattern(kind: str) -> str:
    """A pattern for a type name as people write it: ``CounterTop`` -> counter top, countertop, countertops."""
    tokens = [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", kind)]
    if tokens[-1] == "basin":
        tokens[-1] = "(?:basin)?"
    return r"\b" + r" ?".join(tokens) + r"(?:e?s)?\b"


def _mentions(plain: str, patterns: dict[str, str]) -> list[str]:
    """The names mentioned in ``plain``, in order; of overlapping mentions the longest counts."""
    spans = [(match.span(), name) for name, pattern in patterns.items() for match in re.finditer(pattern, plain)]
    mentions = [
        (start, name)
        for (start, end), name in spans
        if not any(a <= start and end <= b and b - a > end - start for (a, b), _ in spans)
    ]
    return [name for _, name in sorted(mentions)]
