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
from gagpo.envs.alfworld.games.package_data import PackageData
from gagpo.envs.alfworld.games.random_stream import RandomStream
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
    object_type: str
    target: str
    toggle: str
    text: str


# Rooms ----------------------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=4096)
def furnish(seed: int, size: str, scene: int) -> RoomLayout:
    """The room with number ``scene``. The furniture of an unseen room differs from every training room of its kind."""
    room = room_of_scene(scene)
    rng = RandomStream("room", size, seed, scene)
    layout = _furnish(rng, size, scene, room)
    if scene - room.first_scene < UNSEEN_PER_ROOM:
        training_scenes = range(room.first_scene + UNSEEN_PER_ROOM, room.first_scene + SCENES_PER_ROOM)
        training_furniture = {furnish(seed, size, training_scene).furniture for training_scene in training_scenes}
        while layout.furniture in training_furniture:
            layout = _furnish(rng, size, scene, room)
    return layout


def _furnish(rng: RandomStream, size: str, scene: int, room: Room) -> RoomLayout:
    if size == "small":
        high = min(_SMALL_RECEPTACLES[1], len(room.always) + len(room.sometimes))
        count = rng.between(_SMALL_RECEPTACLES[0], high)
        types = [*room.always, *rng.shuffled(room.sometimes)[: count - len(room.always)]]
    elif size == "varied":
        types = _varied(rng, room)
    elif size.startswith("alfred"):
        types = alfred.furniture(rng, room, size)
    else:
        types = [type_name for type_name, (low, high) in room.ranges.items() for _ in range(rng.between(low, high))]
        fillers = [type_name for type_name, (_, high) in room.ranges.items() if high >= 4]
        while len(types) < _FULL_RECEPTACLES[0]:
            types.append(rng.choose(fillers))
        types = types[: _FULL_RECEPTACLES[1]]
    used_names: set[str] = set()
    locations = [_place(rng, used_names)]
    receptacles: list[Receptacle] = []
    for type_name in sorted(types):
        neighbour: Receptacle | None = None
        if receptacles and receptacles[-1].type == type_name:
            neighbour = receptacles[-1]
        if size != "small" and neighbour is not None and rng.chance(1, 6):
            location = neighbour.location  # in ALFRED, several drawers share a location
        else:
            locations.append(_place(rng, used_names))
            location = len(locations) - 1
        receptacles.append(Receptacle(_identify(rng, type_name, used_names), type_name, location))
    return RoomLayout(scene, room, tuple(receptacles), tuple(locations))


def _varied(rng: RandomStream, room: Room) -> list[str]:
    """The types of the receptacles of a room between small and full; some types may be missing."""
    tenths = rng.between(1, 10)
    types = list(room.always)
    for type_name, (_, highest) in room.ranges.items():
        count = rng.between(1, max(1, -(-highest * tenths // 10)))
        if type_name in room.always:
            types += [type_name] * (count - 1)
        elif rng.chance(3, 4):
            types += [type_name] * count
    return types[: _FULL_RECEPTACLES[1]]


def _place(rng: RandomStream, used_names: set[str]) -> str:
    """A new location id, as in ALFRED: x, z, direction and horizon of the camera."""
    while True:
        position = f"loc|{rng.between(-12, 12)}|{rng.between(-12, 12)}|{rng.below(4)}|{rng.choose((0, 30, 60))}"
        if position not in used_names:
            used_names.add(position)
            return position


def _identify(rng: RandomStream, kind: str, used_names: set[str]) -> str:
    """A new object id, as in ALFRED: ``Cup|+02.93|+00.90|-00.36``, and ``Sink|x|y|z|SinkBasin`` for basins."""
    while True:
        x, y, z = (f"{rng.between(low, high) / 100:+06.2f}" for low, high in ((-400, 400), (5, 210), (-400, 400)))
        if kind.endswith("Basin"):
            name = f"{kind.removesuffix('Basin')}|{x}|{y}|{z}|{kind}"
        else:
            name = f"{kind}|{x}|{y}|{z}"
        if name not in used_names:
            used_names.add(name)
            return name


# Problems -------------------------------------------------------------------------------------------------------------


def draw_scenario(package: PackageData, seed: int, size: str, split: str, task_type: str, index: int) -> Scenario:
    """Problem ``index`` of ``task_type`` in ``split``.

    A ``valid_seen`` problem uses the room of the training problem with the same type and index, so it is a training
    room if the training split is at least as large. With size ``varied``, objects of every third problem lie in unusual
    places, and an object to be cleaned, heated or cooled may lie in its target, as in released games.
    """
    layout, goals = _room(package, seed, size, split, task_type, index)
    rng = RandomStream("problem", size, seed, split, task_type, index)
    object_type, target, toggle = rng.choose(goals)
    place_objects = _as_in_alfred if size.startswith("alfred") else _at_home
    items = place_objects(package, rng, layout, size, task_type, (object_type, target, toggle))
    template = rng.choose(package.goals[task_type][1])
    text = template.format(obj=object_type.lower(), recep=target.lower(), toggle=toggle.lower())
    return Scenario(layout, tuple(items), task_type, object_type, target, toggle, text)


def _at_home(
    package: PackageData, rng: RandomStream, layout: RoomLayout, size: str, task_type: str, goal: tuple[str, str, str]
) -> list[Thing]:
    """One wanted object (rarely two) and other objects, most of them in usual places."""
    object_type, target, toggle = goal
    unusual_places = size == "varied" and rng.chance(1, 3)
    excluded_type = "" if size == "varied" and task_type in TOOL_OF_TASK else target
    used_names: set[str] = set()
    items: list[Thing] = []

    def add_object(kind: str, excluded: str = "") -> None:
        receptacle = _draw_place(package, rng, layout, kind, excluded, unusual_places)
        items.append(Thing(_identify(rng, kind, used_names), kind, receptacle.id))

    for _ in range((2 if task_type == "pick_two_obj_and_place" else 1) + rng.chance(1, 4)):
        add_object(object_type, excluded=excluded_type)
    lamps = [kind for kind in layout.room.lamps if _places(package, layout, kind)]
    if toggle:
        add_object(toggle)
    elif lamps and rng.chance(1, 3):
        add_object(rng.choose(lamps))
    type_names = [kind for kind in layout.room.objects(size) if kind != object_type and _places(package, layout, kind)]
    for _ in range(rng.between(*_CLUTTER[size])):
        add_object(rng.choose(type_names))
    return items


def _as_in_alfred(
    package: PackageData, rng: RandomStream, layout: RoomLayout, size: str, task_type: str, goal: tuple[str, str, str]
) -> list[Thing]:
    """Objects as in released games. No wanted object lies in its appliance or, for tasks without one, in its target."""
    object_type, target, toggle = goal
    two_objects = task_type == "pick_two_obj_and_place"
    near_target = size in ("alfred2", "alfred3") and rng.chance(1, 2 if two_objects else 4)
    excluded_type = TOOL_OF_TASK.get(task_type, target)
    if toggle:
        lamps = [toggle]
    else:
        lamps = [lamp_type for lamp_type in layout.room.lamps if rng.chance(1, 3)]
    type_names = alfred.things(rng, layout.room, object_type, two_objects)
    factors = alfred.place_factors(rng, layout.room, size)
    used_names: set[str] = set()
    object_counts: Counter[int] = Counter()
    items: list[Thing] = []
    for lamp_type in [*type_names, *lamps]:
        receptacles = _places(package, layout, lamp_type, excluded=excluded_type if lamp_type == object_type else "")
        if near_target and lamp_type == object_type:
            if two_objects:
                object_places = {item.place for item in items}  # wanted objects come first
                near_places = [receptacle for receptacle in receptacles if receptacle.id in object_places]
            else:
                near_places = [receptacle for receptacle in receptacles if receptacle.type == target]
            receptacles = near_places or receptacles
        if receptacles:
            numbers = [layout.receptacles.index(receptacle) for receptacle in receptacles]
            counts_here = Counter({k: object_counts[number] for k, number in enumerate(numbers)})
            index = alfred.place(rng, [receptacle.type for receptacle in receptacles], counts_here, factors)
            object_counts[numbers[index]] += 1
            items.append(Thing(_identify(rng, lamp_type, used_names), lamp_type, receptacles[index].id))
    return items


def _room(
    package: PackageData, seed: int, size: str, split: str, task_type: str, index: int
) -> tuple[RoomLayout, list[tuple[str, str, str]]]:
    """A problem's room and its goals; a room without one, such as a bedroom with no place for a lamp, is redrawn."""
    unseen = split == "valid_unseen"
    rng = RandomStream("scene", size, seed, "unseen" if unseen else "train", task_type, index)
    rooms = [room for room in ROOMS.values() if task_type in room.tasks]
    if unseen:
        first = 0
        last = UNSEEN_PER_ROOM - 1
    else:
        first = UNSEEN_PER_ROOM
        last = SCENES_PER_ROOM - 1
    goals: list[tuple[str, str, str]] = []
    while not goals:
        room = rng.choose(rooms)
        layout = furnish(seed, size, room.first_scene + rng.between(first, last))
        goals = _goals(package, layout, size, task_type)
    return layout, goals


def _goals(package: PackageData, layout: RoomLayout, size: str, task_type: str) -> list[tuple[str, str, str]]:
    """Every (wanted, target, toggle) that is possible in this room."""
    type_names = layout.room.objects(size)
    if task_type == "look_at_obj_in_light":
        lamps = [lamp_type for lamp_type in layout.room.lamps if _places(package, layout, lamp_type)]
        return [
            (lamp_type, "", lamp) for lamp_type in type_names for lamp in lamps if _places(package, layout, lamp_type)
        ]
    tool = TOOL_OF_TASK.get(task_type, "")
    ability = {"SinkBasin": "cleanable", "Microwave": "heatable", "Fridge": "coolable"}.get(tool)
    return [
        (lamp_type, target, "")
        for lamp_type in type_names
        if ability is None or lamp_type in package.abilities[ability]
        for target in sorted(layout.types - {tool})
        if lamp_type in package.contains.get(target, ()) and _places(package, layout, lamp_type, excluded=target)
    ]


def _places(package: PackageData, layout: RoomLayout, kind: str, excluded: str = "") -> list[Receptacle]:
    """The receptacles in which an object of this kind may lie at the start."""
    if kind in package.abilities["toggleable"]:
        return [receptacle for receptacle in layout.receptacles if receptacle.type in USUAL_PLACES[kind]]
    return [
        receptacle
        for receptacle in layout.receptacles
        if receptacle.type != excluded and kind in package.contains.get(receptacle.type, ())
    ]


def _draw_place(
    package: PackageData, rng: RandomStream, layout: RoomLayout, kind: str, excluded: str, unusual_places: bool = False
) -> Receptacle:
    receptacles = _places(package, layout, kind, excluded)
    present = {receptacle.type for receptacle in receptacles}
    usual = [type_ for type_ in USUAL_PLACES.get(kind, ()) if type_ in present]
    if usual and not unusual_places and rng.chance(4, 5):
        weighted_types = [type_ for rank, type_ in enumerate(usual) for _ in range(len(usual) - rank)]
        receptacle_type = rng.choose(weighted_types)
        receptacles = [receptacle for receptacle in receptacles if receptacle.type == receptacle_type]
    return rng.choose(receptacles)


# Names ----------------------------------------------------------------------------------------------------------------


def walkthrough(package: PackageData, problem: Scenario) -> list[str]:
    """Commands that solve the problem, from full knowledge of the room."""
    layout = problem.layout
    ids = [item.id for item in problem.things] + [place.id for place in layout.receptacles]
    spoken = spoken_names(mangle(id) for id in ids)
    names = {id: spoken[mangle(id)] for id in ids}
    receptacles = {place.id: place for place in layout.receptacles}
    opened_places: set[str] = set()
    plan: list[str] = []
    here = 0

    def approach(place: str, reach_in: bool = True) -> None:
        nonlocal here
        if receptacles[place].location != here:  # "go to" does nothing where the agent already is
            plan.append(f"go to {names[place]}")
            here = receptacles[place].location
        if reach_in and receptacles[place].type in package.openable and place not in opened_places:
            plan.append(f"open {names[place]}")
            opened_places.add(place)

    def first(kind: str) -> str:
        return next(receptacle.id for receptacle in layout.receptacles if receptacle.type == kind)

    target_objects = [item for item in problem.things if item.type == problem.object_type]
    for item in target_objects[: 2 if problem.task_type == "pick_two_obj_and_place" else 1]:
        # Fetch it, treat it, and deliver it; under a lamp it stays in the hand.
        approach(item.place)
        plan.append(f"take {names[item.id]} from {names[item.place]}")
        if problem.toggle:
            lamp = next(item for item in problem.things if item.type == problem.toggle)
            approach(lamp.place, reach_in=False)
            plan.append(f"use {names[lamp.id]}")
            break
        if tool := TOOL_OF_TASK.get(problem.task_type):
            verb = {"SinkBasin": "clean", "Microwave": "heat", "Fridge": "cool"}[tool]
            approach(first(tool), reach_in=False)
            plan.append(f"{verb} {names[item.id]} with {names[first(tool)]}")
        approach(first(problem.target))
        plan.append(f"move {names[item.id]} to {names[first(problem.target)]}")
    return plan
