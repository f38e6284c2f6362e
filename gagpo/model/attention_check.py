"""Check that a model gives the log-probabilities of eager attention on single rows.

Two rows of different lengths are read together, as in training, and again in pieces into a cache, as in sampling.
Leaking state, positions that depend on the batch, and unsupported parts of attention change log-probabilities by nats;
rounding changes them by millionths in float32. In other formats rounding changes them by tenths of a nat, and more if
logits are large, so it is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from gagpo.base.errors import first_line
from gagpo.model.flat.attention import forward
from gagpo.model.flat.packed import PackedRows
from gagpo.model.flat.slots import SlotCache
from gagpo.model.shape import config_of

LENGTHS = (5, 11)
WINDOW = 4  # sliding windows are narrowed to this, since the rows are short
TOLERANCE = 1e-3  # of a log-probability, in float32
ROUNDED = 0.5  # in other formats: minimum tolerance
NOISE = 2.0  # in other formats: tolerance per nat of measured rounding
KNOWN_LAYERS = {"full_attention", "sliding_attention"}


@torch.no_grad()
def flat_error(model: torch.nn.Module) -> str:
    """Why the model cannot use flat attention, '' if it can."""
    unknown = set(getattr(config_of(model).get_text_config(), "layer_types", None) or ()) - KNOWN_LAYERS
    if unknown:
        return f"layers of kind {', '.join(sorted(unknown))}"
    with _narrow_windows(model):
        expected = eager_logprobs(model)
        return _compare(model, expected, {"rows read together": _packed, "a cache": _cached})


@torch.no_grad()
def padded_error(model: torch.nn.Module) -> str:
    """Why padded rows in the model's own attention differ from single rows, '' if they do not."""
    return _compare(model, eager_logprobs(model), {"padded rows": _packed})


def _compare(
    model: torch.nn.Module, expected: list[Tensor], ways: dict[str, Callable[[torch.nn.Module], list[Tensor]]]
) -> str:
    limit = tolerance_of(model, expected, lambda: eager_logprobs(model))
    for way, read in ways.items():
        try:
            logprobs = read(model)
        except (ValueError, TypeError, RuntimeError, AttributeError, LookupError) as failure:
            return f"{way}: {type(failure).__name__}: {first_line(failure, 160)}"
        error = worst(logprobs, expected)
        if not error <= limit:
            return f"{way}: log-probabilities are {error:.2g} nats off, where rounding explains {limit:.2g}"
    return ""


def tolerance_of(model: torch.nn.Module, expected: list[Tensor], read: Callable[[], list[Tensor]]) -> float:
    """By how much log-probabilities of a correct pass may differ from ``expected``, which ``read`` returned."""
    if next(model.parameters()).dtype == torch.float32:
        return TOLERANCE
    with _rounded_at_random(model):
        rounding = worst(read(), expected)
    return max(ROUNDED, NOISE * rounding)


def worst(actual: list[Tensor], expected: list[Tensor]) -> float:
    """The largest difference between two lists of tensors."""
    return max(float((x - y).abs().max()) for x, y in zip(actual, expected, strict=True))


@contextmanager
def _rounded_at_random(model: torch.nn.Module) -> Iterator[None]:
    """A context in which the output of every module is rounded at random, which shows what rounding changes.

    Source: Monte Carlo arithmetic (Parker 1997).
    """
    generator = torch.Generator(next(model.parameters()).device).manual_seed(0)

    def rounded(module: torch.nn.Module, inputs: object, output: object) -> Tensor | None:
        if not isinstance(output, Tensor) or not output.is_floating_point():
            return None
        unit = torch.finfo(output.dtype).eps / 2
        noise = torch.empty(output.shape, device=output.device).uniform_(-unit, unit, generator=generator)
        return (output.float() * (1 + noise)).to(output.dtype)

    hooks = [module.register_forward_hook(rounded) for module in model.modules()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def rows_of(model: torch.nn.Module) -> list[Tensor]:
    """Two rows of tokens in every vocabulary."""
    weight = model.get_input_embeddings().weight  # type: ignore[operator]
    rng = np.random.default_rng(0)
    high = min(len(weight), 1000)
    return [torch.as_tensor(rng.integers(min(3, high - 1), high, n), device=weight.device) for n in LENGTHS]


@torch.no_grad()
def eager_logprobs(model: torch.nn.Module) -> list[Tensor]:
    """Log-probabilities ``(length, vocabulary)`` of each row alone in eager attention."""
    with _attention(model, "eager"):
        return [model(input_ids=row[None], use_cache=False).logits[0].float().log_softmax(-1) for row in rows_of(model)]


def _packed(model: torch.nn.Module) -> list[Tensor]:
    rows = rows_of(model)
    layout = PackedRows(LENGTHS, rows[0].device)
    keep = torch.arange(sum(LENGTHS), device=rows[0].device)
    return list(forward(model, torch.cat(rows), layout, keep).float().log_softmax(-1).split(LENGTHS))


def _cached(model: torch.nn.Module) -> list[Tensor]:
    """Read both rows into a cache in three steps: some tokens, one token each as in decoding, the rest."""
    rows = rows_of(model)
    cache = SlotCache.of(model)
    cache.reserve(len(rows), max(LENGTHS) + 1)
    done = np.zeros(len(rows), np.int64)
    logprobs: list[list[Tensor]] = [[] for _ in rows]
    for step in (np.array([2, 4]), np.array([1, 1]), np.array(LENGTHS) - [3, 5]):
        cache.plan(np.arange(len(rows)), done, step)
        ids = torch.cat([row[a : a + n] for row, a, n in zip(rows, done, step, strict=True)])
        keep = torch.arange(len(ids), device=ids.device)
        chunks = forward(model, ids, cache, keep).float().log_softmax(-1).split(step.tolist())
        for column, chunk in zip(logprobs, chunks, strict=True):
            column.append(chunk)
        done = done + step
    return [torch.cat(column) for column in logprobs]


@contextmanager
def _attention(model: torch.nn.Module, name: str) -> Iterator[None]:
    before = config_of(model)._attn_implementation
    model.set_attn_implementation(name)  # type: ignore[operator]
    try:
        yield
    finally:
        model.set_attn_implementation(before)  # type: ignore[operator]


@contextmanager
def _narrow_windows(model: torch.nn.Module) -> Iterator[None]:
    """Narrow all sliding windows to :data:`WINDOW`: configs and modules each have a copy of the number."""
    config = config_of(model)
    name = "sliding_window"
    before: list[tuple[object, int]] = []
    owners: dict[int, object] = {id(owner): owner for owner in (config, config.get_text_config(), *model.modules())}
    for owner in owners.values():
        window = getattr(owner, name, None)
        if isinstance(window, int) and window > 0:
            before.append((owner, window))
    for owner, window in before:
        setattr(owner, name, min(WINDOW, window))
    try:
        yield
    finally:
        for owner, window in before:
            setattr(owner, name, window)
