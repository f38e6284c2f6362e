"""Supervised training on rows of demonstrations; interrupted training resumes bit-identically."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from gagpo.base import durable
from gagpo.base.errors import GagpoError
from gagpo.base.progress import track
from gagpo.data import Row
from gagpo.distributed.interrupt import Interruptions
from gagpo.learning.packing import packing_of
from gagpo.model.dtypes import autocast
from gagpo.model.logprobs import token_logprobs
from gagpo.settings import RunSettings, SftSettings
from gagpo.sft.demonstrations import sft_of
from gagpo.sft.evaluator import MAX_STEPS, SftEvaluator, round_rate, rounds
from gagpo.sft.rows import RESPONSE, LabelledRow

STATE = "supervised.pt"
SAVE_SECONDS = 300.0
WEIGHT_DECAY = 0.01
BETAS = (0.9, 0.98)


class SupervisedStateError(GagpoError, ValueError):
    """A state of supervised training that cannot be read."""


@dataclass(frozen=True)
class FitCallbacks:
    """What :func:`fit` calls with the model.

    on_save: after the state was saved.
    on_best: when the evaluator measures the highest success rate so far.
    """

    on_save: Callable[[torch.nn.Module], None] = lambda _: None
    on_best: Callable[[torch.nn.Module], None] = lambda _: None


def fit(
    model: torch.nn.Module,
    rows: Sequence[LabelledRow],
    settings: RunSettings,
    quiet: bool = False,
    folder: Path | None = None,
    evaluator: SftEvaluator | None = None,
    rate: Callable[[int], float] | None = None,
    callbacks: FitCallbacks = FitCallbacks(),
) -> list[float]:
    """Train the parameters of ``model`` that require gradients, in place.

    The loss is the mean over response tokens plus ``observations`` times the mean over all other tokens.

    settings: with optimiser, learning rate and ``observations``, see :func:`gagpo.sft.derived.resolved`.
    folder: where the state is saved every five minutes, at the end and when a signal comes, and resumed from.
    evaluator: measures the model; without ``steps`` it ends the training.
    rate: learning rate of a step, from 0; :func:`cosine_rate` by default, or without ``steps`` :func:`round_rate`.

    Returns: the mean loss on response tokens of every step, in nats per token.

    Raises:
        SupervisedStateError: the state in ``folder`` is damaged.
        FloatingPointError: the loss is not finite.
    """
    sft = sft_of(settings)
    rate = rate or (lambda step: cosine_rate(sft, step) if sft.steps else round_rate(sft, step))
    state = _State(folder, model, optimizers(model, sft.optimizer or "muon"), evaluator)
    losses = state.losses
    evaluation_steps = set(rounds(sft)) if evaluator is not None else set()
    model.train()
    # The rows of the steps that are done are drawn again and skipped, so that a resumed run continues the same order.
    supply = itertools.islice(_endless(rows, np.random.default_rng([sft.seed, 1])), len(losses) * sft.batch, None)
    max_steps = sft.steps or MAX_STEPS
    may_end = sft.steps is None and evaluator is not None
    with state.keeping(), track("SFT", max_steps, "steps", quiet, done=len(losses), bound=may_end) as meter:
        while True:
            if evaluator is not None and len(losses) in evaluation_steps:
                _measure(evaluator, model, len(losses), callbacks.on_best)
            if len(losses) >= max_steps or (may_end and evaluator is not None and evaluator.enough):
                break
            if state.is_due:
                state.store()
                callbacks.on_save(model)
                model.train()
            batch = [row.row(bool(sft.observations)) for row in itertools.islice(supply, sft.batch)]
            with state.changing():
                losses.append(_step(model, batch, state.optimizers, rate(len(losses)), settings))
                if not math.isfinite(losses[-1]):
                    message = f"the loss of SFT is {losses[-1]} at step {len(losses) - 1}; lower sft.learning_rate"
                    raise FloatingPointError(message)
            meter.advance(note=f"loss {losses[-1]:.3f}")
    model.eval()
    return losses


def _measure(
    evaluator: SftEvaluator, model: torch.nn.Module, step: int, on_best: Callable[[torch.nn.Module], None]
) -> None:
    """Measure the model after ``step`` steps, unless that was done before an interruption."""
    if any(measure.step == step for measure in evaluator.measures):
        return
    count = len(evaluator.measures)
    try:
        evaluator.measure(model, step)
        if evaluator.best is evaluator.measures[-1]:
            on_best(model)
    except BaseException:
        # A resumed fit measures again: the best model may not be saved.
        del evaluator.measures[count:]
        raise
    model.train()


class _State:
    """What a fit has reached: kept every five minutes, at its end, and when a signal ends it.

    folder: None to keep nothing.
    losses: of the steps that are done.
    """

    def __init__(
        self,
        folder: Path | None,
        model: torch.nn.Module,
        optimizer_list: list[torch.optim.Optimizer],
        evaluator: SftEvaluator | None,
    ):
        self.path = None if folder is None else folder / STATE
        self.model = model
        self.optimizers = optimizer_list
        self.evaluator = evaluator
        self.losses = [] if self.path is None else _restore(self.path, model, optimizer_list, evaluator)
        self._interruptions = Interruptions(promise="the steps so far are saved")
        self._is_whole = True
        self._stored = len(self.losses)
        self._stored_at = time.monotonic()

    @property
    def is_due(self) -> bool:
        is_new = self.path is not None and len(self.losses) > self._stored
        return is_new and time.monotonic() - self._stored_at > SAVE_SECONDS

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Store the state at the end of the block, or when SIGTERM or Ctrl-C ends it."""
        if self.path is None:
            yield
            return
        with self._interruptions.watching():
            try:
                yield
                self.store()
            except (KeyboardInterrupt, SystemExit):
                if self._is_whole:
                    self.store()
                raise

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Take a step, after which a signal takes effect. A second signal leaves half a step, which is not stored."""
        with self._interruptions.deferred():
            self._is_whole = False
            yield
            self._is_whole = True

    def store(self) -> None:
        """Write the state unless it is written."""
        if self.path is not None and len(self.losses) > self._stored:
            _store(self.path, self.model, self.optimizers, self.losses, self.evaluator)
            self._stored = len(self.losses)
            self._stored_at = time.monotonic()


def _step(
    model: torch.nn.Module,
    batch: Sequence[Row],
    optimizer_list: Sequence[torch.optim.Optimizer],
    rate: float,
    settings: RunSettings,
) -> float:
    """Take one optimiser step; returns the mean loss on response tokens before it."""
    loss = _accumulate(model, batch, settings)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizer_list:
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return loss


def cosine_rate(sft: SftSettings, step: int) -> float:
    """The learning rate with a fixed number of steps: rises over the first twentieth and falls along a cosine."""
    steps = sft.steps or MAX_STEPS
    risen = min(1.0, (step + 1) / max(1, steps // 20))
    return (sft.learning_rate or 0.0) * risen * (0.5 * (1.0 + math.cos(math.pi * step / steps)))


def _accumulate(model: torch.nn.Module, rows: Sequence[Row], settings: RunSettings) -> float:
    """Add the gradients of one batch; returns its mean loss on response tokens."""
    num_responses = sum(int((row.turn_K == RESPONSE).sum()) for row in rows)
    num_other = max(1, sum(len(row.turn_K) for row in rows) - num_responses)
    total = 0.0
    for micro_batch in packing_of(model, settings).micro_batches(rows):
        batch = micro_batch.to(settings.device)
        with autocast(settings.device, settings.training.dtype):
            logprob_K, _ = token_logprobs(model, batch, entropy="none")
        # Both means run over the whole batch, so that the gradients of micro-batches add up.
        response_K = batch.turn_K == RESPONSE
        loss = -logprob_K[response_K].sum() / num_responses
        total += loss.item()
        (loss - (sft_of(settings).observations or 0.0) * logprob_K[~response_K].sum() / num_other).backward()
    return total


def optimizers(model: torch.nn.Module, kind: str = "muon") -> list[torch.optim.Optimizer]:
    """AdamW; with the kind ``muon``, Muon for the matrices between layers and AdamW for all else, at the same rate.

    Muon's steps are scaled to the size of AdamW's (Liu et al. 2025, arXiv 2502.16982). On a CPU its orthogonalisation
    of large matrices takes several times as long as the gradients.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if kind == "adamw":
        return [torch.optim.AdamW(trained, weight_decay=WEIGHT_DECAY, betas=BETAS)]
    embedded = {id(p) for m in model.modules() if isinstance(m, torch.nn.Embedding) for p in m.parameters()}
    embedded |= {id(p) for p in model.get_output_embeddings().parameters()}  # type: ignore[operator]
    matrices = [p for p in trained if p.ndim == 2 and id(p) not in embedded]
    matrix_ids = {id(p) for p in matrices}
    remaining = [p for p in trained if id(p) not in matrix_ids]
    muon = torch.optim.Muon(matrices, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")
    return [muon, torch.optim.AdamW(remaining, weight_decay=WEIGHT_DECAY, betas=BETAS)]


def _endless(rows: Sequence[LabelledRow], rng: np.random.Generator) -> Iterator[LabelledRow]:
    """All rows in random order, repeatedly; each pass in another order."""
    while True:
        yield from (rows[i] for i in rng.permutation(len(rows)))


def _store(
    path: Path,
    model: torch.nn.Module,
    optimizer_list: list[torch.optim.Optimizer],
    losses: list[float],
    evaluator: SftEvaluator | None,
) -> None:
    state = {"model": model.state_dict(), "optimizers": [o.state_dict() for o in optimizer_list], "losses": losses}
    if evaluator is not None:
        state["measures"] = evaluator.state()
    with durable.replacing(path) as fresh:
        torch.save(state, fresh)


def _restore(
    path: Path, model: torch.nn.Module, optimizer_list: list[torch.optim.Optimizer], evaluator: SftEvaluator | None
) -> list[float]:
    """Load the stored state; returns the losses so far, [] if nothing is stored."""
    if not path.exists():
        return []
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        model.load_state_dict(state["model"])
        for optimizer, optimizer_state in zip(optimizer_list, state["optimizers"], strict=True):
            optimizer.load_state_dict(optimizer_state)
        if evaluator is not None:
            evaluator.restore(state["measures"])
        return [float(loss) for loss in state["losses"]]
    except Exception as error:  # torch raises whatever the damaged bytes lead to
        raise SupervisedStateError(
            f"cannot be read ({type(error).__name__})", where=path, advice="delete it to start SFT again"
        ) from None
