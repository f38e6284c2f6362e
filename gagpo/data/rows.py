"""Rows: the token sequences that the trainer reads.

A row may hold many turns because a causal model reads a conversation once and predicts all of its responses in that
pass. Whether a turn continues the row is read from the tokens, not from the setting ``history``: a chat template can
change earlier text, and a row must be exactly what the engine read.
Shape suffixes: N turns, K response tokens of the batch, L tokens of a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gagpo.data.episode import Episode


@dataclass
class Row:
    """One token sequence.

    ids: int32[L].
    position_K: index in ``ids`` of each response token.
    turn_K: its turn, counted over the batch.
    token_K: its index among the batch's response tokens.
    logprob_K: float32, the engine's log-probability.
    temperature: of sampling.
    group: task group, numbered from 0 in increasing order of ``Episode.group``.
    """

    ids: np.ndarray
    position_K: np.ndarray
    turn_K: np.ndarray
    token_K: np.ndarray
    logprob_K: np.ndarray
    temperature: float = 1.0
    group: int = 0

    @property
    def length(self) -> int:
        """Number of tokens that the model reads; the last one is only predicted."""
        return len(self.ids) - 1

    @property
    def read_L(self) -> np.ndarray:
        """The tokens that the model reads."""
        return self.ids[:-1]


def build_rows(episodes: Sequence[Episode]) -> list[Row]:
    """Rows of the episodes' turns, in order.

    A turn continues the row if its prompt extends the previous prompt and response token for token; otherwise it begins
    a new row. So an append-only conversation is one row, and a windowed history is a row per turn.
    """
    rows: list[Row] = []
    turn_number = token_number = 0
    groups = sorted({episode.group for episode in episodes})
    for episode in episodes:
        ids = np.zeros(0, np.int32)
        columns: list[tuple[np.ndarray, ...]] = []
        for turn in episode.turns:
            first = len(turn.prompt_ids)
            count = len(turn.response_ids)
            # Token for token: text that looks alike may have been encoded in another way.
            continues = 0 < len(ids) <= first and np.array_equal(turn.prompt_ids[: len(ids)], ids)
            if not continues:
                rows += _finished_row(ids, columns, episode, groups)
                columns = []
            ids = np.concatenate([turn.prompt_ids, turn.response_ids])

            # Turns without tokens are counted too: these numbers are places in the columns of Turns.
            if count:
                offset_K = np.arange(count)
                # Turns of demonstrations have no log-probabilities.
                logprob_K = turn.logprobs if len(turn.logprobs) == count else np.zeros(count, np.float32)
                columns.append((first + offset_K, np.full(count, turn_number), token_number + offset_K, logprob_K))
            turn_number += 1
            token_number += count
        rows += _finished_row(ids, columns, episode, groups)
    return rows


def _finished_row(
    ids: np.ndarray, columns: list[tuple[np.ndarray, ...]], episode: Episode, groups: list[int]
) -> list[Row]:
    """The row, if it has trained tokens."""
    if not columns:
        return []
    position_K, turn_K, token_K, logprob_K = (np.concatenate(column) for column in zip(*columns, strict=True))
    temperature = episode.temperature or 1.0
    return [Row(ids, position_K, turn_K, token_K, logprob_K, temperature, groups.index(episode.group))]
