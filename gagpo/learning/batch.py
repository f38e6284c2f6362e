"""The mini-batches of an epoch, and what their means divide by."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from gagpo.data import Row
from gagpo.objectives import Normaliser


def normaliser_of(rows: Sequence[Row]) -> Normaliser:
    """The counts that means over these rows divide by."""
    turns = sum(1 + int(np.count_nonzero(np.diff(row.turn_K))) for row in rows)
    return Normaliser(sum(len(row.turn_K) for row in rows), turns, len(rows))


def mini_batches(rows: Sequence[Row], count: int, rng: np.random.Generator) -> Iterator[list[Row]]:
    """Split the rows at random into ``count`` parts with nearly equal numbers of task groups.

    With fewer groups than parts, rows are split individually, into at most one part per row.
    """
    group_R = np.asarray([row.group for row in rows])
    groups = np.unique(group_R)
    if len(groups) < count:
        groups = np.arange(len(rows))
        group_R = groups
    for part in np.array_split(rng.permutation(groups), min(count, len(groups))):
        yield [rows[place] for group in part for place in np.flatnonzero(group_R == group)]
