"""One iteration's learning: from rows and advantages to optimiser steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
from torch import Tensor

from gagpo.batch import MicroBatch, Row, micro_batches, mini_batches, token_logprobs
from gagpo.objectives import Controls, Layout, Normaliser, ObjectiveSettings, find_nonfinite, policy_loss, summary


class NonFiniteLoss(FloatingPointError):
    """The loss became NaN or infinite; ``rows`` are those it came from."""

    def __init__(self, message: str, rows: list[int]):
        super().__init__(message)
        self.rows = rows


def update(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    rows: Sequence[Row],
    advantage_K: np.ndarray,
    objective: ObjectiveSettings,
    *,
    epochs: int = 1,
    minibatches: int = 1,
    microbatch_tokens: int = 16384,
    max_grad_norm: float = 1.0,
    temperature: float = 1.0,
    rng: np.random.Generator,
    reference: torch.nn.Module | None = None,
    controls: Controls | None = None,
    autocast: Callable[[], AbstractContextManager] = nullcontext,
    device: torch.device | str = "cpu",
) -> dict[str, float]:
    """Train on ``rows`` for ``epochs`` passes of ``minibatches`` optimiser steps each; returns the metrics.

    advantage_K: one per response token of the whole batch, in the order of the turns (``Credit.per_token``).
    The log-probabilities the engine sampled with are the old ones. The loss of a mini-batch is the exact mean over all
    of it, however it is cut into micro-batches. Raises :class:`NonFiniteLoss` before the weights are touched.
    """
    advantages = torch.as_tensor(advantage_K, dtype=torch.float32, device=device)
    parts: list[dict[str, Tensor]] = []
    losses, norms = [], []
    begun, tokens = time.perf_counter(), 0
    model.train()
    for _ in range(epochs):
        for mini in mini_batches(rows, minibatches, rng):
            micros = list(micro_batches(mini, microbatch_tokens, device))
            layouts = [Layout.of(micro.turn_K, micro.row_K) for micro in micros]
            normaliser = Normaliser.total(layout.normaliser for layout in layouts)
            loss_of_mini = torch.zeros((), device=device)
            for micro, layout in zip(micros, layouts, strict=True):
                reference_K = _reference(reference, micro, temperature, autocast)
                with autocast():
                    logprob_K, entropy_K = token_logprobs(model, micro, temperature)
                advantage = advantages[micro.token_K]
                loss, metrics = policy_loss(
                    logprob_K,
                    micro.logprob_K,
                    advantage,
                    layout,
                    objective,
                    normaliser,
                    controls,
                    reference_K,
                    entropy_K,
                )
                loss.backward()
                loss_of_mini += loss.detach()
                parts.append(metrics)
                tokens += micro.tokens
                if not torch.isfinite(loss):
                    optimizer.zero_grad(set_to_none=True)
                    raise _blame(micro, layout, logprob_K, advantage)
            norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)))
            if not np.isfinite(norms[-1]):
                optimizer.zero_grad(set_to_none=True)
                raise NonFiniteLoss(f"the gradient's norm is {norms[-1]}; no step was taken", [])
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            losses.append(float(loss_of_mini))
    model.eval()
    seconds = time.perf_counter() - begun
    return {
        **summary(parts),
        "loss": float(np.mean(losses)),
        "grad_norm": float(np.mean(norms)),
        "updates": float(len(losses)),
        "train_tokens_per_second": tokens / seconds,
    }


@torch.no_grad()
def _reference(
    reference: torch.nn.Module | None, micro: MicroBatch, temperature: float, autocast: Callable
) -> Tensor | None:
    if reference is None:
        return None
    with autocast():
        return token_logprobs(reference, micro, temperature, entropy=False)[0]


def _blame(micro: MicroBatch, layout: Layout, logprob_K: Tensor, advantage_K: Tensor) -> NonFiniteLoss:
    found = find_nonfinite(layout, logprob=logprob_K, old_logprob=micro.logprob_K, advantage=advantage_K)
    message, rows = found or ("the loss is not finite although its inputs are", [])
    turns = sorted({int(turn) for row in rows for turn in micro.turn_K[layout.row_K == row].tolist()})
    return NonFiniteLoss(f"{message}; the weights were left as they were", turns)
