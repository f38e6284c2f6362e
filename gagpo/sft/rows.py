"""Demonstrations as rows of labelled tokens, and the file that stores them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from gagpo.agents.context import Context
from gagpo.base import durable
from gagpo.data import Episode, Row, build_rows

# Kinds of tokens: in a response to imitate, in the text that the model reads, and not predicted.
RESPONSE = 0
PROMPT = 1
SKIPPED = 2


@dataclass(frozen=True)
class LabelledRow:
    """A token sequence of a demonstration.

    ids: int32[L].
    kind_L: uint8[L]; RESPONSE, PROMPT or SKIPPED.
    """

    ids: np.ndarray
    kind_L: np.ndarray

    def row(self, observations: bool) -> Row:
        """The row to train on, whose ``turn_K`` holds kinds. observations: whether to predict PROMPT tokens too."""
        position_K = np.flatnonzero(self.kind_L != SKIPPED if observations else self.kind_L == RESPONSE)
        zero_K = np.zeros(len(position_K), np.float32)
        return Row(self.ids, position_K, self.kind_L[position_K].astype(np.int64), np.arange(len(position_K)), zero_K)


def tokenized_rows(
    episodes: list[Episode],
    context: Context,
    stray: int = PROMPT,
    on_episode: Callable[[Episode], None] = lambda _: None,
) -> list[LabelledRow]:
    """The rows of demonstrations, tokenized as an engine would read and sample them; empties ``episodes``.

    stray: kind of the moves that are not imitated.
    on_episode: called with each episode once it has its tokens.
    """
    rows: list[LabelledRow] = []
    while episodes:
        episode = episodes.pop(0)  # its prompts take twenty times the memory of its rows
        for number, turn in enumerate(episode.turns):
            if len(turn.prompt_ids):  # read from a file of conversations, which are tokenized by the chat template
                continue
            prompt_ids = context.prompt(episode.turns[:number], turn.observation)
            response_ids = context.response(turn.response)
            episode.turns[number] = replace(turn, prompt_ids=prompt_ids, response_ids=response_ids)
        on_episode(episode)
        rows += labelled_rows(episode, stray)
    return rows


def labelled_rows(episode: Episode, stray: int = PROMPT) -> list[LabelledRow]:
    """The rows of a demonstration with something to imitate. stray: kind of the moves that are not imitated."""
    imitated = np.asarray([turn.trainable for turn in episode.turns])
    rows = []
    for row in build_rows([episode]):
        role_L = np.full(len(row.ids), PROMPT, np.uint8)
        role_L[row.position_K] = np.where(imitated[row.turn_K], RESPONSE, stray)
        role_L[0] = SKIPPED  # nothing comes before the first token
        if (role_L == RESPONSE).any():
            rows.append(LabelledRow(row.ids, role_L))
    return rows


def store_rows(rows: Sequence[LabelledRow], path: Path, longest: int | None = None) -> None:
    """Write the rows of up to ``longest`` tokens to one file."""
    rows = [row for row in rows if longest is None or len(row.ids) <= longest]
    with durable.replacing(path) as fresh, fresh.open("wb") as file:
        np.savez(
            file,
            ids=np.concatenate([row.ids for row in rows]),
            kinds=np.concatenate([row.kind_L for row in rows]),
            lengths=np.asarray([len(row.ids) for row in rows]),
        )


def stored_rows(path: Path) -> list[LabelledRow]:
    """The rows of a file that :func:`store_rows` wrote."""
    with np.load(path, allow_pickle=False) as file:
        ids, roles, lengths = (file[name] for name in ("ids", "kinds", "lengths"))
    ends = np.cumsum(lengths)[:-1]
    return [LabelledRow(*pair) for pair in zip(np.split(ids, ends), np.split(roles, ends), strict=True)]
