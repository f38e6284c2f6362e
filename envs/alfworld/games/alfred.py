"""Rooms like those of released games: furniture, number of objects of each kind, and their places.

Furniture is counted from ``gen/layouts`` of 26 of ALFRED's 96 training floor plans; kinds that are not listed there,
from the floor plan's list of objects. ALFRED's ``gen/scripts/generate_trajectories.py`` asks for one to four wanted
objects (at least two if two are wanted), and for one to three of every other kind in the room. AI2-THOR puts each on a
free point of a receptacle that can hold it, so large surfaces hold most objects; the points are not published, and
:data:`ROOM_FOR` approximates them. Only training scenes were counted.
"""

from __future__ import annotations

import bisect
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence

from gagpo.envs.alfworld.games.catalogue import Room
from gagpo.envs.alfworld.games.draws import Draws

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

USUAL = {"kitchen": (19, 20), "living room": (4, 5), "bedroom": (3, 4), "bathroom": (9, 10)}
FURTHER = (1, 4)
"""Probability that a room has an everyday kind of object, by kind of room, and any further one."""

MOST_WANTED, MOST_OTHERS = 4, 3

ROOM_FOR = {
    "CounterTop": 12, "DiningTable": 12, "Desk": 8, "Bed": 8, "Dresser": 8, "CoffeeTable": 8, "Sofa": 6, "Fridge": 5,
    "SideTable": 5, "TVStand": 4, "BathtubBasin": 4, "ArmChair": 3, "Ottoman": 3, "SinkBasin": 3, "Cart": 3, "Safe": 2,
    "GarbageCan": 2, "Toilet": 2, "Shelf": 2,
}  # fmt: skip
"""How many objects a receptacle holds, which is also its weight as a place for one; 1 for others."""


def furniture(draws: Draws, room: Room) -> list[str]:
    """The types of the receptacles of a room."""
    return [kind for kind, counts in FURNITURE[room.name].items() for _ in range(draws.choose(counts))]


def things(draws: Draws, room: Room, wanted: str, two: bool) -> list[str]:
    """The types of the objects of a room, one for each object, wanted ones first."""
    found = [wanted] * draws.between(2 if two else 1, MOST_WANTED)
    for kinds, odds in ((room.everyday, USUAL[room.name]), (room.further, FURTHER)):
        for kind in kinds:
            if draws.chance(*odds) and kind != wanted:
                found += [kind] * draws.between(1, MOST_OTHERS)
    return found


def place(draws: Draws, types: Sequence[str], held: Counter[int], size: str) -> int:
    """The index of the receptacle (in ``types``) for the next object; a full one only if all are full.

    held: index -> number of objects in it.
    size: of the room. With ``alfred2`` a free burner weighs as much as a table.
    """
    free = [max(0, ROOM_FOR.get(kind, 1) - held[number]) for number, kind in enumerate(types)]
    if size == "alfred2":
        free = [12 * weight if kind == "StoveBurner" else weight for kind, weight in zip(types, free, strict=True)]
    weights = free if any(free) else [1] * len(types)
    return bisect.bisect_right(list(itertools.accumulate(weights)), draws.below(sum(weights)))
