"""From episodes to what the model is trained on: rows, mini-batches, and length-sorted micro-batches without padding.

Shape suffixes: N turns, K response tokens of the batch, T flat tokens of a micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from torch import Tensor

from gagpo.agents.engines.attention import PackedRows
from gagpo.agents.episodes import Episode
from gagpo.objectives import Layout


@dataclass
class Row:
    """One token sequence the trainer sees.

    ids: int32[L]. place_K: where in ``ids`` each response token stands. turn_K: its turn, counted over the whole batch.
    token_K: its number among all response tokens of the batch, turn after turn.
    logprob_K: float32, what the engine sampled it with, at ``temperature``. group: number of its episode's task group,
    counted from 0 in increasing order of ``Episode.group``.
    """

    ids: np.ndarray
    place_K: np.ndarray
    turn_K: np.ndarray
    token_K: np.ndarray
    logprob_K: np.ndarray
    temperature: float = 1.0
    group: int = 0

    @property
    def length(self) -> int:
        """Tokens the model reads: the last one is only predicted."""
        return len(self.ids) - 1


def build_rows(episodes: Sequence[Episode], trainable_only: bool = False) -> list[Row]:
    """Rows of the episodes' turns, in order.

    A turn whose prompt extends the previous turn's prompt and response token for token continues that turn's row; any
    other turn begins a new one. So an append-only conversation is one row and a windowed history is a row per turn,
    without a setting that says so. With ``trainable_only`` the responses of stray expert moves are read, not trained.
    """
    rows: list[Row] = []
    turn_number = token_number = 0
    groups = sorted({episode.group for episode in episodes})
    for episode in episodes:
        ids = np.zeros(0, np.int32)
        columns: list[tuple[np.ndarray, ...]] = []
        for turn in episode.turns:
            # A prompt that does not go on where the row ends is the beginning of another.
            length, first, count = len(ids), len(turn.prompt_ids), len(turn.response_ids)
            if not (0 < length <= first and np.array_equal(turn.prompt_ids[:length], ids)):
                rows += _finished(ids, columns, episode, groups)
                columns = []
            ids = np.concatenate([turn.prompt_ids, turn.response_ids])

            # Its response is trained; every turn and token is counted, whether or not it is.
            if count and (turn.trainable or not trainable_only):
                offset_K = np.arange(count)
                logprob_K = turn.logprobs if len(turn.logprobs) == count else np.zeros(count, np.float32)
                columns.append((first + offset_K, np.full(count, turn_number), token_number + offset_K, logprob_K))
            turn_number += 1
            token_number += count
        rows += _finished(ids, columns, episode, groups)
    return rows


def _finished(ids: np.ndarray, columns: list[tuple[np.ndarray, ...]], episode: Episode, groups: list[int]) -> list[Row]:
    """The row, if anything in it is trained."""
    if not columns:
        return []
    place_K, turn_K, token_K, logprob_K = (np.concatenate(column) for column in zip(*columns, strict=True))
    temperature, group = episode.temperature or 1.0, groups.index(episode.group)
    return [Row(ids, place_K, turn_K, token_K, logprob_K, temperature, group)]


@dataclass(frozen=True)
class MicroBatch:
    """What one forward pass reads, and what is known of the response tokens in it.

    ids_T: the rows, one after the other, each without its last token; packed: where they begin. keep_K: flat position
    whose logits predict the token; target_K: the token. turn_K and token_K: its numbers in the whole batch. logprob_K:
    what the engine sampled it with, at temperature_K (None where all are 1). layout: which tokens make an action and
    which a row. padding: read for company, so that a rank makes as many passes as the others; nothing of it counts.

    Columns of a training step, float32[K], put in by :func:`gagpo.learning.loss.with_columns`. old_logprob_K: what
    ratios start from, before that the engine's. weight_K: the correction's. Of a critic, old_value_K: its values when
    the batch was sampled; return_K: what they should have been; first_K, int64: the places whose values are trained,
    None for all.

    Made on the CPU; :meth:`to` moves it when its turn comes, without waiting for the device.
    """

    ids_T: Tensor
    packed: PackedRows
    keep_K: Tensor
    target_K: Tensor
    turn_K: Tensor
    token_K: Tensor
    group_K: Tensor
    logprob_K: Tensor
    temperature_K: Tensor | None
    layout: Layout
    old_logprob_K: Tensor
    advantage_K: Tensor | None = None
    weight_K: Tensor | None = None
    old_value_K: Tensor | None = None
    return_K: Tensor | None = None
    first_K: Tensor | None = None
    padding: bool = False

    @property
    def tokens(self) -> int:
        return len(self.ids_T)

    def to(self, device: torch.device | str) -> MicroBatch:
        """The same on ``device``."""
        if torch.device(device).type == "cpu":
            return self
        tensors = {f.name: value for f in fields(self) if isinstance(value := getattr(self, f.name), Tensor)}
        moved = {name: tensor.to(device, non_blocking=True) for name, tensor in tensors.items()}
        rest = {"packed": self.packed.to(device), "layout": self.layout.to(device)}
        return replace(self, **moved, **rest)  # type: ignore[arg-type]


def micro_batch(rows: Sequence[Row]) -> MicroBatch:
    """Lay the rows one after the other on the flat token axis."""
    lengths = np.asarray([row.length for row in rows])
    start = np.cumsum(lengths) - lengths
    counts = [len(row.place_K) for row in rows]
    temperature_K = np.repeat([row.temperature for row in rows], counts).astype(np.float32)

    def as_long(parts: Sequence[np.ndarray]) -> Tensor:
        return torch.as_tensor(np.concatenate(parts), dtype=torch.long)

    turn_K, row_K = as_long([row.turn_K for row in rows]), as_long([np.repeat(np.arange(len(rows)), counts)])
    logprob_K = torch.as_tensor(np.concatenate([row.logprob_K for row in rows]))
    return MicroBatch(
        ids_T=as_long([row.ids[:-1] for row in rows]),
        packed=PackedRows(lengths.tolist()),
        keep_K=as_long([row.place_K - 1 + first for row, first in zip(rows, start, strict=True)]),
        target_K=as_long([row.ids[row.place_K] for row in rows]),
        turn_K=turn_K,
        token_K=as_long([row.token_K for row in rows]),
        group_K=as_long([np.repeat([row.group for row in rows], counts)]),
        logprob_K=logprob_K,
        temperature_K=torch.as_tensor(temperature_K) if (temperature_K != 1).any() else None,
        layout=Layout.of(turn_K, row_K),
        old_logprob_K=logprob_K,
    )


def mini_batches(rows: Sequence[Row], count: int, rng: np.random.Generator) -> Iterator[list[Row]]:
    """Split the rows at random into ``count`` parts of nearly equal size (fewer when there are fewer rows)."""
    order = rng.permutation(len(rows))
    for part in np.array_split(order, min(count, len(rows))):
        yield [rows[i] for i in part]


def micro_batches(rows: Sequence[Row], tokens: int) -> Iterator[MicroBatch]:
    """Micro-batches of rows of like length, each within ``tokens`` when padded to its longest row (or a single row)."""
    yield from map(micro_batch, cut(rows, tokens))


def cut(rows: Sequence[Row], tokens: int) -> Iterator[list[Row]]:
    """The rows of each of :func:`micro_batches`."""
    in_order = sorted(rows, key=lambda row: row.length)
    begin = 0
    while begin < len(in_order):
        # Rows are added while all fit, padded to the longest, which is the one added last.
        end = begin + 1
        while end < len(in_order) and (end + 1 - begin) * in_order[end].length <= tokens:
            end += 1
        yield in_order[begin:end]
        begin = end
