"""The state of a room, as far as the texts of an episode show it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gagpo.envs.alfworld.engine import NOTHING_HAPPENS

_ON = re.compile(r"On the ([a-z]+ \d+), you see ([^.]*)\.")
_OPEN = re.compile(r"The ([a-z]+ \d+) is open\. In it, you see ([^.]*)\.")
_CLOSED = re.compile(r"The ([a-z]+ \d+) is closed\.")
_FACING = re.compile(r"You are facing the ([^.]*)\.")
_CARRYING = re.compile(r"You are carrying: ([^.]*)\.")
_NAME = re.compile(r"[a-z]+ \d+")
_EFFECTS = (
    ("go", re.compile(r"go to ([a-z]+ \d+)")),
    ("take", re.compile(r"take ([a-z]+ \d+) from ([a-z]+ \d+)")),
    ("put", re.compile(r"(?:move|put) ([a-z]+ \d+) (?:to|in/on|in|on) ([a-z]+ \d+)")),
    ("close", re.compile(r"close ([a-z]+ \d+)")),
    ("operate", re.compile(r"(clean|heat|cool) ([a-z]+ \d+) with [a-z]+ \d+")),
)


def kind_of(name: str) -> str:
    """``mug 2`` -> ``mug``."""
    return name.split(" ", 1)[0]


class Memory:
    """Tracks a room from actions and the texts that answer them.

    receptacles: names in the order of the room's description.
    here: receptacles within reach.
    contents: receptacle -> objects seen in it.
    searched: receptacles looked into.
    is_closed: receptacle -> whether it is closed, None if unknown.
    operations: object -> operations (clean, heat, cool) carried out and not undone.
    origin: object -> where it was taken from.
    """

    def __init__(self, introduction: str):
        room, _, task = introduction.partition("Your task is to: ")
        _, _, listing = room.partition("you see ")
        self.task = task.strip()
        self.receptacles = list(dict.fromkeys(_NAME.findall(listing)))
        self.here: set[str] = set()
        self.holding = ""
        self.contents: dict[str, list[str]] = {name: [] for name in self.receptacles}
        self.searched: set[str] = set()
        self.is_closed: dict[str, bool | None] = dict.fromkeys(self.receptacles)
        self.operations: dict[str, set[str]] = {}
        self.origin: dict[str, str] = {}

    def update(self, action: str, observation: str, admissible: Sequence[str] | None = None) -> None:
        """Add one turn; ``admissible`` commands, if any, show which receptacles are within reach."""
        action = action.strip()
        if observation == NOTHING_HAPPENS:
            self._apply_refusal(action)
        else:
            self._apply_effect(action)
            self._apply_text(observation)
        if admissible is not None and self.here:
            reachable = set(admissible)
            self.here = {name for name in self.receptacles if f"go to {name}" not in reachable}

    def place_of(self, name: str) -> str:
        """The receptacle that an object was last seen in, or an empty string."""
        return next((receptacle for receptacle, items in self.contents.items() if name in items), "")

    def objects_of(self, kind: str) -> list[str]:
        """Objects of a type whose place is known, in the order of receptacles."""
        return [name for items in self.contents.values() for name in items if kind_of(name) == kind]

    def _apply_refusal(self, action: str) -> None:
        match = re.fullmatch(r"go to ([a-z]+ \d+)", action)
        if match and match[1] in self.contents and self.here:
            self.here.add(match[1])  # "go to" does nothing where the agent already is

    def _apply_effect(self, action: str) -> None:
        for verb, pattern in _EFFECTS:
            match = pattern.fullmatch(action)
            if not match:
                continue
            first = match[1]
            second = match[match.re.groups]
            if verb == "go":
                self.here = {first}
            elif verb == "take":
                self._remove(first)
                self.holding = first
                self.origin[first] = second
            elif verb == "put":
                self.holding = ""
                self._remove(first)
                self.contents.setdefault(second, []).append(first)
            elif verb == "close":
                self.is_closed[first] = True
            elif verb == "operate":
                undone = {"heat": "cool", "cool": "heat"}.get(first, "")
                self.operations[second] = (self.operations.get(second, set()) - {undone}) | {first}

    def _apply_text(self, text: str) -> None:
        for name, listing in _ON.findall(text) + _OPEN.findall(text):
            # A listing is complete: it replaces what was known.
            self.contents[name] = _NAME.findall(listing)
            self.searched.add(name)
            self.is_closed[name] = False
        for name in _CLOSED.findall(text):
            self.is_closed[name] = True
        for listing in _FACING.findall(text):
            self.here = set(_NAME.findall(listing))
        for listing in _CARRYING.findall(text):
            self.holding = next(iter(_NAME.findall(listing)), "")
        if "You are not carrying anything." in text:
            self.holding = ""

    def _remove(self, name: str) -> None:
        for items in self.contents.values():
            if name in items:
                items.remove(name)
