"""Optimiser steps from rows and credit.

The loss of a mini-batch is its exact mean, whatever the micro-batches: each divides by the counts of the whole
mini-batch, and gradients add up. Dividing by a micro-batch's own counts would weight its tokens by its neighbours.

With several ranks all take a step or none does. A rank that left alone would keep the others waiting in the next
collective call, so errors are gathered before each step and raised on all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from gagpo.algorithms import Algorithm
from gagpo.controllers.average import local
from gagpo.credit import Credit
from gagpo.data import Row
from gagpo.distributed.ranks import Ranks
from gagpo.learning.loss import OldLogprobs, micro_batch_loss, nonfinite_error, score, with_columns
from gagpo.learning.metrics import StepLog
from gagpo.learning.packing import Packing, mini_batches, normaliser_of, packing_of
from gagpo.learning.rank_parts import rank_batches, token_columns
from gagpo.learning.skipped_steps import MAX_NONFINITE_STEPS, NonFiniteLoss, NonFiniteWeights, SkippedSteps
from gagpo.model.logprobs import Entropy
from gagpo.model.microbatch import MicroBatch
from gagpo.model.networks import Networks
from gagpo.model.sharding import Unsharded, begin_micro_batch
from gagpo.model.spans import span
from gagpo.model.weights import gather
from gagpo.objectives import Controls, Normaliser, gate_weights
from gagpo.objectives.nonfinite import LOG_RATIO_LIMIT
from gagpo.objectives.policy import Metrics
from gagpo.settings import RunSettings

GetControls = Callable[[Tensor], Controls]
"""Returns what the controllers set, from the task group of each token."""

OnStep = Callable[[int, int, float], None]
"""Called after each optimiser step with the steps done, their number in this update, and the learning rate."""


def _ignore(done: int, total: int, rate: float) -> None:
    """Show nothing."""


@dataclass(frozen=True)
class UpdateSettings:
    """How the rows of an iteration become optimiser steps.

    epochs: passes over the rows.
    minibatches: optimiser steps of an epoch.
    max_grad_norm: gradients are clipped to this norm.
    max_nonfinite_steps: number of steps in a row with a non-finite loss or gradient that ends training.
    packing: how rows become micro-batches.
    unsharded: what several ranks hold unsharded between the micro-batches of a step.
    """

    epochs: int = 1
    minibatches: int = 1
    max_grad_norm: float = 1.0
    max_nonfinite_steps: int = 1
    packing: Packing = field(default_factory=Packing)
    unsharded: Unsharded = "layers"

    @classmethod
    def of(cls, settings: RunSettings, policy: torch.nn.Module) -> UpdateSettings:
        """Those of a run."""
        return cls(
            epochs=settings.training.epochs,
            minibatches=settings.training.minibatches,
            max_grad_norm=settings.optimizer.max_grad_norm,
            max_nonfinite_steps=MAX_NONFINITE_STEPS,
            packing=packing_of(policy, settings),
            unsharded=settings.training.unsharded,
        )


@dataclass
class MiniBatch:
    """The rows of one optimiser step.

    micro_batches: this rank's part, padding at the end; empty if no row has a gradient.
    normaliser, tokens: of all rows of all ranks, whether or not they are read.
    """

    micro_batches: list[MicroBatch]
    normaliser: Normaliser
    tokens: int


class Updater:
    """Takes optimiser steps on batches of rows.

    ranks: each gets all rows, trains on its part of each mini-batch and returns the same metrics.
    ratio_K: probability ratio of each response token of the last batch, when it was last trained on; 1 for others.
    gate_weight_K: the part of each token's gradient that the gate let through, see
        :func:`gagpo.objectives.gate_weights`; 1 for tokens that were not trained on.
    on_step: to show progress.
    """

    def __init__(
        self,
        networks: Networks,
        optimizer: torch.optim.Optimizer,
        algorithm: Algorithm,
        settings: UpdateSettings | None = None,
        ranks: Ranks | None = None,
    ):
        self.networks = networks
        self.optimizer = optimizer
        self.algorithm = algorithm
        self.settings = settings or UpdateSettings()
        self.ranks = ranks or Ranks()
        self.parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self.skipped = SkippedSteps(self.settings.max_nonfinite_steps)
        self.ratio_K = np.zeros(0)
        self.gate_weight_K = np.zeros(0)
        self.on_step: OnStep = _ignore
        # Of the response tokens that this rank reads. Both are 0 elsewhere, so that the sum over ranks has all tokens.
        self._log_ratio_K = np.zeros(0)
        self._gate_loss_K = np.zeros(0)  # 1 less the weight

    def update(
        self, rows: Sequence[Row], credit: Credit, rng: np.random.Generator, controls: GetControls | None = None
    ) -> dict[str, float]:
        """Make ``epochs`` passes of ``minibatches`` optimiser steps each; return the metrics.

        Ratios start from the engine's log-probabilities, or with a recomputing correction from the trainer's own before
        the first step. The metrics ``mismatch_*`` measure the gap between the two. A mini-batch's loss is the exact
        mean over its rows, independent of the micro-batches; rows without a gradient count, but are not read.

        A step whose loss or gradient is not finite is skipped: weights and optimiser stay unchanged.

        Raises:
            NonFiniteLoss: at the ``max_nonfinite_steps``-th skip in a row, or if a parameter is not finite.
        """
        log = StepLog()
        self.skipped.errors = []
        self.networks.train(True)
        try:
            self._take_steps(rows, credit, rng, controls, log)
        except NonFiniteLoss as error:
            raise NonFiniteLoss(f"{error}; {_advice(error, len(log.losses))}", error.turns) from None
        finally:
            self.networks.train(False)
        self.ratio_K = np.exp(self.ranks.total(self._log_ratio_K))
        self.gate_weight_K = 1.0 - self.ranks.total(self._gate_loss_K)
        steps = {"updates": float(len(log.losses)), "skipped_steps": float(len(self.skipped.errors))}
        return log.metrics(self.ranks) | steps

    def _take_steps(
        self,
        rows: Sequence[Row],
        credit: Credit,
        rng: np.random.Generator,
        controls: GetControls | None,
        log: StepLog,
    ) -> None:
        """Take the steps of all epochs; ``log`` contains those that were taken when an error is raised."""
        batches = self._mini_batches(rows, credit, rng)
        with span("scoring"):
            old_logprobs = self._old_logprobs(batches, credit.tokens, log)
        for epoch in range(self.settings.epochs):
            self._log_ratio_K = np.zeros(credit.tokens)
            self._gate_loss_K = np.zeros(credit.tokens)
            if epoch:
                batches = self._mini_batches(rows, credit, rng)
            for number, batch in enumerate(batches):
                # Without a scoring pass, the first step taken is the one that reads the unchanged policy.
                scored = None if number == 0 and self._first_step_scores else old_logprobs
                batch.micro_batches = [
                    micro if micro.padding else with_columns(micro, credit, scored) for micro in batch.micro_batches
                ]
                self._train_on(batch, controls, log, scores=scored is None and not log.losses)
                total = self.settings.epochs * len(batches)
                self.on_step(epoch * len(batches) + number + 1, total, self.optimizer.param_groups[0]["lr"])

    def _mini_batches(self, rows: Sequence[Row], credit: Credit, rng: np.random.Generator) -> list[MiniBatch]:
        """The mini-batches of an epoch."""
        batches: list[MiniBatch] = []
        for mini_batch in mini_batches(rows, self.settings.minibatches, rng):
            with_gradient = self._rows_with_gradient(mini_batch, credit)
            micro_batches = self._micro_batches(with_gradient) if with_gradient else []
            batches.append(MiniBatch(micro_batches, normaliser_of(mini_batch), sum(row.length for row in mini_batch)))
        return batches

    def _rows_with_gradient(self, rows: Sequence[Row], credit: Credit) -> Sequence[Row]:
        """The rows that give a gradient: without an advantage, only KL, entropy and the critic do."""
        algorithm = self.algorithm
        if algorithm.kl.coefficient > 0 or algorithm.entropy > 0 or self.networks.critic is not None:
            return rows
        if credit.level == "token":
            return [row for row in rows if credit.advantage[row.token_K].any()]
        return [row for row in rows if credit.advantage[row.turn_K].any()]

    def _micro_batches(self, rows: Sequence[Row]) -> list[MicroBatch]:
        return rank_batches(rows, self.settings.packing, self.ranks)

    # Old log-probabilities --------------------------------------------------------------------------------------------

    @property
    def _first_step_scores(self) -> bool:
        """Whether the first step recomputes its old log-probabilities in its own forward pass.

        A second epoch needs them for other mini-batches, and therefore a separate scoring pass.
        """
        return self.settings.epochs == 1 and self.algorithm.correction.recomputes

    def _old_logprobs(self, batches: Sequence[MiniBatch], tokens: int, log: StepLog) -> OldLogprobs | None:
        """Score the mini-batches that need it; None where ratios start from the engine's log-probabilities."""
        correction = self.algorithm.correction
        scored_batches = batches[1:] if self._first_step_scores else batches
        micro_batches = [micro for batch in scored_batches for micro in batch.micro_batches]
        if not correction.recomputes or not micro_batches:
            return None

        def read(micro: MicroBatch) -> list[Tensor]:
            scored, mismatch = score(micro, self.networks.logprobs(micro)[0], correction)
            if not micro.padding:
                log.mismatch.append(mismatch)
            return [column_K for column_K in (scored.old_logprob_K, scored.weight_K) if column_K is not None]

        return OldLogprobs(*token_columns(read, micro_batches, tokens, self.networks.device, self.ranks))

    # A step -----------------------------------------------------------------------------------------------------------

    def _train_on(self, batch: MiniBatch, controls: GetControls | None, log: StepLog, scores: bool) -> None:
        """Take one optimiser step, unless no row has a gradient or it is not finite."""
        log.tokens += batch.tokens  # of all that was collected, read or not
        # Adam's momentum would move the weights. All ranks decide alike: each has the same number of micro-batches.
        if not batch.micro_batches:
            return
        try:
            loss, sums, mismatch = self._accumulate(batch, controls, scores)
            with span("optimiser"):
                norm = self._step()
        except NonFiniteLoss as error:
            self._skip(error, batch)
            return
        # Only now: metrics of a skipped step would make the iteration's means NaN.
        self.skipped.in_a_row = 0
        log.losses.append(loss)
        log.norms.append(norm)
        log.sums += sums
        log.mismatch += mismatch
        log.read += sum(micro.tokens for micro in batch.micro_batches if not micro.padding)

    def _accumulate(
        self, batch: MiniBatch, controls: GetControls | None, scores: bool
    ) -> tuple[float, list[Metrics], list[Metrics]]:
        """Accumulate a mini-batch's gradients; return this rank's loss, and metrics and mismatch by micro-batch.

        Every micro-batch divides by the mini-batch's counts, so that losses and gradients add up to its exact mean.

        scores: the policy is unchanged and reads these tokens for the first time, so compare it with the engine and
            recompute old log-probabilities if the correction does.
        """
        entropy: Entropy = "gradient" if self.algorithm.entropy > 0 else "value"
        total = torch.zeros((), device=self.networks.device)  # stays on the device: reading it would wait for the GPU
        sums: list[Metrics] = []
        mismatch: list[Metrics] = []
        error: NonFiniteLoss | None = None
        for number, host_micro in enumerate(batch.micro_batches, 1):
            # Ranks have equal numbers of micro-batches, so all reduce at the same one, even where it is padding.
            begin_micro_batch(self.networks.policy, self.settings.unsharded, number == len(batch.micro_batches))
            micro = host_micro.to(self.networks.device)
            with span("forward"):
                outputs = self.networks.outputs(micro, entropy)
            if micro.padding:
                # The other ranks gather sharded weights in this pass too and wait for this rank in each collective
                # call, forward and backward.
                self._backward(outputs.zero_loss())
                continue
            if scores:
                micro, gap = score(micro, outputs.logprob_K, self.algorithm.correction)
                mismatch.append(gap)

            token_controls = controls(micro.group_K) if controls else None
            self._record_ratios(micro, host_micro.token_K.numpy(), outputs.logprob_K.detach(), token_controls)

            loss, metrics = micro_batch_loss(micro, outputs, self.algorithm, batch.normaliser, token_controls)
            if not torch.isfinite(loss):
                error = error or nonfinite_error(micro, outputs)
                if self.ranks.alone:
                    break
                # The others do not know yet and would wait for this rank's remaining passes; all stop afterwards.

            self._backward(loss)
            total += loss.detach()
            sums.append(metrics)
        self._raise_together(error)
        return float(total), sums, mismatch

    def _record_ratios(
        self, micro: MicroBatch, token_K: np.ndarray, logprob_K: Tensor, controls: Controls | None
    ) -> None:
        """Record the ratio and gate weight of a micro-batch's tokens, for the episodes' credit."""
        assert micro.advantage_K is not None
        columns = (logprob_K, micro.old_logprob_K, micro.advantage_K)
        gate_loss_K = 1.0 - gate_weights(*columns, micro.layout, self.algorithm, controls)
        # One copy to the host, because each waits for the device.
        recorded_2K = torch.stack([logprob_K - micro.old_logprob_K, gate_loss_K]).cpu().numpy()
        self._log_ratio_K[token_K] = recorded_2K[0]
        self._gate_loss_K[token_K] = recorded_2K[1]

    def _backward(self, loss: Tensor) -> None:
        """Accumulate gradients. FSDP averages them over ranks, but the ranks' losses are parts of a sum."""
        with span("backward"):
            (loss if self.ranks.alone else loss * self.ranks.world_size).backward()

    def _raise_together(self, error: NonFiniteLoss | None) -> None:
        """Raise an error of any rank on all ranks, before the step: a rank that steps alone would wait for ever."""
        gathered = self.ranks.gathered(error and [str(error), error.turns])
        errors = [message_and_turns for message_and_turns in gathered if message_and_turns]
        if errors:
            self.optimizer.zero_grad(set_to_none=True)
            raise NonFiniteLoss(errors[0][0], sorted({turn for _, turns in errors for turn in turns}))

    def _step(self) -> float:
        """Clip the gradient and step; return the norm before clipping.

        The norms of sharded tensors are sharded themselves. Gathering them gives the same number on all ranks, so that
        all raise or none.
        """
        total_norm = torch.nn.utils.get_total_norm([p.grad for p in self.parameters if p.grad is not None])
        norm = float(gather(total_norm))  # waits for the device: whether to step depends on it
        if not np.isfinite(norm):
            raise NonFiniteLoss(f"the gradient's norm is {norm}", [])
        torch.nn.utils.clip_grads_with_norm_(self.parameters, self.settings.max_grad_norm, total_norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if not torch.isfinite(gather(torch.nn.utils.get_total_norm(self.parameters))):
            raise NonFiniteWeights("a parameter became NaN or infinite in this step; lower the learning rate", [])
        return norm

    def _skip(self, error: NonFiniteLoss, batch: MiniBatch) -> None:
        """Skip the step of a mini-batch, or raise ``error`` at the limit."""
        self.optimizer.zero_grad(set_to_none=True)
        micro_batches = [micro for micro in batch.micro_batches if not micro.padding]
        if not error.turns:
            error.turns = sorted({int(turn) for micro in micro_batches for turn in micro.turn_K.tolist()})
        for micro in micro_batches:
            self._log_ratio_K[micro.token_K.numpy()] = 0.0  # not trained on
            self._gate_loss_K[micro.token_K.numpy()] = 0.0
        self.skipped.skip(error)

    # The size of an update --------------------------------------------------------------------------------------------

    def weights(self) -> list[Tensor]:
        """Copy the policy's trained weights, or this rank's shards, to host memory."""
        # On the host, since a second set of weights may not fit the GPU; ``copy`` because on a CPU ``to`` would not.
        return [tensor.to("cpu", copy=True) for tensor in self._trained_weights()]

    @torch.no_grad()
    def scale_update(self, before: Sequence[Tensor], fraction: float) -> None:
        """Scale the update from the weights ``before`` by ``fraction`` (0 to 1); the critic stays."""
        for tensor, old in zip(self._trained_weights(), before, strict=True):
            tensor.copy_(torch.lerp(old.to(tensor.device), tensor, fraction))

    def _trained_weights(self) -> list[Tensor]:
        """The trained weights, or this rank's shards."""
        return [local(parameter) for parameter in self.networks.policy.parameters() if parameter.requires_grad]

    # Without a step ---------------------------------------------------------------------------------------------------

    def score(
        self, rows: Sequence[Row], tokens: int, at_temperature_1: bool = False, entropy: Entropy = "value"
    ) -> tuple[np.ndarray, np.ndarray]:
        """Old less current log-probability, and entropy (nats), of all response tokens, float64[K].

        at_temperature_1: instead of the sampling temperature.
        entropy: ``squares`` for the sum of squared probabilities instead of the entropy.
        """

        def read(micro: MicroBatch) -> tuple[Tensor, Tensor]:
            scored = replace(micro, temperature_U=None) if at_temperature_1 else micro
            logprob_K, entropy_K = self.networks.logprobs(scored, entropy)
            assert entropy_K is not None
            return micro.logprob_K - logprob_K, entropy_K

        self.networks.train(False)
        columns = token_columns(read, self._micro_batches(rows), tokens, self.networks.device, self.ranks)
        drift_K, entropy_K = columns
        return drift_K, entropy_K

    def values(self, rows: Sequence[Row], tokens: int) -> np.ndarray | None:
        """The critic's value at each response token, float64[K]; None without a critic."""
        networks = self.networks
        if networks.critic is None:
            return None
        (value_K,) = token_columns(networks.values, self._micro_batches(rows), tokens, networks.device, self.ranks)
        return value_K


def _advice(error: NonFiniteLoss, steps: int) -> str:
    """What to do after an update ended with ``error`` when so many ``steps`` were taken."""
    resume = "resume from the last checkpoint"
    if isinstance(error, NonFiniteWeights):
        return resume
    return f"{steps} steps of this update were taken before: {resume}" if steps else "no step was taken"


def divergence(log_ratio_K: np.ndarray) -> float:
    """KL(old || new), nats per token (k3), from the log-ratios new - old of tokens that the old policy sampled."""
    if not len(log_ratio_K):
        return 0.0
    log_K = np.clip(log_ratio_K, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return float((np.expm1(log_K) - log_K).mean())
