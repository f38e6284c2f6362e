"""One iteration's learning: from rows and advantages to optimiser steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gagpo.agents.engines.weights import whole
from gagpo.algorithms import Algorithm
from gagpo.credit import Targets
from gagpo.distributed.ranks import Ranks
from gagpo.distributed.sharding import within
from gagpo.learning.batch import MicroBatch, Row, mini_batches
from gagpo.learning.critic import Critic
from gagpo.learning.logprobs import hidden_of, token_logprobs
from gagpo.learning.metrics import counted, critic_summary, mismatch
from gagpo.learning.sharded_batches import Share, share
from gagpo.learning.skipped_steps import NonFiniteLoss, NonFiniteWeights, Skips
from gagpo.objectives import (
    Controls,
    Correction,
    Layout,
    Normaliser,
    correction_weights,
    find_nonfinite,
    policy_loss,
    summary,
)
from gagpo.objectives.value import value_loss


@dataclass(frozen=True)
class Work:
    """One micro-batch with all that belongs to it, made on the CPU and moved when its turn comes. Columns: float32[K].

    old_K: log-probabilities that ratios start from; weight_K: of the correction; first_K: where turns begin, as places.
    """

    micro: MicroBatch
    layout: Layout
    old_K: Tensor
    advantage_K: Tensor
    weight_K: Tensor | None = None
    value_K: Tensor | None = None
    target_K: Tensor | None = None
    first_K: Tensor | None = None

    @classmethod
    def of(cls, micro: MicroBatch, layout: Layout, targets: Targets, scored: Scored | None) -> Work:
        place_K = micro.token_K.numpy()

        def take(column: np.ndarray | None) -> Tensor | None:
            return None if column is None else torch.as_tensor(column[place_K], dtype=torch.float32)

        advantage_K = take(targets.advantage)
        assert advantage_K is not None
        old_K, weight_K = (micro.logprob_K, None) if scored is None else (take(scored.old_K), take(scored.weight_K))
        assert old_K is not None
        first_K = None if targets.first is None else torch.as_tensor(np.flatnonzero(targets.first[place_K]))
        columns = (take(targets.value), take(targets.target))
        return cls(micro, layout, old_K, advantage_K, weight_K, *columns, first_K)

    def to(self, device: torch.device | str) -> Work:
        """The same on ``device``, without waiting for it."""
        columns = (self.old_K, self.advantage_K, self.weight_K, self.value_K, self.target_K, self.first_K)
        moved = (None if x is None else x.to(device, non_blocking=True) for x in columns)
        return Work(self.micro.to(device), self.layout.to(device), *moved)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Scored:
    """The trainer's own log-probabilities before the first step, float32[K] in the order of the turns.

    weight_K: of the correction, None where all are 1. gaps: how far the sampler was from them, by micro-batch.
    """

    old_K: np.ndarray
    weight_K: np.ndarray | None
    gaps: list[dict[str, Tensor]]


class Updater:
    """Takes optimiser steps on batches of rows.

    reference: the policy that KL is measured to, where the algorithm asks for it; reference_scope: a context in which
    it is that (of a model with an adapter, the one without it). autocast: a context for forward passes.
    microbatch_tokens: most padded tokens of one forward pass; it changes memory and speed, never the result.
    max_skipped: so many steps in a row whose loss or gradient is not finite end the training; fewer are skipped.
    ranks: each is given all rows, takes its share of every mini-batch, and returns the same numbers.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        algorithm: Algorithm,
        *,
        epochs: int = 1,
        minibatches: int = 1,
        microbatch_tokens: int = 16384,
        max_grad_norm: float = 1.0,
        reference: torch.nn.Module | None = None,
        reference_scope: Callable[[], AbstractContextManager[Any]] = nullcontext,
        critic: Critic | None = None,
        autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
        device: torch.device | str = "cpu",
        max_skipped: int = 1,
        ranks: Ranks | None = None,
    ):
        self.model, self.optimizer, self.algorithm = model, optimizer, algorithm
        self.ranks = ranks or Ranks()
        self.epochs, self.minibatches, self.microbatch_tokens = epochs, minibatches, microbatch_tokens
        self.max_grad_norm = max_grad_norm
        self.reference, self.reference_scope, self.critic = reference, reference_scope, critic
        self.autocast, self.device = autocast, device
        self.parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self.skips = Skips(max_skipped)
        self.ratio_K = np.zeros(0)  # of every response token of the last batch, when it was last trained on

    def update(
        self,
        rows: Sequence[Row],
        targets: Targets,
        rng: np.random.Generator,
        controls: Callable[[Tensor], Controls] | None = None,
    ) -> dict[str, float]:
        """``epochs`` passes of ``minibatches`` optimiser steps each; returns the metrics.

        Ratios start from the log-probabilities the engine sampled with, or, where the algorithm's correction says so,
        from the trainer's own before the first step; how far the two were apart is always among the metrics
        (``mismatch_*``, of the first mini-batch where nothing is recomputed). The loss of a mini-batch is the exact
        mean over all of it, however it is cut into micro-batches. ``controls`` gives what controllers set, from the
        task group of each token.

        A step whose loss or gradient is not finite is skipped: weights and optimiser stay as they were, and its numbers
        are in no metric but ``skipped_steps``. :class:`NonFiniteLoss` is raised in place of the last skip that
        ``max_skipped`` allows, and for a parameter that is not finite after a step; the message says how many steps of
        this update had been taken before.
        """
        begun, tokens = time.perf_counter(), 0
        parts: list[dict[str, Tensor]] = []
        gaps: list[dict[str, Tensor]] = []
        losses: list[float] = []
        norms: list[float] = []
        self.skips.begin()
        self._train(True)
        try:
            batches = self._shares(rows, rng)
            # The first step's own forward pass is a scoring pass: nothing has moved. A second epoch asks for it again.
            fresh = self.epochs == 1 and self.algorithm.correction.name != "none"
            scored = self._score_first(batches[1:] if fresh else batches, len(targets.advantage))
            for epoch in range(self.epochs):
                self.ratio_K = np.ones(len(targets.advantage)) if self.ranks.alone else np.zeros(len(targets.advantage))
                if epoch:
                    batches = self._shares(rows, rng)
                for shared in batches:
                    try:
                        first = None if losses else gaps
                        loss, mini_parts = self._accumulate(shared, targets, controls, scored, first, fresh)
                        norms.append(self._step())
                    except NonFiniteLoss as error:
                        self._skip(error, shared)
                        gaps.clear()
                        continue
                    finally:
                        fresh = False
                    self.skips.taken()
                    losses.append(loss)
                    parts += mini_parts
                    tokens += shared.tokens
        except NonFiniteLoss as error:
            after = "go on from the last checkpoint" if isinstance(error, NonFiniteWeights) else _left(len(losses))
            raise NonFiniteLoss(f"{error}; {after}", error.turns) from None
        finally:
            self._train(False)
        self.ratio_K = self.ranks.total(self.ratio_K)
        steps = {"updates": float(len(losses)), "skipped_steps": float(len(self.skips.errors))}
        if not losses:
            return steps
        losses, tokens = self.ranks.total(np.asarray(losses)).tolist(), int(self.ranks.total(float(tokens)))
        parts, gaps = self._of_all(parts), self._of_all([*(scored.gaps if scored else []), *gaps])
        metrics = summary(parts)
        clipped = metrics.pop("clip", 0.0)  # a soft gate clips nothing
        return {
            **metrics,
            "clip_fraction": clipped,
            **critic_summary(parts),
            **mismatch(gaps),
            "loss": float(np.mean(losses)),
            "grad_norm": float(np.mean(norms)),
            **steps,
            "train_tokens_per_second": tokens / (time.perf_counter() - begun),
        }

    def _skip(self, error: NonFiniteLoss, shared: Share) -> None:
        """Leave out the step of a mini-batch, or raise ``error`` where that must not be."""
        self.optimizer.zero_grad(set_to_none=True)
        if not error.turns:
            error.turns = sorted({int(turn) for micro in shared for turn in micro.turn_K.tolist()})
        for micro in shared:
            self.ratio_K[micro.token_K.numpy()] = 1.0  # of tokens that were not trained on
        self.skips.skip(error)

    def _shares(self, rows: Sequence[Row], rng: np.random.Generator) -> list[Share]:
        """What this rank reads of each mini-batch of an epoch."""
        return [share(part, self.microbatch_tokens, self.ranks) for part in mini_batches(rows, self.minibatches, rng)]

    def _of_all(self, parts: list[dict[str, Tensor]]) -> list[dict[str, Tensor]]:
        """The sums of the micro-batches of all ranks."""
        if self.ranks.alone:
            return parts
        plain = [{name: float(value) for name, value in part.items()} for part in parts]
        numbers = [part for found in self.ranks.gathered(plain) for part in found]
        return [{name: torch.tensor(value, dtype=torch.float64) for name, value in part.items()} for part in numbers]

    def _train(self, on: bool) -> None:
        self.model.train(on)
        if self.critic is not None:
            self.critic.train(on)  # a backbone of its own keeps activations for the backward pass as the policy does

    @torch.no_grad()
    def score(self, rows: Sequence[Row], tokens: int, plain: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Old less present log-probability, and entropy (nats), of all response tokens, float64[K] in their order.

        Both at the temperature the tokens were sampled at, or at temperature 1 where ``plain``.
        """
        drift_K, entropy_K = np.zeros(tokens), np.zeros(tokens)
        self._train(False)

        def read(made: MicroBatch) -> tuple[Tensor, Tensor]:
            micro = made.to(self.device)
            seen = replace(micro, temperature_K=None) if plain else micro
            with self.autocast():
                logprob, entropy = within(self.model, lambda: token_logprobs(self.model, seen))
            assert entropy is not None
            return micro.logprob_K - logprob, entropy

        shared = share(rows, self.microbatch_tokens, self.ranks)
        for made in shared:
            drift, entropy = read(made)
            place_K = made.token_K.numpy()
            drift_K[place_K] = drift.double().cpu().numpy()
            entropy_K[place_K] = entropy.double().cpu().numpy()
        for blank in shared.blanks:
            read(blank)
        return self.ranks.total(drift_K), self.ranks.total(entropy_K)

    @torch.no_grad()
    def _score_first(self, batches: Sequence[Share], tokens: int) -> Scored | None:
        """The scoring pass, of a batch of ``tokens``; None where there is nothing to score.

        It reads the very micro-batches that the first steps read: in half precision the same row gives other numbers
        beside other rows, and a ratio of the untouched policy has to be 1.
        """
        correction = self.algorithm.correction
        if correction.name == "none" or not batches:
            return None

        def read(micro: MicroBatch) -> Tensor:
            with self.autocast():
                return within(self.model, lambda: token_logprobs(self.model, micro, entropy="none"))[0]

        old_K, parts = np.zeros(tokens, np.float32), []
        weight_K = np.ones(tokens, np.float32) if self.ranks.alone else np.zeros(tokens, np.float32)
        for one in (micro for shared in batches for micro in shared):
            layout = Layout.of(one.turn_K, one.row_K).to(self.device)
            micro = one.to(self.device)
            logprob_K = read(micro)
            weight, metrics = correction_weights(logprob_K, micro.logprob_K, layout, correction)
            parts.append(counted(metrics, layout))
            place_K = one.token_K.numpy()
            old_K[place_K] = logprob_K.float().cpu().numpy()
            weight_K[place_K] = 1.0 if weight is None else weight.float().cpu().numpy()
        for blank in (blank for shared in batches for blank in shared.blanks):
            read(blank.to(self.device))
        old_K, weight_K = self.ranks.total(old_K), self.ranks.total(weight_K)
        return Scored(old_K, weight_K if correction.name in ("token", "sequence") else None, parts)

    def _accumulate(
        self,
        shared: Share,
        targets: Targets,
        controls: Callable[[Tensor], Controls] | None,
        scored: Scored | None = None,
        gaps: list[dict[str, Tensor]] | None = None,
        fresh: bool = False,
    ) -> tuple[float, list[dict[str, Tensor]]]:
        """Gradients of one mini-batch; this rank's part of its loss, and the summed metrics of its micro-batches.

        gaps: takes how far the sampler was from the policy, which has not moved yet. fresh: ratios start from the very
        log-probabilities that this pass finds.
        """
        layouts = [Layout.of(micro.turn_K, micro.row_K) for micro in shared]
        normaliser = self.ranks.total(Normaliser.total(layout.normaliser for layout in layouts))
        total = torch.zeros((), device=self.device)
        parts = []
        trouble: NonFiniteLoss | None = None
        for made, segments in zip(shared, layouts, strict=True):
            work = Work.of(made, segments, targets, scored).to(self.device)
            micro, layout = work.micro, work.layout
            reference_K = self._reference(micro)
            logprob_K, entropy_K, value_K = self._read(micro)
            if gaps is not None and (fresh or scored is None):
                correction = self.algorithm.correction if fresh else Correction()
                weight_K, metrics = correction_weights(logprob_K.detach(), micro.logprob_K, layout, correction)
                gaps.append(counted(metrics, layout))
                if fresh:
                    weight_K = weight_K if correction.name in ("token", "sequence") else None
                    work = replace(work, old_K=logprob_K.detach().float(), weight_K=weight_K)
            self.ratio_K[micro.token_K.cpu().numpy()] = (logprob_K.detach() - work.old_K).exp().cpu().numpy()
            loss, metrics = policy_loss(
                logprob_K,
                work.old_K,
                work.advantage_K,
                layout,
                self.algorithm,
                normaliser,
                controls(micro.group_K) if controls else None,
                reference_K,
                entropy_K,
                work.weight_K,
            )
            if value_K is not None:
                count = normaliser.tokens if targets.first is None else normaliser.actions
                loss = loss + self._value_loss(value_K, work, count, metrics)
            if not torch.isfinite(loss):
                trouble = trouble or _blame(work, logprob_K, reference_K)
                if self.ranks.alone:
                    break
            self._backward(loss)
            total += loss.detach()
            parts.append(metrics)
        for blank in shared.blanks:
            micro = blank.to(self.device)
            self._reference(micro)
            self._backward(sum((x * 0.0).sum() for x in self._read(micro) if x is not None))  # type: ignore[arg-type]
        self._require_sound(trouble)
        return float(total), parts

    def _read(self, micro: MicroBatch) -> tuple[Tensor, Tensor, Tensor | None]:
        """Log-probabilities, entropies and, with a critic, values of the response tokens."""
        critic, bonus = self.critic, self.algorithm.entropy > 0

        def policy() -> tuple[Tensor, Tensor | None, Tensor | None]:
            hidden_KD = hidden_of(self.model, micro)
            logprob_K, entropy_K = token_logprobs(
                self.model, micro, "gradient" if bonus else "value", hidden_KD=hidden_KD
            )
            shared = critic is not None and critic.backbone is None
            return logprob_K, entropy_K, critic.values(hidden_KD) if critic is not None and shared else None

        with self.autocast():
            logprob_K, entropy_K, value_K = within(self.model, policy)
            if critic is not None and value_K is None:
                value_K = critic.read(self.model, micro)
        assert entropy_K is not None
        return logprob_K, entropy_K, value_K

    def _backward(self, loss: Tensor) -> None:
        """Add gradients. Ranks average theirs, of losses that are parts of a sum."""
        (loss if self.ranks.alone else loss * self.ranks.world).backward()

    def _require_sound(self, trouble: NonFiniteLoss | None) -> None:
        """Raise the trouble that any rank had, on all, before it reaches the weights."""
        found = self.ranks.gathered(trouble and [str(trouble), trouble.turns])
        if any(found):
            self.optimizer.zero_grad(set_to_none=True)
            if trouble is not None and self.ranks.alone:
                raise trouble
            first = next(one for one in found if one)
            raise NonFiniteLoss(first[0], sorted({turn for one in found if one for turn in one[1]}))

    def _value_loss(self, value_K: Tensor, work: Work, count: int, metrics: dict[str, Tensor]) -> Tensor:
        assert self.critic is not None
        assert work.value_K is not None and work.target_K is not None
        old_K, target_K = work.value_K, work.target_K
        if work.first_K is not None:
            value_K, old_K, target_K = (x.index_select(0, work.first_K) for x in (value_K, old_K, target_K))
        loss, value_metrics = value_loss(value_K, old_K, target_K, self.critic.settings.clip, count)
        metrics.update(value_metrics)
        return self.critic.settings.coefficient * loss

    def _step(self) -> float:
        """Clip the gradient and step; its norm before clipping."""
        norm = float(whole(torch.nn.utils.clip_grad_norm_(self.parameters, self.max_grad_norm)))
        if not np.isfinite(norm):
            raise NonFiniteLoss(f"the gradient's norm is {norm}", [])
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if not torch.isfinite(whole(torch.nn.utils.get_total_norm(self.parameters))):
            raise NonFiniteWeights("a parameter became NaN or infinite in this step; lower the learning rate", [])
        return norm

    @torch.no_grad()
    def _reference(self, micro: MicroBatch) -> Tensor | None:
        if self.reference is None:
            return None
        with self.autocast(), self.reference_scope():
            reference = self.reference
            return within(reference, lambda: token_logprobs(reference, micro, entropy="none"))[0]


def _blame(work: Work, logprob_K: Tensor, reference_K: Tensor | None) -> NonFiniteLoss:
    columns = {"logprob": logprob_K, "old_logprob": work.old_K, "advantage": work.advantage_K, "reference": reference_K}
    found = find_nonfinite(work.layout, **columns)
    message, rows = found or ("the loss is not finite although its inputs are", [])
    turns = sorted({int(turn) for row in rows for turn in work.micro.turn_K[work.layout.row_K == row].tolist()})
    return NonFiniteLoss(message, turns)


def _left(steps: int) -> str:
    if not steps:
        return "the weights were left as they were"
    return f"{steps} steps of this update had been taken before: go on from the last checkpoint"
