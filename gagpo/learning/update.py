"""Optimiser steps from rows and credit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from gagpo.algorithms import Algorithm
from gagpo.controllers.average import local
from gagpo.credit import Credit
from gagpo.distributed.ranks import Ranks
from gagpo.learning.batch import Row, mini_batches, normaliser_of
from gagpo.learning.forward import Critic, Networks, Scope
from gagpo.learning.logprobs import Entropy
from gagpo.learning.loss import OldLogprobs, micro_batch_loss, nonfinite_error, score, with_columns
from gagpo.learning.metrics import StepLog
from gagpo.learning.packing import MicroBatch, Packing, rank_batches, token_columns
from gagpo.learning.skipped_steps import NonFiniteLoss, NonFiniteWeights, Skips
from gagpo.model.spans import span
from gagpo.model.weights import gather
from gagpo.objectives import Controls, Normaliser, gate_weights
from gagpo.objectives.nonfinite import LOG_RATIO_LIMIT
from gagpo.objectives.policy import Metrics


@dataclass
class MiniBatch:
    """The rows of one optimiser step.

    micros: this rank's part, padding at the end; empty if no row has a gradient.
    normaliser, tokens: of all rows of all ranks, whether or not they are read.
    """

    micros: list[MicroBatch]
    normaliser: Normaliser
    tokens: int


class Updater:
    """Takes optimiser steps on batches of rows.

    reference, reference_scope, autocast: see :class:`Networks`.
    max_nonfinite_steps: number of steps in a row with a non-finite loss or gradient that ends training.
    ranks: each gets all rows, trains on its share of each mini-batch and returns the same metrics.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        algorithm: Algorithm,
        *,
        epochs: int = 1,
        minibatches: int = 1,
        packing: Packing | None = None,
        max_grad_norm: float = 1.0,
        reference: torch.nn.Module | None = None,
        reference_scope: Scope = nullcontext,
        critic: Critic | None = None,
        autocast: Scope = nullcontext,
        device: torch.device | str = "cpu",
        max_nonfinite_steps: int = 1,
        ranks: Ranks | None = None,
    ):
        self.model, self.optimizer, self.algorithm = model, optimizer, algorithm
        self.networks = Networks(model, critic, reference, reference_scope, autocast)
        self.ranks = ranks or Ranks()
        self.epochs, self.minibatches = epochs, minibatches
        self.packing = packing or Packing()
        self.max_grad_norm = max_grad_norm
        self.device = device
        self.parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self.skips = Skips(max_nonfinite_steps)
        self.ratio_K = np.zeros(0)  # of the last batch's response tokens, when last trained on
        self.gate_weight_K = np.zeros(0)  # see gate_weights, of the same tokens
        # Of this rank's response tokens. Both are 0 where nothing was trained on, so that ranks add up.
        self._log_ratio_K = np.zeros(0)
        self._gate_loss_K = np.zeros(0)  # 1 less the weight

    def update(
        self,
        rows: Sequence[Row],
        credit: Credit,
        rng: np.random.Generator,
        controls: Callable[[Tensor], Controls] | None = None,
    ) -> dict[str, float]:
        """Make ``epochs`` passes of ``minibatches`` optimiser steps each; return the metrics.

        Ratios start from the engine's log-probabilities, or with a recomputing correction from the trainer's own before
        the first step. The metrics ``mismatch_*`` measure the gap between the two. A mini-batch's loss is the exact
        mean over its rows, independent of the micro-batches; rows without a gradient count, but are not read.

        A step whose loss or gradient is not finite is skipped: weights and optimiser stay unchanged.

        controls: returns what controllers set, from the task group of each token.

        Raises:
            NonFiniteLoss: at the ``max_nonfinite_steps``-th skip in a row, or if a parameter is not finite.
        """
        log = StepLog()
        self.skips.errors = []
        self.networks.train(True)
        try:
            batches = self._mini_batches(rows, credit, rng)
            with span("scoring"):
                scored = self._score_before(batches, credit.tokens, log)
            for epoch in range(self.epochs):
                self._log_ratio_K, self._gate_loss_K = np.zeros(credit.tokens), np.zeros(credit.tokens)
                if epoch:
                    batches = self._mini_batches(rows, credit, rng)
                for number, batch in enumerate(batches):
                    # Without a scoring pass, the first step taken is the one that reads the unchanged policy.
                    old = None if number == 0 and self._first_scores_itself else scored
                    batch.micros = [one if one.padding else with_columns(one, credit, old) for one in batch.micros]
                    self._train_on(batch, controls, log, old is None and not log.losses)
        except NonFiniteLoss as error:
            taken, advice = len(log.losses), "resume from the last checkpoint"
            if not isinstance(error, NonFiniteWeights):
                advice = f"{taken} steps of this update were taken before: {advice}" if taken else "no step was taken"
            raise NonFiniteLoss(f"{error}; {advice}", error.turns) from None
        finally:
            self.networks.train(False)
        self.ratio_K = np.exp(self.ranks.total(self._log_ratio_K))
        self.gate_weight_K = 1.0 - self.ranks.total(self._gate_loss_K)
        steps = {"updates": float(len(log.losses)), "skipped_steps": float(len(self.skips.errors))}
        return log.metrics(self.ranks) | steps

    def _mini_batches(self, rows: Sequence[Row], credit: Credit, rng: np.random.Generator) -> list[MiniBatch]:
        """The mini-batches of an epoch."""
        made: list[MiniBatch] = []
        for part in mini_batches(rows, self.minibatches, rng):
            teaching = self._teaching(part, credit)
            micros = self._micros(teaching) if teaching else []
            made.append(MiniBatch(micros, normaliser_of(part), sum(row.length for row in part)))
        return made

    def _teaching(self, rows: Sequence[Row], credit: Credit) -> Sequence[Row]:
        """The rows with a gradient: without an advantage, only KL, entropy and the critic give one."""
        algorithm = self.algorithm
        if algorithm.kl.coefficient > 0 or algorithm.entropy > 0 or self.networks.critic is not None:
            return rows
        by_token = credit.level == "token"
        return [row for row in rows if credit.advantage[row.token_K if by_token else row.turn_K].any()]

    def _micros(self, rows: Sequence[Row]) -> list[MicroBatch]:
        return rank_batches(rows, self.packing, self.ranks)

    # Old log-probabilities --------------------------------------------------------------------------------------------

    @property
    def _first_scores_itself(self) -> bool:
        """Whether the first step recomputes its old log-probabilities in its own forward pass.

        A second epoch needs them for other mini-batches, and therefore a separate scoring pass.
        """
        return self.epochs == 1 and self.algorithm.correction.recomputes

    def _score_before(self, batches: Sequence[MiniBatch], tokens: int, log: StepLog) -> OldLogprobs | None:
        """Score the mini-batches that need it; None where ratios start from the engine's log-probabilities."""
        correction = self.algorithm.correction
        needed = [micro for batch in (batches[1:] if self._first_scores_itself else batches) for micro in batch.micros]
        if not correction.recomputes or not needed:
            return None

        def read(micro: MicroBatch) -> list[Tensor]:
            scored, apart = score(micro, self.networks.logprobs(micro)[0], correction)
            if not micro.padding:
                log.mismatch.append(apart)
            return [x for x in (scored.old_logprob_K, scored.weight_K) if x is not None]

        return OldLogprobs(*token_columns(read, needed, tokens, self.device, self.ranks))

    # A step -----------------------------------------------------------------------------------------------------------

    def _train_on(
        self, batch: MiniBatch, controls: Callable[[Tensor], Controls] | None, log: StepLog, scores: bool
    ) -> None:
        """Take one optimiser step, unless no row has a gradient or it is not finite."""
        log.tokens += batch.tokens
        if not batch.micros:  # Adam's momentum would move the weights
            return
        try:
            loss, sums, mismatch = self._accumulate(batch, controls, scores)
            with span("optimiser"):
                norm = self._step()
        except NonFiniteLoss as error:
            self._skip(error, batch)
            return
        self.skips.row = 0
        log.losses.append(loss)
        log.norms.append(norm)
        log.sums += sums
        log.mismatch += mismatch
        log.read += sum(micro.tokens for micro in batch.micros if not micro.padding)

    def _accumulate(
        self, batch: MiniBatch, controls: Callable[[Tensor], Controls] | None, scores: bool
    ) -> tuple[float, list[Metrics], list[Metrics]]:
        """Accumulate a mini-batch's gradients; return this rank's loss, and metrics and mismatch by micro-batch.

        scores: the policy is unchanged and reads these tokens for the first time, so compare it with the engine and
            recompute old log-probabilities if the correction does.
        """
        entropy: Entropy = "gradient" if self.algorithm.entropy > 0 else "value"
        total = torch.zeros((), device=self.device)
        sums: list[Metrics] = []
        mismatch: list[Metrics] = []
        error: NonFiniteLoss | None = None
        for made in batch.micros:
            # Forward. Padding takes part in the other ranks' passes, with gradients of zero.
            micro = made.to(self.device)
            with span("forward"):
                outputs = self.networks.outputs(micro, entropy)
            if micro.padding:
                self._backward(outputs.nothing())
                continue
            if scores:
                micro, apart = score(micro, outputs.logprob_K, self.algorithm.correction)
                mismatch.append(apart)

            chosen = controls(micro.group_K) if controls else None
            self._note(micro, made.token_K.numpy(), outputs.logprob_K.detach(), chosen)

            # Loss. If it is not finite, the other ranks still need this one in their passes; all stop afterwards.
            loss, metrics = micro_batch_loss(micro, outputs, self.algorithm, batch.normaliser, chosen)
            if not torch.isfinite(loss):
                error = error or nonfinite_error(micro, outputs)
                if self.ranks.alone:
                    break

            self._backward(loss)
            total += loss.detach()
            sums.append(metrics)
        self._raise_together(error)
        return float(total), sums, mismatch

    def _note(self, micro: MicroBatch, token_K: np.ndarray, logprob_K: Tensor, controls: Controls | None) -> None:
        """Note the ratio and gate weight of a micro-batch's tokens, for annotations."""
        assert micro.advantage_K is not None
        columns = (logprob_K, micro.old_logprob_K, micro.advantage_K)
        lost_K = 1.0 - gate_weights(*columns, micro.layout, self.algorithm, controls)
        # One copy to the host, because each waits for the device.
        noted_2K = torch.stack([logprob_K - micro.old_logprob_K, lost_K]).cpu().numpy()
        self._log_ratio_K[token_K], self._gate_loss_K[token_K] = noted_2K

    def _backward(self, loss: Tensor) -> None:
        """Accumulate gradients. Ranks average them, but their losses are parts of a sum."""
        with span("backward"):
            (loss if self.ranks.alone else loss * self.ranks.world_size).backward()

    def _raise_together(self, error: NonFiniteLoss | None) -> None:
        """Raise an error of any rank on all ranks, before the step."""
        found = [one for one in self.ranks.gathered(error and [str(error), error.turns]) if one]
        if found:
            self.optimizer.zero_grad(set_to_none=True)
            raise NonFiniteLoss(found[0][0], sorted({turn for one in found for turn in one[1]}))

    def _step(self) -> float:
        """Clip the gradient and step; return the norm before clipping."""
        length = torch.nn.utils.get_total_norm([p.grad for p in self.parameters if p.grad is not None])
        norm = float(gather(length))
        if not np.isfinite(norm):
            raise NonFiniteLoss(f"the gradient's norm is {norm}", [])
        torch.nn.utils.clip_grads_with_norm_(self.parameters, self.max_grad_norm, length)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if not torch.isfinite(gather(torch.nn.utils.get_total_norm(self.parameters))):
            raise NonFiniteWeights("a parameter became NaN or infinite in this step; lower the learning rate", [])
        return norm

    def _skip(self, error: NonFiniteLoss, batch: MiniBatch) -> None:
        """Skip the step of a mini-batch, or raise ``error`` at the limit."""
        self.optimizer.zero_grad(set_to_none=True)
        own = [micro for micro in batch.micros if not micro.padding]
        if not error.turns:
            error.turns = sorted({int(turn) for micro in own for turn in micro.turn_K.tolist()})
        for micro in own:
            self._log_ratio_K[micro.token_K.numpy()] = 0.0  # not trained on
            self._gate_loss_K[micro.token_K.numpy()] = 0.0
        self.skips.skip(error)

    def weights(self) -> list[Tensor]:
        """Copy the policy's trained weights, or this rank's shards, to host memory."""
        return [tensor.to("cpu", copy=True) for tensor in self._trained()]

    @torch.no_grad()
    def retreat(self, before: Sequence[Tensor], part: float) -> None:
        """Keep ``part`` (0 to 1) of the step from the weights ``before``; the critic stays."""
        for tensor, old in zip(self._trained(), before, strict=True):
            tensor.copy_(torch.lerp(old.to(tensor.device), tensor, part))

    def _trained(self) -> list[Tensor]:
        """The trained weights, or this rank's shards."""
        return [local(parameter) for parameter in self.model.parameters() if parameter.requires_grad]

    # Without a step ---------------------------------------------------------------------------------------------------

    def score(
        self, rows: Sequence[Row], tokens: int, plain: bool = False, entropy: Entropy = "value"
    ) -> tuple[np.ndarray, np.ndarray]:
        """Old less current log-probability, and entropy (nats), of all response tokens, float64[K].

        plain: at temperature 1, not at the sampling temperature.
        entropy: ``squares`` for the sum of squared probabilities instead of the entropy.
        """

        def read(micro: MicroBatch) -> tuple[Tensor, Tensor]:
            seen = replace(micro, temperature_U=None) if plain else micro
            logprob_K, entropy_K = self.networks.logprobs(seen, entropy)
            assert entropy_K is not None
            return micro.logprob_K - logprob_K, entropy_K

        self.networks.train(False)
        drift_K, entropy_K = token_columns(read, self._micros(rows), tokens, self.device, self.ranks)
        return drift_K, entropy_K

    def values(self, rows: Sequence[Row], tokens: int) -> np.ndarray | None:
        """The critic's value at each response token, float64[K]; None without a critic."""
        if self.networks.critic is None:
            return None
        (value_K,) = token_columns(self.networks.values, self._micros(rows), tokens, self.device, self.ranks)
        return value_K


def divergence(log_ratio_K: np.ndarray) -> float:
    """KL(old || new), nats per token (k3), from the log-ratios new - old of tokens that the old policy sampled."""
    if not len(log_ratio_K):
        return 0.0
    log_K = np.clip(log_ratio_K, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return float((np.expm1(log_K) - log_K).mean())
