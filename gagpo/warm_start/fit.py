"""Supervised training on rows of demonstrations, which can be stopped at any moment and gone on with."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from gagpo.base import durable
from gagpo.base.errors import GagpoError
from gagpo.base.progress import track
from gagpo.learning.batch import Row
from gagpo.learning.logprobs import token_logprobs
from gagpo.learning.packing import packing_of
from gagpo.learning.precision import autocast
from gagpo.learning.steps.optimizer import hidden_matrices, muon, warm_start_rate
from gagpo.settings import RunSettings
from gagpo.settings.warm_start import WarmStartSettings
from gagpo.warm_start.panel import Panel, round_rate, rounds

RESPONSE, PROMPT, STRAY = 0, 1, 2
STATE = "supervised.pt"

Saver = Callable[[torch.nn.Module, int], None]
"""Called with the model and the number of steps done, whenever a state has been written."""


class SupervisedStateError(GagpoError, ValueError):
    """A state of supervised training that cannot be gone on with; the message names the file."""


def fit(
    model: torch.nn.Module,
    rows: Sequence[Row],
    settings: RunSettings,
    quiet: bool = False,
    folder: Path | None = None,
    on_save: Saver | None = None,
    panel: Panel | None = None,
) -> list[float]:
    """Train ``model`` in place; returns the mean loss on response tokens (nats per token) of every step.

    The loss is that mean plus ``observations`` times the mean over all other tokens; the learning rate is that of
    :func:`gagpo.learning.steps.optimizer.warm_start_rate`, or without ``steps`` of
    :func:`gagpo.warm_start.panel.round_rate`.
    A ``panel`` measures the model at the end of its rounds, and without ``steps`` it ends the training. With a
    ``folder`` the state is written there every ``save_minutes`` and gone on with if there is one; what comes out is the
    same, interrupted or not. Raises :class:`SupervisedStateError` for a damaged state.
    """
    warm = settings.warm_start
    assert warm is not None
    pair = optimizers(model)
    losses: list[float] = _restore(folder / STATE, model, pair, panel) if folder is not None else []
    ends = set(rounds(warm)) if panel is not None else set()
    model.train()
    supply = itertools.islice(_endless(rows, np.random.default_rng([warm.seed, 1])), len(losses) * warm.batch, None)
    saved = time.monotonic()
    with track("warm start", warm.bound, "steps", quiet) as meter:
        for _ in losses:
            meter.advance()
        for step in range(len(losses), warm.bound):
            if warm.steps is None and panel is not None and panel.enough:
                break
            # Gradients of the next episodes, and a step of both optimisers at the step's rate.
            loss = _accumulate(model, [_predicted(row, warm) for row in itertools.islice(supply, warm.batch)], settings)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for optimizer in pair:
                for group in optimizer.param_groups:
                    group["lr"] = warm_start_rate(warm, step) if warm.steps else round_rate(warm, step)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            losses.append(loss)
            meter.advance(note=f"loss {loss:.3f}")
            if not math.isfinite(loss):
                raise FloatingPointError(f"the warm start's loss became {loss} at step {step}; lower its learning_rate")

            # How good it is, and what to go on from, now and then.
            if panel is not None and step + 1 in ends:
                panel.measure(model, step + 1)
                model.train()
            if folder is not None and time.monotonic() - saved > 60 * warm.save_minutes:
                _store(folder / STATE, model, pair, losses, panel)
                if on_save is not None:
                    on_save(model, len(losses))
                    model.train()
                saved = time.monotonic()
    model.eval()
    return losses


def _accumulate(model: torch.nn.Module, rows: Sequence[Row], settings: RunSettings) -> float:
    """Add the gradients of one batch; its mean loss on response tokens."""
    assert settings.warm_start is not None
    said = sum(int((row.turn_K == RESPONSE).sum()) for row in rows)
    read = max(1, sum(len(row.turn_K) for row in rows) - said)
    total = 0.0
    for made in packing_of(model, settings).micro_batches(rows):
        batch = made.to(settings.device)
        with autocast(settings):
            logprob_K, _ = token_logprobs(model, batch, entropy="none")
        # Both means run over the whole batch, so that gradients of its micro-batches add up to its own.
        said_K = batch.turn_K == RESPONSE
        loss = -logprob_K[said_K].sum() / said
        total += loss.item()
        (loss - settings.warm_start.observations * logprob_K[~said_K].sum() / read).backward()
    return total


def optimizers(model: torch.nn.Module) -> list[torch.optim.Optimizer]:
    """Muon for the matrices between layers, AdamW for embeddings, gains and biases, at the same learning rate."""
    matrices = hidden_matrices(model)
    own = {id(p) for p in matrices}
    others = [p for p in model.parameters() if id(p) not in own]
    return [muon(matrices), torch.optim.AdamW(others, weight_decay=0.01, betas=(0.9, 0.98))]


def everything(row: Row) -> Row:
    """The row with every token but the first to be predicted; ``turn_K`` tells what is said from what is read.

    Responses that are :data:`STRAY` in the row are left out.
    """
    kind_L = np.full(len(row.ids), PROMPT)
    kind_L[row.place_K] = np.where(row.turn_K == STRAY, STRAY, RESPONSE)
    kind_L[0] = STRAY
    place_K = np.flatnonzero(kind_L != STRAY)
    turn_K = kind_L[place_K]
    return replace(row, place_K=place_K, turn_K=turn_K, token_K=place_K, logprob_K=np.zeros(len(place_K), np.float32))


def _predicted(row: Row, warm: WarmStartSettings) -> Row:
    if warm.observations:
        return everything(row)
    kept = row.turn_K != STRAY
    parts = {name: getattr(row, name)[kept] for name in ("place_K", "token_K", "logprob_K")}
    return replace(row, **parts, turn_K=np.full(int(kept.sum()), RESPONSE))


def _endless(rows: Sequence[Row], rng: np.random.Generator) -> Iterator[Row]:
    """Every row once, in random order, again and again."""
    while True:
        yield from (rows[i] for i in rng.permutation(len(rows)))


def _store(
    path: Path,
    model: torch.nn.Module,
    pair: list[torch.optim.Optimizer],
    losses: list[float],
    panel: Panel | None = None,
) -> None:
    state = {"model": model.state_dict(), "optimizers": [o.state_dict() for o in pair], "losses": losses}
    if panel is not None:
        state["measures"] = panel.state()
    with durable.replacing(path) as fresh:
        torch.save(state, fresh)


def _restore(
    path: Path, model: torch.nn.Module, pair: list[torch.optim.Optimizer], panel: Panel | None = None
) -> list[float]:
    """Put the stored state into model and optimizers; the losses so far, none when nothing is stored."""
    if not path.exists():
        return []
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        model.load_state_dict(state["model"])
        for optimizer, stored in zip(pair, state["optimizers"], strict=True):
            optimizer.load_state_dict(stored)
        if panel is not None:
            panel.restore(state.get("measures", []))
        return [float(loss) for loss in state["losses"]]
    except Exception as error:  # torch raises whatever the damaged bytes lead to
        raise SupervisedStateError(
            f"{path} cannot be read ({type(error).__name__}); delete it to begin the warm start anew"
        ) from None
