"""Demonstrations as rows of tokens to learn from, and the file in which they wait."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from gagpo.agents.context import Context
from gagpo.agents.episodes import Episode
from gagpo.base import durable
from gagpo.learning.batch import Row, build_rows
from gagpo.settings.warm_start import WarmStartSettings
from gagpo.warm_start.fit import RESPONSE, STRAY


def tokenize(episode: Episode, context: Context) -> None:
    """Give every turn the tokens an engine would have read and sampled for these very words."""
    for number, turn in enumerate(episode.turns):
        turn.prompt_ids = context.prompt(episode.turns[:number], turn.observation)
        turn.response_ids = context.response(turn.response)


def learned_rows(episode: Episode, warm: WarmStartSettings) -> list[Row]:
    """The rows of a demonstration; ``turn_K`` is RESPONSE where a response is learned and STRAY where it is skipped.

    With ``read_strays`` moves that strayed are not in the row: they count among what is read.
    """
    if warm.read_strays:
        rows = build_rows([episode], trainable_only=True)
        return [replace(row, turn_K=np.full(len(row.turn_K), RESPONSE)) for row in rows]
    strays = np.asarray([not turn.trainable for turn in episode.turns])
    rows = [replace(row, turn_K=np.where(strays[row.turn_K], STRAY, RESPONSE)) for row in build_rows([episode])]
    return [row for row in rows if (row.turn_K == RESPONSE).any()]


def store_rows(rows: Sequence[Row], path: Path) -> None:
    """Token ids, response places and what kind they are, of all rows, one after the other."""
    with durable.replacing(path) as fresh, fresh.open("wb") as file:
        np.savez(
            file,
            ids=np.concatenate([row.ids for row in rows]),
            places=np.concatenate([row.place_K for row in rows]),
            kinds=np.concatenate([row.turn_K for row in rows]),
            lengths=np.asarray([(len(row.ids), len(row.place_K)) for row in rows]),
        )


def stored_rows(path: Path) -> list[Row]:
    with np.load(path, allow_pickle=False) as stored:
        ids, places, kinds, lengths = (stored[name] for name in ("ids", "places", "kinds", "lengths"))
    ends = np.cumsum(lengths, axis=0)
    rows = []
    for (id_end, place_end), (id_count, place_count) in zip(ends, lengths, strict=True):
        # Rows lie one after the other, each with so many tokens and so many places.
        spot = slice(place_end - place_count, place_end)
        own = ids[id_end - id_count : id_end]
        none = np.zeros(place_count, np.float32)
        rows.append(Row(own, places[spot], kinds[spot], np.arange(place_count), none))
    return rows
