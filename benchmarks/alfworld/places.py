"""Counting where things lie in generated rooms, for the expert's prior:

python -m benchmarks.alfworld.places > envs/alfworld/expert/places.py

The games counted have seeds of their own (from 1,000 on), so that no game's own room enters what its expert believes.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator

from gagpo.envs.alfworld.games.catalogue import TASK_TYPES
from gagpo.envs.alfworld.games.package_data import package_data
from gagpo.envs.alfworld.games.scenes import Scenario, draw_scenario

SEEDS = range(1_000, 1_100)
EACH = 3  # problems per seed, size and task type


def problems() -> Iterator[Scenario]:
    for seed in SEEDS:
        for size in ("small", "full"):
            for task_type in TASK_TYPES:
                for index in range(EACH):
                    yield draw_scenario(package_data(), seed, size, "train", task_type, index)


def count() -> dict[str, dict[str, int]]:
    """Kind of thing -> type of place -> per mille of the things that lie there, of those in rooms with such a place.

    Where the generator would not put a thing (a wanted one into the type of place that it is to go to), it is not
    counted as missing.
    """
    lies: Counter[tuple[str, str]] = Counter()
    could: Counter[tuple[str, str]] = Counter()
    for problem in problems():
        type_of = {place.id: place.type for place in problem.layout.receptacles}
        for thing in problem.things:
            # What is wanted never starts where it is to go, which must not count against that place.
            barred = problem.target if thing.type == problem.object_type else ""
            lies[thing.type, type_of[thing.place]] += 1
            could.update((thing.type, place) for place in problem.layout.types - {barred})
    table: dict[str, dict[str, int]] = {}
    for (kind, place), found in sorted(lies.items()):
        share = round(1000 * found / could[kind, place])
        table.setdefault(kind.lower(), {})[place.lower()] = share
    return table


def main() -> None:
    lines = [
        '"""Where things lie in generated rooms, counted by ``benchmarks.alfworld.places``; not for editing.',
        "",
        "Kind of thing -> types of place, each with the things per mille that lie there where such a place is.",
        '"""',
        "",
        "# fmt: off",
        "# ruff: noqa: E501",
        "PLACE_FREQUENCIES = {",
    ]
    for thing, places in count().items():
        ranked = sorted(places.items(), key=lambda item: (-item[1], item[0]))
        shares = ", ".join(f'"{place}": {share}' for place, share in ranked)
        lines.append(f'    "{thing}": {{{shares}}},')
    sys.stdout.write("\n".join([*lines, "}", ""]))


if __name__ == "__main__":
    main()
