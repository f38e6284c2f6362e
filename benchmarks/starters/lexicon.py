"""Every name that a room can hold, so that a tokenizer knows it before it has been seen."""

from __future__ import annotations

from gagpo.envs.alfworld.games.catalogue import ROOMS
from gagpo.envs.alfworld.games.package_data import package_data

MANY = 50  # numbers of the receptacles that stand in rows
SOME = 12  # numbers of everything else
_ROWS = ("Cabinet", "Drawer", "Shelf")


def lexicon() -> list[str]:
    """Texts with all names of objects and receptacles of alfworld, each with its numbers, and the commands."""
    source = package_data()
    kinds = {kind for room in ROOMS.values() for kind in (*room.ranges, *room.always, *room.sometimes)}
    kinds |= {kind for room in ROOMS.values() for kind in (*room.objects("full"), *room.lamps)}
    kinds |= set(source.contains) | source.kinds
    kinds -= {kind for kind in kinds if kind.endswith("Sliced")}
    texts = [
        "you see " + ", ".join(f"a {kind.lower()} {k}" for k in range(1, (MANY if kind in _ROWS else SOME) + 1)) + "."
        for kind in sorted(kinds)
    ]
    texts += [f"put a {kind.lower()} in {kind.lower()}." for kind in sorted(kinds)]
    return texts
