"""Rooms like those of released games: furniture, number of objects of each kind, and their places.

Furniture is counted from ``gen/layouts`` of 26 of ALFRED's 96 training floor plans; kinds that are not listed there,
from the floor plan's list of objects. ALFRED's ``gen/scripts/generate_trajectories.py`` asks for one to four wanted
objects (at least two if two are wanted), and for one to three of every other kind in the room. AI2-THOR puts each on a
free point of a receptacle that can hold it, so large surfaces hold most objects; the points are not published, and
:data:`CAPACITY` approximates them. Only training scenes were counted.
"""

from __future__ import annotations

import bisect
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence

from gagpo.envs.alfworld.games.catalogue import Room
from gagpo.envs.alfworld.games.random_stream import RandomStream

FURNITURE: Mapping[str, Mapping[str, tuple[int, ...]]] = {
    "kitchen": {
        "Cabinet": (6, 7, 11, 11, 12, 12, 14, 17, 17), "Drawer": (0, 1, 2, 3, 3, 4, 4, 5, 23),
        "CounterTop": (1, 1, 1, 2, 2, 2, 3, 3, 4), "DiningTable": (0, 0, 1, 1, 1, 1, 1, 1, 1), "Shelf": (0, 0, 0, 0, 2),
        "Fridge": (1,), "Microwave": (1,), "SinkBasin": (1,), "StoveBurner": (4,), "CoffeeMachine": (1,),
        "Toaster": (1,), "GarbageCan": (1, 1, 1, 1, 1, 1, 1, 1, 0), "Safe": (0, 0, 0, 0, 0, 0, 0, 0, 1),
        "SideTable": (0, 0, 0, 0, 0, 1),
    },
    "living room": {
        "Drawer": (0, 1, 1, 1, 4, 7), "Shelf": (0, 0, 4, 6, 8, 10), "Sofa": (1, 1, 1, 1, 2, 2),
        "ArmChair": (0, 1, 1, 1, 1, 2), "SideTable": (1, 1, 1, 2, 2, 3), "CoffeeTable": (0, 1, 1, 1, 1, 2),
        "TVStand": (0, 0, 1, 1, 1, 2), "GarbageCan": (1, 1, 1, 0), "DiningTable": (0, 0, 0, 0, 0, 1),
        "Desk": (0, 0, 0, 0, 0, 1), "Dresser": (0, 0, 0, 0, 0, 1), "Ottoman": (0, 0, 0, 0, 0, 1),
        "Cabinet": (0, 0, 0, 0, 0, 3), "Safe": (0, 0, 0, 0, 0, 0, 0, 1),
    },
    "bedroom": {
        "Bed": (1,), "Desk": (0, 1, 1, 1, 1, 2), "Drawer": (2, 2, 4, 6, 8, 13), "Shelf": (0, 1, 2, 3, 4, 5),
        "SideTable": (0, 1, 1, 1, 1, 2), "Dresser": (0, 0, 0, 0, 1, 2), "Cabinet": (0, 0, 0, 1, 2, 4),
        "ArmChair": (0, 0, 0, 0, 1, 1), "GarbageCan": (1,), "Safe": (0, 0, 0, 0, 0, 1), "LaundryHamper": (0, 0, 0, 1),
        "Sofa": (0, 0, 0, 0, 0, 0, 0, 1),
    },
    "bathroom": {
        "Cabinet": (0, 0, 0, 3, 4, 5), "Drawer": (0, 0, 2, 4, 6, 7), "CounterTop": (1, 1, 1, 1, 1, 2),
        "SinkBasin": (1, 1, 1, 1, 2, 2), "Toilet": (1,), "BathtubBasin": (0, 0, 1, 1, 1, 1), "GarbageCan": (1,),
        "Shelf": (0, 0, 0, 0, 0, 2), "SideTable": (0, 0, 0, 0, 0, 1), "Cart": (0, 0, 0, 0, 0, 1),
        "TowelHolder": (1,), "HandTowelHolder": (1, 1, 2), "ToiletPaperHanger": (1,),
    },
}  # fmt: skip
"""Kind of room -> receptacle type -> the numbers of it found in the counted rooms."""

WIDE_FURNITURE: Mapping[str, Mapping[str, tuple[int, ...]]] = {
    "kitchen": {
        "Cabinet": (2, 5, 8, 11, 14, 17, 20, 24), "Drawer": (0, 1, 2, 3, 4, 6, 9, 13, 18, 23),
        "CounterTop": (0, 1, 1, 2, 2, 3, 3, 4, 5), "DiningTable": (0, 0, 1, 1, 1, 2), "Shelf": (0, 0, 0, 1, 2, 3, 6),
        "Fridge": (1,), "Microwave": (1,), "SinkBasin": (1, 1, 1, 2), "StoveBurner": (4, 4, 4, 6),
        "CoffeeMachine": (0, 1, 1, 1), "Toaster": (0, 1, 1, 1), "GarbageCan": (0, 1, 1, 1, 1),
        "Safe": (0, 0, 0, 0, 1), "SideTable": (0, 0, 0, 1, 2),
    },
    "living room": {
        "Drawer": (0, 0, 1, 2, 4, 7, 12), "Shelf": (0, 0, 0, 2, 4, 6, 8, 10, 12), "Sofa": (0, 1, 1, 1, 2),
        "ArmChair": (0, 0, 1, 1, 2, 3), "SideTable": (0, 0, 1, 1, 2, 3, 4), "CoffeeTable": (0, 1, 1, 1, 2),
        "TVStand": (0, 0, 0, 1, 1, 2), "GarbageCan": (0, 1, 1), "DiningTable": (0, 0, 0, 1, 1, 2),
        "Desk": (0, 0, 0, 1, 2), "Dresser": (0, 0, 1, 1, 2), "Ottoman": (0, 0, 0, 1, 2),
        "Cabinet": (0, 0, 0, 1, 3, 6), "Safe": (0, 0, 0, 1),
    },
    "bedroom": {
        "Bed": (1, 1, 1, 2), "Desk": (0, 0, 1, 1, 2), "Drawer": (0, 2, 4, 6, 8, 13, 16),
        "Shelf": (0, 0, 0, 1, 3, 5, 8, 12), "SideTable": (0, 0, 1, 1, 2, 3), "Dresser": (0, 0, 1, 1, 2),
        "Cabinet": (0, 0, 0, 0, 1, 2, 4), "ArmChair": (0, 0, 0, 1, 1, 2, 3), "GarbageCan": (0, 1, 1, 1),
        "Safe": (0, 0, 0, 1), "LaundryHamper": (0, 0, 0, 1), "Sofa": (0, 0, 0, 0, 1), "DiningTable": (0, 0, 1),
        "CoffeeTable": (0, 0, 0, 0, 1), "TVStand": (0, 0, 0, 0, 1), "Ottoman": (0, 0, 0, 0, 1),
    },
    "bathroom": {
        "Cabinet": (0, 0, 1, 2, 3, 4, 5, 8), "Drawer": (0, 0, 1, 2, 4, 6, 7, 10), "CounterTop": (0, 1, 1, 1, 2),
        "SinkBasin": (1, 1, 2), "Toilet": (1,), "BathtubBasin": (0, 1, 1), "GarbageCan": (0, 1, 1, 1),
        "Shelf": (0, 0, 0, 1, 2, 4), "SideTable": (0, 0, 0, 1, 2), "Cart": (0, 0, 0, 1), "TowelHolder": (0, 1, 1, 2),
        "HandTowelHolder": (0, 1, 2, 2), "ToiletPaperHanger": (0, 1, 1), "Dresser": (0, 0, 0, 0, 1),
    },
}  # fmt: skip
"""The same for ``alfred3``, chosen wider than any counted room: usual kinds may be missing and unusual ones present.

An agent that learns in these rooms has to read what is there; in :data:`FURNITURE` it can know it."""

USUAL = {"kitchen": (19, 20), "living room": (4, 5), "bedroom": (3, 4), "bathroom": (9, 10)}
FURTHER = (1, 4)
"""Probability that a room has an everyday kind of object, by kind of room, and any further one."""

MAX_TARGET_OBJECTS = 4
MAX_OTHER_OBJECTS = 3

CAPACITY = {
    "CounterTop": 12, "DiningTable": 12, "Desk": 8, "Bed": 8, "Dresser": 8, "CoffeeTable": 8, "Sofa": 6, "Fridge": 5,
    "SideTable": 5, "TVStand": 4, "BathtubBasin": 4, "ArmChair": 3, "Ottoman": 3, "SinkBasin": 3, "Cart": 3, "Safe": 2,
    "GarbageCan": 2, "Toilet": 2, "Shelf": 2,
}  # fmt: skip
"""How many objects a receptacle holds, which is also its weight as a place for one; 1 for others."""

FACTORS = (1, 1, 2, 4, 8)
"""With ``alfred3`` the weight of each type of receptacle is multiplied by one of these, drawn for each problem."""


def furniture(rng: RandomStream, room: Room, size: str) -> list[str]:
    """The types of the receptacles of a room."""
    table = WIDE_FURNITURE if size == "alfred3" else FURNITURE
    return [type_name for type_name, counts in table[room.name].items() for _ in range(rng.choose(counts))]


def place_factors(rng: RandomStream, room: Room, size: str) -> dict[str, int]:
    """Receptacle type -> factor of its weight as a place for objects, in one problem; types that are absent have 1."""
    if size == "alfred2":
        return {"StoveBurner": 12}  # a free burner weighs as much as a table
    if size == "alfred3":
        return {
            type_name: rng.choose(FACTORS) * (4 if type_name == "StoveBurner" else 1)
            for type_name in WIDE_FURNITURE[room.name]
        }
    return {}


def things(rng: RandomStream, room: Room, object_type: str, two_objects: bool) -> list[str]:
    """The types of the objects of a room, one for each object, wanted ones first."""
    object_types = [object_type] * rng.between(2 if two_objects else 1, MAX_TARGET_OBJECTS)
    for candidates, odds in ((room.everyday, USUAL[room.name]), (room.further, FURTHER)):
        for item_type in candidates:
            if rng.chance(*odds) and item_type != object_type:
                object_types += [item_type] * rng.between(1, MAX_OTHER_OBJECTS)
    return object_types


def place(rng: RandomStream, types: Sequence[str], object_counts: Counter[int], factors: Mapping[str, int]) -> int:
    """The index of the receptacle (in ``types``) for the next object; a full one only if all are full.

    object_counts: index -> number of objects in it.
    factors: of :func:`place_factors`.
    """
    free = [
        factors.get(type_name, 1) * max(0, CAPACITY.get(type_name, 1) - object_counts[number])
        for number, type_name in enumerate(types)
    ]
    weights = free if any(free) else [1] * len(types)
    return bisect.bisect_right(list(itertools.accumulate(weights)), rng.below(sum(weights)))
