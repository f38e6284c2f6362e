"""Sampling from models that flat attention does not support: recurrent, hybrid, or with attention of their own.

Prompts of equal length are read together without padding and decoded with the family's own cache if a check shows that
it works; otherwise every token reads its row again, which is slow.

A recurrent state cannot be cut back to an earlier token, so no prompt's state serves another prompt. Rows of one length
need no padding, which a recurrent layer would read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from gagpo.agents.engines.offers import serving_engine
from gagpo.agents.engines.transformers import PREFILL_TOKENS, DecodingRow, TransformersEngine
from gagpo.model.attention_check import tolerance_of, worst
from gagpo.model.flat.attention import is_flat
from gagpo.model.loading import ModelError

CACHES = ("past_key_values", "cache_params")  # names of the states that families return
PIECES = (3, 2, 2)  # tokens read at a time to check a cache


def transformers_engine(
    model: torch.nn.Module,
    tokenizer: Any,
    max_length: int | None = None,
    *,
    dtype: str | None = None,
    own_weights: bool = False,
    draft_tokens: int = 0,
) -> TransformersEngine:
    """The transformers engine for this model; arguments as of :class:`TransformersEngine`.

    Models without flat attention draft nothing: a recurrent state cannot drop the tokens of a wrong draft.
    """
    if not is_flat(model):
        return GeneralEngine(model, tokenizer, max_length, dtype=dtype, own_weights=own_weights)
    return TransformersEngine(
        model, tokenizer, max_length, dtype=dtype, own_weights=own_weights, draft_tokens=draft_tokens
    )


@dataclass
class _Group:
    """Rows of one length: the tokens they have read, and the model's state after them."""

    rows: list[DecodingRow]
    ids_BL: torch.Tensor
    state: dict[str, object] = field(default_factory=dict)


class GeneralEngine(TransformersEngine):
    """Samples with the model's own forward pass. Sessions keep no cache: every prompt is read whole."""

    def _clear_caches(self) -> None:
        self._groups: list[_Group] = []
        self._incremental: bool | None = None

    def release(self, session: int) -> None:
        """Drop the session's requests under way."""
        self._new = [row for row in self._new if row.request.session != session]
        self._rows = [row for row in self._rows if row.request.session != session]

    def _cache_row(self, row: DecodingRow) -> None:
        """Do nothing: no cache is kept after a response."""

    def _read(self, rows: Sequence[DecodingRow]) -> torch.Tensor:
        by_length: dict[int, list[DecodingRow]] = {}
        for row in rows:
            by_length.setdefault(len(row.request.prompt_ids), []).append(row)
        logits: dict[int, torch.Tensor] = {}
        for length, same_length in by_length.items():
            chunk_rows = max(1, PREFILL_TOKENS // length)
            for begin in range(0, len(same_length), chunk_rows):
                chunk = same_length[begin : begin + chunk_rows]
                ids_BL = self._tensor(np.stack([row.request.prompt_ids for row in chunk]))
                group = _Group(chunk, ids_BL[:, :0])
                self._groups.append(group)
                logits |= zip(map(id, chunk), self._run(group, ids_BL), strict=True)
        return torch.stack([logits[id(row)] for row in rows])

    def _advance(self) -> torch.Tensor:
        live = {id(row) for row in self._rows}
        self._groups = [group for group in self._groups if any(id(row) in live for row in group.rows)]
        logits: dict[int, torch.Tensor] = {}
        for group in self._groups:
            # Finished rows stay in the group and read any token until the last row of the group is finished.
            token_B = [row.ids[row.count - 1] if id(row) in live else 0 for row in group.rows]
            logits |= zip(map(id, group.rows), self._run(group, self._tensor(token_B)[:, None]), strict=True)
        return torch.stack([logits[id(row)] for row in self._rows])

    def _run(self, group: _Group, new_BL: torch.Tensor) -> torch.Tensor:
        """Read ``new_BL`` after what the group has read; returns logits ``(B, V)`` after the last."""
        if self._incremental is None:
            self._incremental = self._reads_in_pieces()
        group.ids_BL = torch.cat([group.ids_BL, new_BL], 1)
        if not self._incremental:
            logits_BV: torch.Tensor = self.model(input_ids=group.ids_BL, use_cache=False).logits[:, -1].float()
            return logits_BV
        return self._step_state(group.state, new_BL)[:, -1]

    def _step_state(self, state: dict[str, object], new_BL: torch.Tensor) -> torch.Tensor:
        out = self.model(input_ids=new_BL, use_cache=True, **state)
        for name in CACHES:
            if getattr(out, name, None) is not None:
                state[name] = getattr(out, name)
        if not state:
            raise ModelError(
                "returns no cache", where=type(self.model).__name__, advice=f"sample with {serving_engine()}"
            )
        logits_BLV: torch.Tensor = out.logits.float()
        return logits_BLV

    def _reads_in_pieces(self) -> bool:
        """Whether reading a row in pieces gives the same as reading it at once."""
        total = sum(PIECES)
        vocabulary = len(self.model.get_input_embeddings().weight)  # type: ignore[operator]
        ids = self._tensor(np.arange(3, 3 + 2 * total).reshape(2, total) % vocabulary)

        def read_whole() -> list[torch.Tensor]:
            return [self.model(input_ids=ids, use_cache=False).logits.float().log_softmax(-1)]

        # Tried and not looked up by family: a model's code may be anyone's.
        expected = read_whole()
        state: dict[str, object] = {}
        try:
            chunks = [self._step_state(state, chunk).log_softmax(-1) for chunk in ids.split(PIECES, 1)]
        except Exception:  # the family's code may raise anything
            return False
        return worst([torch.cat(chunks, 1)], expected) <= tolerance_of(self.model, expected, read_whole)

    def _tensor(self, ids: ArrayLike) -> torch.Tensor:
        return torch.as_tensor(np.asarray(ids), dtype=torch.long, device=self.device)
