"""Values that are not finite.

Log-ratios are bounded, since one token may be thousands of times likelier than before and a single infinity would make
every weight NaN. Values that were not finite to begin with stay visible: they are faults, and the step is skipped.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gagpo.objectives.layout import Layout

LOG_RATIO_LIMIT = 20.0
"""Bound of log-ratios: exp(20) and its square are finite in float32."""


def clamped_log_ratio(log_ratio: Tensor) -> Tensor:
    """Clamp log-ratios to ±20, without gradient beyond; NaN where they are not finite.

    >>> clamped_log_ratio(torch.tensor([3.0, -30.0, float("inf"), float("-inf")])).tolist()
    [3.0, -20.0, nan, nan]
    """
    # A clamp alone would turn an infinity into the limit and hide it; 0 times infinity is NaN.
    return torch.clamp(log_ratio, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT) + 0.0 * log_ratio.detach()


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
            offset = int(bad_K[0])
            value = float(tensor[offset])
            return f"{name} has {len(bad_K)} values that are not finite; the first, token {offset}, is {value}", rows
    return None
