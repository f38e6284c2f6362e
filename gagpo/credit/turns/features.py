"""What a value can be predicted from where only text is known: a bag of hashed words of each turn."""

from __future__ import annotations

import re
from collections.abc import Sequence
from zlib import crc32

import numpy as np

from gagpo.agents.episodes import Episode

LAST_ACTIONS = 2
"""How many actions before a turn are among its words."""


def feature_columns(episodes: Sequence[Episode], width: int) -> np.ndarray:
    """float32[N, width]: hashed words of the goal, of the observation, and of the last two actions of every turn.

    The goal is what an episode began with. Each part is a bag of words, signed and hashed into the columns (Weinberger
    et al. 2009) and scaled to length 1; the same word in another part is another word. The first column is 1.
    """
    places: dict[tuple[str, str], int] = {}
    place_NP = []
    for episode in episodes:
        past = [""] * LAST_ACTIONS
        for turn in episode.turns:
            # The parts of a turn, each with its place in a table of the texts that there are.
            actions = [(f"action {age}", past[-1 - age]) for age in range(LAST_ACTIONS)]
            parts = [("goal", episode.turns[0].observation), ("observation", turn.observation), *actions]
            place_NP.append([places.setdefault(part, len(places)) for part in parts])
            past.append(turn.action)
    row_PF = np.stack([hashed_words(part, text, width) for part, text in places])
    feature_NF = row_PF[np.asarray(place_NP).T].sum(0)
    feature_NF[:, 0] = 1.0
    return np.asarray(feature_NF, np.float32)


def hashed_words(part: str, text: str, width: int) -> np.ndarray:
    """The words of ``text`` as a vector of length 1, float64[width], whose first place is left free; 0 without any."""
    vector = np.zeros(width)
    for word in re.findall(r"\w+", text.lower()):
        code = crc32(f"{part}\0{word}".encode())
        vector[1 + (code >> 1) % (width - 1)] += 1.0 if code & 1 else -1.0
    return vector / max(float(np.linalg.norm(vector)), 1e-12)
