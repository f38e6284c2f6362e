"""Round matrices to few bits, so that they pack well."""

from __future__ import annotations

import torch
from torch import Tensor


@torch.no_grad()
def round_rows(weights: Tensor, bits: int) -> Tensor:
    """The matrix with each weight rounded to a signed integer of ``bits`` bits times its row's power of two."""
    largest_integer = 2 ** (bits - 1) - 1
    largest = weights.abs().amax(-1, keepdim=True).clamp(min=1e-12)
    unit = torch.exp2(torch.ceil(torch.log2(largest / largest_integer)))
    return torch.round(weights / unit) * unit
