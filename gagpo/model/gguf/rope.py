"""Rotary positions of a GGUF file, as the ``rope_parameters`` of a config.

llama.cpp turns pair ``i`` of a head at position ``p`` by ``p / (factor_i * base**(2 i / head_dim))``. The factors come
from the metadata ``rope.scaling.*`` (all equal, or YaRN's), or from the tensor ``rope_freqs.weight``, into which its
converter writes those of Llama 3.1 and later.

Source of the formulas: YaRN, arXiv 2309.00071; ``_compute_llama3_parameters`` in transformers' modeling_rope_utils.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from gagpo.model.gguf.file import ConversionError, GgufFile

FACTORS = "rope_freqs.weight"
BASE = 10000.0  # llama.cpp's default
LLAMA3_CONTEXT = 8192  # of the published models; of this and its two factors only the ratios count
TOLERANCE = 1e-5  # relative, for factors in float32

Waves = np.ndarray  # float64[head_dim / 2], wavelengths in tokens


def rope_parameters(file: GgufFile, head_dim: int, context: int) -> dict[str, Any]:
    """The rotary positions of ``file``.

    head_dim: numbers of an attention head.
    context: most positions.

    Raises: ConversionError for a kind of scaling, or for factors, that a config cannot express.
    """
    value = _values(file)
    base = float(value("freq_base", BASE))
    if not base > 1:
        raise ConversionError(
            f"{file.architecture}.rope.freq_base must be above 1 (got {base})",
            key=f"{file.architecture}.rope.freq_base",
            where=file.path,
        )
    scaling = _by_metadata(file, value, context)
    if FACTORS in file.tensors:
        factors = file.numbers(FACTORS).astype(np.float64)
        original = int(value("scaling.original_context_length", 0)) or min(LLAMA3_CONTEXT, max(1, context // 2))
        by_tensor = _by_factors(file, factors, base, head_dim, original)
        if scaling["rope_type"] != "default" and by_tensor["rope_type"] != "default":
            raise ConversionError(
                (
                    f"positions are scaled by {FACTORS} and by {file.architecture}.rope.scaling.type "
                    f"{scaling['rope_type']}: both together are not supported"
                ),
                where=file.path,
            )
        scaling = by_tensor if by_tensor["rope_type"] != "default" else scaling
    return {"rope_theta": base, **scaling}


def _values(file: GgufFile) -> Callable[[str, Any], Any]:
    """A function from a key below ``rope.`` and a default to the value."""

    def value(name: str, default: Any) -> Any:
        key = f"{file.architecture}.rope.{name}"
        stored = file.metadata.get(key, default)
        if type(stored) is not type(default) and not (isinstance(stored, int) and isinstance(default, float)):
            raise ConversionError(
                f"{key} must be of type {type(default).__name__} (got {stored!r:.40})", key=key, where=file.path
            )
        if isinstance(stored, float) and not math.isfinite(stored):
            raise ConversionError(f"{key} is not a finite number (got {stored})", key=key, where=file.path)
        return stored

    return value


def _by_metadata(file: GgufFile, value: Callable[[str, Any], Any], context: int) -> dict[str, Any]:
    """The scaling that ``rope.scaling.*`` describes."""
    factor = float(value("scaling.factor", 0.0) or value("scale_linear", 0.0) or 1.0)
    scaling = str(value("scaling.type", "linear"))
    if scaling == "none" or (scaling == "linear" and factor == 1.0):
        return {"rope_type": "default"}
    if scaling not in ("linear", "yarn"):
        raise ConversionError(
            f"{file.architecture}.rope.scaling.type {scaling!r:.40} is not supported, only none, linear, yarn",
            key=f"{file.architecture}.rope.scaling.type",
            where=file.path,
        )
    if factor < 1.0:
        raise ConversionError(
            f"the factor of rope.scaling must be at least 1 (got {factor:g})", key="rope.scaling", where=file.path
        )
    if scaling == "linear":
        return {"rope_type": "linear", "factor": factor}
    unsupported = {"yarn_ext_factor": 1.0, "yarn_log_multiplier": 0.0}
    for name, neutral in unsupported.items():
        if value(f"scaling.{name}", neutral) != neutral:
            raise ConversionError(
                f"{file.architecture}.rope.scaling.{name} is not supported",
                key=f"{file.architecture}.rope.scaling.{name}",
                where=file.path,
            )
    fast, slow = float(value("scaling.yarn_beta_fast", 32.0)), float(value("scaling.yarn_beta_slow", 1.0))
    if not fast > slow > 0:
        raise ConversionError(
            "rope.scaling.yarn_beta_fast must be above yarn_beta_slow, and that above 0",
            key="rope.scaling.yarn_beta_fast",
            where=file.path,
        )
    # llama.cpp multiplies YaRN's own factor of the attention by these two.
    more = value("scaling.attn_factor", 1.0) * value("scaling.yarn_attn_factor", 1.0)
    return {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": int(value("scaling.original_context_length", 0)) or context,
        "attention_factor": float(more * (0.1 * math.log(factor) + 1.0)),
        "beta_fast": fast,
        "beta_slow": slow,
    }


def _by_factors(file: GgufFile, factors: np.ndarray, base: float, head_dim: int, original: int) -> dict[str, Any]:
    """The scaling that divides every frequency by its factor."""
    if factors.shape != (head_dim // 2,):
        raise ConversionError(
            f"tensor {FACTORS} has shape {list(factors.shape)}, a head needs [{head_dim // 2}]", where=file.path
        )
    if np.allclose(factors, 1.0, rtol=TOLERANCE):
        return {"rope_type": "default"}
    if np.allclose(factors, factors[0], rtol=TOLERANCE) and factors[0] > 1:
        return {"rope_type": "linear", "factor": _rounded(factors[0])}
    waves = 2 * math.pi * base ** (2 * np.arange(len(factors)) / head_dim)
    factor = _rounded(factors.max())
    sensible = factors.min() >= 1 - TOLERANCE and factor > 1
    for longest, shortest in _boundaries(factors, waves, factor) if sensible else ():
        for parameters in _llama3(factor, longest, shortest, original):
            if np.allclose(llama3_factors(parameters, waves), factors, rtol=TOLERANCE, atol=0):
                return {"rope_type": "llama3", **parameters}
    raise ConversionError(
        f"the factors of tensor {FACTORS} are not those of the rope scaling of Llama 3.1: not supported",
        where=file.path,
    )


def llama3_factors(parameters: dict[str, Any], waves: Waves) -> np.ndarray:
    """By how much the scaling ``llama3`` divides each frequency."""
    low, high = parameters["low_freq_factor"], parameters["high_freq_factor"]
    smooth = (parameters["original_max_position_embeddings"] / waves - low) / (high - low)
    factors: np.ndarray = 1 / ((1 - smooth.clip(0, 1)) / parameters["factor"] + smooth.clip(0, 1))
    return factors


def _boundaries(factors: np.ndarray, waves: Waves, factor: float) -> Iterator[tuple[float, float]]:
    """Wavelengths above which all, and below which none, of the scaling applies.

    Between them the share of the unscaled frequency is linear in 1 / wavelength.
    """
    share = (1 / factors - 1 / factor) / (1 - 1 / factor)
    between = np.flatnonzero((share > TOLERANCE) & (share < 1 - TOLERANCE))
    if len(between) >= 2:
        first, last = between[0], between[-1]
        slope = (share[first] - share[last]) / (1 / waves[first] - 1 / waves[last])
        lowest = 1 / waves[last] - share[last] / slope if slope > 0 else 0.0
        if lowest > 0:
            yield 1 / lowest, 1 / (lowest + 1 / slope)
        return
    if len(between) == 1:
        # One equation for two boundaries: any longer one that leaves the neighbours at their ends will do.
        boundary = between[0]
        for longest in np.geomspace(waves[boundary], waves[min(boundary + 1, len(waves) - 1)], 34)[1:-1]:
            yield longest, 1 / (1 / longest + (1 / waves[boundary] - 1 / longest) / share[boundary])
        return
    last = int(np.flatnonzero(share > 0.5).max(initial=0))
    if last + 1 < len(waves):
        ratio = waves[last + 1] / waves[last]
        yield waves[last] * ratio ** (2 / 3), waves[last] * ratio ** (1 / 3)


def _llama3(factor: float, longest: float, shortest: float, original: int) -> Iterator[dict[str, Any]]:
    """The scaling between two wavelengths, with round numbers first. original: any number of positions."""
    for digits in (0, 1, 2, 4, 8, 16):
        low, high = round(original / longest, digits), round(original / shortest, digits)
        if 0 < low < high:
            yield {
                "factor": factor,
                "low_freq_factor": low,
                "high_freq_factor": high,
                "original_max_position_embeddings": original,
            }


def _rounded(factor: float) -> float:
    """A factor without the error of float32."""
    return float(f"{factor:.6g}")
