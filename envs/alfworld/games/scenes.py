"""Rooms and problems drawn from a seed, and their walkthroughs.

A room (receptacles and their locations) depends only on (seed, size, scene number), and a problem in it (objects, goal,
text) only on (seed, size, split, task type, index): never on the number or order of other games.
"""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import dataclass

from gagpo.envs.alfworld.games import alfred
from gagpo.envs.alfworld.games.catalogue import (
    ROOMS,
    SCENES_PER_ROOM,
    TOOL_OF_TASK,
    UNSEEN_PER_ROOM,
    USUAL_PLACES,
    Room,
    room_of_scene,
)
from gagpo.envs.alfworld.games.draws import Draws
from gagpo.envs.alfworld.games.shipped import Shipped
from gagpo.envs.alfworld.names import mangle, spoken_names

_SMALL_RECEPTACLES = (6, 9)
_FULL_RECEPTACLES = (20, 48)
_CLUTTER = {"small": (3, 6), "full": (16, 30), "varied": (5, 30)}


@dataclass(frozen=True)
class Receptacle:
    """id: as in ALFRED (``Cabinet|+00.68|+00.50|-02.20``). location: index into the layout's locations."""

    id: str
    type: str
    location: int


@dataclass(frozen=True)
class RoomLayout:
    """A furnished room. The agent starts at ``locations[0]``, where there is no receptacle."""

    scene: int
    room: Room
    receptacles: tuple[Receptacle, ...]
    locations: tuple[str, ...]

    @property
    def furniture(self) -> tuple[tuple[str, int], ...]:
        """(type, number) of the receptacles: what an agent sees of a layout."""
        return tuple(sorted(Counter(receptacle.type for receptacle in self.receptacles).items()))

    @property
    def types(self) -> frozenset[str]:
        return frozenset(receptacle.type for receptacle in self.receptacles)


@dataclass(frozen=True)
class Thing:
    """An object. place: id of the receptacle that it lies in."""

    id: str
    type: str
    place: str


@dataclass(frozen=True)
class Scenario:
    """A room with objects and a goal. ``toggle`` is the lamp of a lamp task, else empty; ``target`` is then empty."""

    layout: RoomLayout
    things: tuple[Thing, ...]
    task_type: str
    wanted: str
    target: str
    toggle: str
    text: str


# Rooms ----------------------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=4096)
def furnish(seed: int, size: str, scene: int) -> RoomLayout:
    """The room with number ``scene``. The furniture of an unseen room differs from every training room of its kind."""
    room = room_of_scene(scene)
    draws = Draws("room", size, seed, scene)
    layout = _furnish(draws, size, scene, room)
    if scene - room.first_scene < UNSEEN_PER_ROOM:
        trained = range(room.first_scene + UNSEEN_PER_ROOM, room.first_scene + SCENES_PER_ROOM)
        known = {furnish(seed, size, other).furniture for other in trained}
        while layout.furniture in known:
            layout = _furnish(draws, size, scene, room)
    return layout


def _furnish(draws: Draws, size: str, scene: int, room: Room) -> RoomLayout:
    if size == "small":
        most = min(_SMALL_RECEPTACLES[1], len(room.always) + len(room.sometimes))
        count = draws.between(_SMALL_RECEPTACLES[0], most)
        types = [*room.always, *draws.shuffled(room.sometimes)[: count - len(room.always)]]
    elif size == "varied":
        types = _varied(draws, room)
    elif size.startswith("alfred"):
        types = alfred.furniture(draws, room)
    else:
        types = [kind for kind, (least, most) in room.ranges.items() for _ in range(draws.between(least, most))]
        fillers = [kind for kind, (_, most) in room.ranges.items() if most >= 4]
        while len(types) < _FULL_RECEPTACLES[0]:
            types.append(draws.choose(fillers))
        types = types[: _FULL_RECEPTACLES[1]]
    taken: set[str] = set()
    locations = [_place(draws, taken)]
    receptacles: list[Receptacle] = []
    for kind in sorted(types):
        neighbour = receptacles[-1] if receptacles and receptacles[-1].type == kind else None
        if size != "small" and neighbour is not None and draws.chance(1, 6):
            location = neighbour.location  # in ALFRED, several drawers share a location
        else:
            locations.append(_place(draws, taken))
            location = len(locations) - 1
        receptacles.append(Receptacle(_identify(draws, kind, taken), kind, location))
    return RoomLayout(scene, room, tuple(receptacles), tuple(locations))


def _varied(draws: Draws, room: Room) -> list[str]:
    """The types of the receptacles of a room between small and full; some types may be missing."""
    tenths = draws.between(1, 10)
    types = list(room.always)
    for kind, (_, most) in room.ranges.items():
        count = draws.between(1, max(1, -(-most * tenths // 10)))
        if kind in room.always:
            types += [kind] * (count - 1)
        elif draws.chance(3, 4):
            types += [kind] * count
    return types[: _FULL_RECEPTACLES[1]]


def _place(draws: Draws, taken: set[str]) -> str:
    while (
        place := f"loc|{draws.between(-12, 12)}|{draws.between(-12, 12)}|{draws.below(4)}|{draws.choose((0, 30, 60))}"
    ) in taken:
        pass
    taken.add(place)
    return place


def _identify(draws: Draws, kind: str, taken: set[str]) -> str:
    while True:
        x, y, z = (f"{draws.between(least, most) / 100:+06.2f}" for least, most in ((-400, 400), (5, 210), (-400, 400)))
        if kind.endswith("Basin"):
            name = f"{kind.removesuffix('Basin')}|{x}|{y}|{z}|{kind}"
        else:
            name = f"{kind}|{x}|{y}|{z}"
        if name not in taken:
            taken.add(name)
            return name


# Problems -------------------------------------------------------------------------------------------------------------


def pose(source: Shipped, seed: int, size: str, split: str, task_type: str, index: int) -> Scenario:
    """Problem ``index`` of ``task_type`` in ``split``.

    A ``valid_seen`` problem uses the room of the training problem with the same type and index, so it is a training
    room if the training split is at least as large. With size ``varied``, objects of every third problem lie in unusual
    places, and an object to be cleaned, heated or cooled may lie in its target, as in released games.
    """
    layout, goals = _room(source, seed, size, split, task_type, index)
    draws = Draws("problem", size, seed, split, task_type, index)
    wanted, target, toggle = draws.choose(goals)
    things = (
        _as_in_alfred(source, draws, layout, size, task_type, (wanted, target, toggle))
        if size.startswith("alfred")
        else _at_home(source, draws, layout, size, task_type, (wanted, target, toggle))
    )
    phrasing = draws.choose(source.goals[task_type][1])
    text = phrasing.format(obj=wanted.lower(), recep=target.lower(), toggle=toggle.lower())
    return Scenario(layout, tuple(things), task_type, wanted, target, toggle, text)


def _at_home(
    source: Shipped, draws: Draws, layout: RoomLayout, size: str, task_type: str, goal: tuple[str, str, str]
) -> list[Thing]:
    """One wanted object (rarely two) and other objects, most of them in usual places."""
    wanted, target, toggle = goal
    scattered = size == "varied" and draws.chance(1, 3)
    kept_out = "" if size == "varied" and task_type in TOOL_OF_TASK else target
    taken: set[str] = set()
    things: list[Thing] = []

    def put(kind: str, barred: str = "") -> None:
        place = _drawn_place(source, draws, layout, kind, barred, scattered)
        things.append(Thing(_identify(draws, kind, taken), kind, place.id))

    for _ in range((2 if task_type == "pick_two_obj_and_place" else 1) + draws.chance(1, 4)):
        put(wanted, barred=kept_out)
    lamps = [kind for kind in layout.room.lamps if _places(source, layout, kind)]
    if toggle:
        put(toggle)
    elif lamps and draws.chance(1, 3):
        put(draws.choose(lamps))
    kinds = [kind for kind in layout.room.objects(size) if kind != wanted and _places(source, layout, kind)]
    for _ in range(draws.between(*_CLUTTER[size])):
        put(draws.choose(kinds))
    return things


def _as_in_alfred(
    source: Shipped, draws: Draws, layout: RoomLayout, size: str, task_type: str, goal: tuple[str, str, str]
) -> list[Thing]:
    """Objects as in released games. No wanted object lies in its appliance or, for tasks without one, in its target."""
    wanted, target, toggle = goal
    two = task_type == "pick_two_obj_and_place"
    near = size == "alfred2" and draws.chance(1, 2 if two else 4)
    kept_out = TOOL_OF_TASK.get(task_type, target)
    lamps = [toggle] if toggle else [kind for kind in layout.room.lamps if draws.chance(1, 3)]
    kinds = alfred.things(draws, layout.room, wanted, two)
    taken: set[str] = set()
    held: Counter[int] = Counter()
    things: list[Thing] = []
    for kind in [*kinds, *lamps]:
        places = _places(source, layout, kind, barred=kept_out if kind == wanted else "")
        if near and kind == wanted:
            found = {thing.place for thing in things}  # wanted objects come first
            places = [place for place in places if (place.id in found if two else place.type == target)] or places
        if places:
            numbers = [layout.receptacles.index(place) for place in places]
            among = Counter({k: held[number] for k, number in enumerate(numbers)})
            chosen = alfred.place(draws, [place.type for place in places], among, size)
            held[numbers[chosen]] += 1
            things.append(Thing(_identify(draws, kind, taken), kind, places[chosen].id))
    return things


def _room(
    source: Shipped, seed: int, size: str, split: str, task_type: str, index: int
) -> tuple[RoomLayout, list[tuple[str, str, str]]]:
    """A problem's room and its goals; a room without one, such as a bedroom with no place for a lamp, is redrawn."""
    unseen = split == "valid_unseen"
    draws = Draws("scene", size, seed, "unseen" if unseen else "train", task_type, index)
    rooms = [room for room in ROOMS.values() if task_type in room.tasks]
    first, last = (0, UNSEEN_PER_ROOM - 1) if unseen else (UNSEEN_PER_ROOM, SCENES_PER_ROOM - 1)
    goals: list[tuple[str, str, str]] = []
    while not goals:
        room = draws.choose(rooms)
        layout = furnish(seed, size, room.first_scene + draws.between(first, last))
        goals = _goals(source, layout, size, task_type)
    return layout, goals


def _goals(source: Shipped, layout: RoomLayout, size: str, task_type: str) -> list[tuple[str, str, str]]:
    """Every (wanted, target, toggle) that is possible in this room."""
    kinds = layout.room.objects(size)
    if task_type == "look_at_obj_in_light":
        lamps = [kind for kind in layout.room.lamps if _places(source, layout, kind)]
        return [(kind, "", lamp) for kind in kinds for lamp in lamps if _places(source, layout, kind)]
    tool = TOOL_OF_TASK.get(task_type, "")
    ability = {"SinkBasin": "cleanable", "Microwave": "heatable", "Fridge": "coolable"}.get(tool)
    return [
        (kind, target, "")
        for kind in kinds
        if ability is None or kind in source.abilities[ability]
        for target in sorted(layout.types - {tool})
        if kind in source.contains.get(target, ()) and _places(source, layout, kind, barred=target)
    ]


def _places(source: Shipped, layout: RoomLayout, kind: str, barred: str = "") -> list[Receptacle]:
    """The receptacles in which an object of this kind may lie at the start."""
    if kind in source.abilities["toggleable"]:
        return [receptacle for receptacle in layout.receptacles if receptacle.type in USUAL_PLACES[kind]]
    return [
        receptacle
        for receptacle in layout.receptacles
        if receptacle.type != barred and kind in source.contains.get(receptacle.type, ())
    ]


def _drawn_place(
    source: Shipped, draws: Draws, layout: RoomLayout, kind: str, barred: str, scattered: bool = False
) -> Receptacle:
    places = _places(source, layout, kind, barred)
    present = {place.type for place in places}
    usual = [type_ for type_ in USUAL_PLACES.get(kind, ()) if type_ in present]
    if usual and not scattered and draws.chance(4, 5):
        weighted = [type_ for rank, type_ in enumerate(usual) for _ in range(len(usual) - rank)]
        chosen = draws.choose(weighted)
        places = [place for place in places if place.type == chosen]
    return draws.choose(places)


# Names ----------------------------------------------------------------------------------------------------------------


def walkthrough(source: Shipped, problem: Scenario) -> list[str]:
    """Commands that solve the problem, from full knowledge of the room."""
    layout = problem.layout
    ids = [thing.id for thing in problem.things] + [place.id for place in layout.receptacles]
    spoken = spoken_names(mangle(id) for id in ids)
    names = {id: spoken[mangle(id)] for id in ids}
    places = {place.id: place for place in layout.receptacles}
    opened: set[str] = set()
    plan: list[str] = []
    here = 0

    def approach(place: str, reach_in: bool = True) -> None:
        nonlocal here
        if places[place].location != here:  # "go to" is refused where the agent already is
            plan.append(f"go to {names[place]}")
            here = places[place].location
        if reach_in and places[place].type in source.openable and place not in opened:
            plan.append(f"open {names[place]}")
            opened.add(place)

    def first(kind: str) -> str:
        return next(place.id for place in layout.receptacles if place.type == kind)

    wanted = [thing for thing in problem.things if thing.type == problem.wanted]
    for thing in wanted[: 2 if problem.task_type == "pick_two_obj_and_place" else 1]:
        # Fetch it, treat it, and deliver it; under a lamp it stays in the hand.
        approach(thing.place)
        plan.append(f"take {names[thing.id]} from {names[thing.place]}")
        if problem.toggle:
            lamp = next(thing for thing in problem.things if thing.type == problem.toggle)
            approach(lamp.place, reach_in=False)
            plan.append(f"use {names[lamp.id]}")
            break
        if tool := TOOL_OF_TASK.get(problem.task_type):
            verb = {"SinkBasin": "clean", "Microwave": "heat", "Fridge": "cool"}[tool]
            approach(first(tool), reach_in=False)
            plan.append(f"{verb} {names[thing.id]} with {names[first(tool)]}")
        approach(first(problem.target))
        plan.append(f"move {names[thing.id]} to {names[first(problem.target)]}")
    return plan
