"""Text features of turns: bags of hashed words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from zlib import crc32

import numpy as np

from gagpo.agents.episodes import Episode

LAST_ACTIONS = 2
"""Number of preceding actions among a turn's features."""


def feature_columns(episodes: Sequence[Episode], width: int) -> np.ndarray:
    """Hashed words of each turn's goal, observation and last two actions, float32[N, width].

    The goal is the episode's first observation. Each part is a bag of words hashed into the columns with signs
    (Weinberger et al. 2009) and scaled to length 1; parts do not share words. The first column is 1.
    """
    places: dict[tuple[str, str], int] = {}
    place_NP = []
    for episode in episodes:
        past = [""] * LAST_ACTIONS
        for turn in episode.turns:
            # Each distinct text is hashed once.
            actions = [(f"action {age}", past[-1 - age]) for age in range(LAST_ACTIONS)]
            parts = [("goal", episode.turns[0].observation), ("observation", turn.observation), *actions]
            place_NP.append([places.setdefault(part, len(places)) for part in parts])
            past.append(turn.action)
    row_PF = np.stack([hashed_words(part, text, width) for part, text in places])
    feature_NF = row_PF[np.asarray(place_NP).T].sum(0)
    feature_NF[:, 0] = 1.0
    return np.asarray(feature_NF, np.float32)


def hashed_words(part: str, text: str, width: int) -> np.ndarray:
    """The words of ``text`` as a unit vector, float64[width], with 0 in the first column; 0 for an empty text."""
    vector = np.zeros(width)
    for word in re.findall(r"\w+", text.lower()):
        code = crc32(f"{part}\0{word}".encode())
        vector[1 + (code >> 1) % (width - 1)] += 1.0 if code & 1 else -1.0
    return vector / max(float(np.linalg.norm(vector)), 1e-12)
