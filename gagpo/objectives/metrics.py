"""From metric sums to logged numbers.

The loss returns sums as tensors on the device. They become numbers here, once per update: each reading waits for all
work that the device has queued.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

PER_TOKEN = ("approx_kl", "kl", "entropy", "mismatch_kl", "mismatch_weight", "masked_tokens")
PER_ELEMENT = ("clip_low", "clip_high", "ratio")
LARGEST = ("mismatch_max",)


def summary(parts: Iterable[dict[str, Tensor]]) -> dict[str, float]:
    """Means over the micro-batches of the sums of :func:`policy_loss`, :func:`correction_weights`, :func:`value_loss`.

    Reads the tensors: call it once per update. Means per token: ``approx_kl`` (old - new log-probability), ``kl``,
    ``entropy``. Per ratio (of a token, action or sequence): ``ratio``, ``log_ratio_rms`` and, for gates that clip, the
    fractions ``clip_low``, ``clip_high`` and ``clip``. Of a critic: ``value_error``, ``value_clip`` (fraction) and
    ``explained_variance`` (variance).
    """
    total: dict[str, float] = {}
    for entry in parts:
        for name, value in entry.items():
            number = float(value)
            total[name] = max(total.get(name, number), number) if name in LARGEST else total.get(name, 0.0) + number
    result = {name: total[name] / total["tokens"] for name in PER_TOKEN if name in total}
    result |= {name: total[name] / total["elements"] for name in PER_ELEMENT if name in total}
    if "clip_low" in result:
        result["clip"] = result["clip_low"] + result["clip_high"]
    result |= {name: total[name] for name in LARGEST if name in total}
    if "elements" in total:
        result["log_ratio_rms"] = (total["log_ratio_squared"] / total["elements"]) ** 0.5
    return result | _value_metrics(total) if "values" in total else result


def _value_metrics(total: dict[str, float]) -> dict[str, float]:
    count = total["values"]
    error = total["value_error"] / count
    spread = total["target_squared"] / count - (total["target"] / count) ** 2
    # Without spread the fraction is undefined; a rounding error of equal targets must not divide.
    return {
        "value_error": error,
        "value_clip": total["value_clipped"] / count,
        "explained_variance": 1 - error / spread if spread > 1e-12 else 0.0,
    }
