"""From summed metrics to the numbers that are logged, and the search for what made a loss NaN."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from gagpo.objectives.layout import Layout

PER_TOKEN = ("old_kl", "kl", "entropy")
PER_ELEMENT = ("clip_low", "clip_high", "ratio")


def summary(parts: Iterable[dict[str, Tensor]]) -> dict[str, float]:
    """Means over all micro-batches of the sums that :func:`gagpo.objectives.policy_loss` returned.

    Per token: ``old_kl`` (mean of old - new log-probability), ``kl``, ``entropy``. Per element that has a ratio of its
    own: ``ratio``, ``log_ratio_rms``, and, for gates that clip, ``clip_low``, ``clip_high`` and ``clip`` (shares). This
    reads the tensors: call it once per update.
    """
    total: dict[str, float] = {}
    for part in parts:
        for name, value in part.items():
            total[name] = total.get(name, 0.0) + float(value)
    result = {name: total[name] / total["tokens"] for name in PER_TOKEN if name in total}
    result |= {name: total[name] / total["elements"] for name in PER_ELEMENT if name in total}
    if "clip_low" in result:
        result["clip"] = result["clip_low"] + result["clip_high"]
    result["log_ratio_rms"] = (total["log_ratio_squared"] / total["elements"]) ** 0.5
    return result


def find_nonfinite(layout: Layout, **tensors: Tensor) -> tuple[str, list[int]] | None:
    """The first of the named token tensors that holds NaN or infinity: a message, and the numbers of the rows.

    None when all are finite. Reads the tensors: call it when a loss has turned out not to be finite.
    """
    for name, tensor in tensors.items():
        bad_K = torch.nonzero(~torch.isfinite(tensor.detach())).flatten()
        if len(bad_K):
            rows = torch.unique(layout.row_K[bad_K]).tolist()
            place = int(bad_K[0])
            value = float(tensor[place])
            return f"{name} has {len(bad_K)} values that are not finite; the first, token {place}, is {value}", rows
    return None
