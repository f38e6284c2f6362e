"""Values that are not finite."""

from __future__ import annotations

import torch
from torch import Tensor

from gagpo.objectives.layout import Layout


def held(value: Tensor, limit: float) -> Tensor:
    """Clamp to ``±limit``, without gradient beyond; NaN where ``value`` is not finite.

    >>> held(torch.tensor([3.0, -30.0, float("inf"), float("-inf")]), 20.0).tolist()
    [3.0, -20.0, nan, nan]
    """
    return torch.clamp(value, -limit, limit) + 0.0 * value.detach()


def find_nonfinite(layout: Layout, **tensors: Tensor | None) -> tuple[str, list[int]] | None:
    """The first token tensor with NaN or infinity: a message and the row numbers; None if all are finite.

    Give the tensors in order of computation. Reads them: call it after a non-finite loss.
    """
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        bad_K = torch.nonzero(~torch.isfinite(tensor.detach())).flatten()
        if len(bad_K):
            rows = torch.unique(layout.row_K[bad_K]).tolist()
            place = int(bad_K[0])
            value = float(tensor[place])
            return f"{name} has {len(bad_K)} values that are not finite; the first, token {place}, is {value}", rows
    return None
