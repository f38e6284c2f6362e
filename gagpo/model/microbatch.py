"""The input of one forward pass: tokens on a flat axis, and columns of the response tokens that it predicts.

Several response tokens can share one prediction: rows with a common prefix read it once, and if two of them sample the
same token next, its log-probability is computed once. ``prediction_K`` expands predictions to response tokens.

All columns of a forward pass travel in one object, because they have one order of tokens: a column that was sorted
alone would give each token another one's advantage.
Shape suffixes: K response tokens, U their predictions, T flat tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from gagpo.model.flat.packed import PackedTrees
from gagpo.objectives import Layout


@dataclass(frozen=True)
class MicroBatch:
    """The tokens of one forward pass, and the columns of its response tokens. Created on the CPU.

    ids_T: the tokens read.
    packed: the attention layout.
    keep_U: flat position whose logits predict a token.
    target_U: the predicted token.
    temperature_U: its sampling temperature; None if all are 1.
    prediction_K: the prediction of each response token; None if they are one to one.
    turn_K, token_K: turn and index of each response token in the batch.
    group_K: task group of each response token.
    logprob_K: the engine's log-probability.
    layout: the actions and rows of the response tokens.
    padding: whether it is read only to give all ranks the same number of passes.

    Columns of a training step, float32[K], which the learner sets:

    old_logprob_K: denominator of the ratios.
    advantage_K: the advantage.
    weight_K: importance weight of the correction.
    old_value_K: the critic's value when the batch was sampled.
    return_K: the critic's target.
    first_K: int64, indices of the trained values; None for all.
    """

    ids_T: Tensor
    packed: PackedTrees
    keep_U: Tensor
    target_U: Tensor
    temperature_U: Tensor | None
    prediction_K: Tensor | None
    turn_K: Tensor
    token_K: Tensor
    group_K: Tensor
    logprob_K: Tensor
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
        """Number of tokens read, without rounding."""
        return self.packed.num_tokens

    def per_token(self, value_U: Tensor) -> Tensor:
        """Values of response tokens, ``(K, ...)``, from values of predictions, ``(U, ...)``."""
        return value_U if self.prediction_K is None else value_U.index_select(0, self.prediction_K)

    def to(self, device: torch.device | str) -> MicroBatch:
        """Copy to ``device`` without waiting for it."""
        if torch.device(device).type == "cpu":
            return self
        columns: dict[str, Any] = {"packed": self.packed.to(device), "layout": self.layout.to(device)}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Tensor):
                columns[field.name] = value.to(device, non_blocking=True)
        return replace(self, **columns)
