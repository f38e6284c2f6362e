"""One iteration's learning: from rows and advantages to optimiser steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from gagpo.algorithms import Algorithm
from gagpo.credit import Targets
from gagpo.envs.errors import GagpoError
from gagpo.objectives import Controls, Layout, Normaliser, find_nonfinite, policy_loss, summary
from gagpo.objectives.value import value_loss
from gagpo.training.batch import MicroBatch, Row, micro_batches, mini_batches, token_logprobs
from gagpo.training.value_head import Critic, captured


class NonFiniteLoss(GagpoError, FloatingPointError):
    """The loss became NaN or infinite; ``turns`` are the numbers of those it came from (empty where unknown)."""

    def __init__(self, message: str, turns: list[int]):
        super().__init__(message)
        self.turns = turns


class Updater:
    """Takes optimiser steps on batches of rows.

    reference: the policy that KL is measured to, where the algorithm asks for it. autocast: a context for forward
    passes. microbatch_tokens: most padded tokens of one forward pass; it changes memory and speed, never the result.
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
        critic: Critic | None = None,
        autocast: Callable[[], AbstractContextManager] = nullcontext,
        device: torch.device | str = "cpu",
    ):
        self.model, self.optimizer, self.algorithm = model, optimizer, algorithm
        self.epochs, self.minibatches, self.microbatch_tokens = epochs, minibatches, microbatch_tokens
        self.max_grad_norm = max_grad_norm
        self.reference, self.critic = reference, critic
        self.autocast, self.device = autocast, device
        self.parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self.ratio_K = np.zeros(0)  # of every response token of the last batch, when it was last trained on

    def update(
        self,
        rows: Sequence[Row],
        targets: Targets,
        rng: np.random.Generator,
        controls: Callable[[Tensor], Controls] | None = None,
    ) -> dict[str, float]:
        """``epochs`` passes of ``minibatches`` optimiser steps each; returns the metrics.

        The log-probabilities the engine sampled with are the old ones. The loss of a mini-batch is the exact mean over
        all of it, however it is cut into micro-batches. ``controls`` gives what controllers set, from the task group of
        each token. Raises :class:`NonFiniteLoss` before the step that would have made the weights worthless; steps of
        the same update that came before it have been taken, and the message says how many.
        """
        begun, tokens = time.perf_counter(), 0
        parts: list[dict[str, Tensor]] = []
        losses, norms = [], []
        self.ratio_K = np.ones(len(targets.advantage))
        self.model.train()
        try:
            for _ in range(self.epochs):
                for mini in mini_batches(rows, self.minibatches, rng):
                    micros = list(micro_batches(mini, self.microbatch_tokens, self.device))
                    loss, mini_parts = self._accumulate(micros, targets, controls)
                    norms.append(self._step())
                    losses.append(loss)
                    parts += mini_parts
                    tokens += sum(micro.tokens for micro in micros)
        except NonFiniteLoss as error:
            raise NonFiniteLoss(f"{error}; {_left_behind(len(losses))}", error.turns) from None
        finally:
            self.model.eval()
        metrics = summary(parts)
        return {
            **metrics,
            "clip_fraction": metrics.pop("clip", 0.0),  # a soft gate clips nothing
            **_critic_summary(parts),
            "loss": float(np.mean(losses)),
            "grad_norm": float(np.mean(norms)),
            "updates": float(len(losses)),
            "train_tokens_per_second": tokens / (time.perf_counter() - begun),
        }

    @torch.no_grad()
    def score(self, rows: Sequence[Row], tokens: int, plain: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Old less present log-probability, and entropy (nats), of all response tokens, float64[K] in their order.

        Both at the temperature the tokens were sampled at, or at temperature 1 where ``plain``.
        """
        drift_K, entropy_K = np.zeros(tokens), np.zeros(tokens)
        self.model.eval()
        for micro in micro_batches(rows, self.microbatch_tokens, self.device):
            place_K = micro.token_K.cpu().numpy()
            with self.autocast():
                logprob, entropy = token_logprobs(self.model, replace(micro, temperature_K=None) if plain else micro)
            assert entropy is not None
            drift_K[place_K] = (micro.logprob_K - logprob).double().cpu().numpy()
            entropy_K[place_K] = entropy.double().cpu().numpy()
        return drift_K, entropy_K

    def _accumulate(
        self, micros: Sequence[MicroBatch], targets: Targets, controls: Callable[[Tensor], Controls] | None
    ) -> tuple[float, list[dict[str, Tensor]]]:
        """Gradients of one mini-batch; its loss and the summed metrics of its micro-batches."""
        layouts = [Layout.of(micro.turn_K, micro.row_K) for micro in micros]
        normaliser = Normaliser.total(layout.normaliser for layout in layouts)
        total = torch.zeros((), device=self.device)
        parts = []
        for micro, layout in zip(micros, layouts, strict=True):
            reference_K = self._reference(micro)
            with self.autocast(), captured(self.model) as hidden:
                logprob_K, entropy_K = token_logprobs(self.model, micro)
            advantage_K = self._take(targets.advantage, micro.token_K)
            self.ratio_K[micro.token_K.cpu().numpy()] = (logprob_K.detach() - micro.logprob_K).exp().cpu().numpy()
            loss, metrics = policy_loss(
                logprob_K,
                micro.logprob_K,
                advantage_K,
                layout,
                self.algorithm,
                normaliser,
                controls(micro.group_K) if controls else None,
                reference_K,
                entropy_K,
            )
            if self.critic is not None:
                count = normaliser.tokens if targets.first is None else normaliser.actions
                loss = loss + self._value_loss(self.critic, micro, hidden[0], targets, count, metrics)
            if not torch.isfinite(loss):
                self.optimizer.zero_grad(set_to_none=True)
                raise _blame(micro, layout, logprob_K, advantage_K, reference_K)
            loss.backward()
            total += loss.detach()
            parts.append(metrics)
        return float(total), parts

    def _value_loss(
        self,
        critic: Critic,
        micro: MicroBatch,
        hidden_KD: Tensor,
        targets: Targets,
        count: int,
        metrics: dict[str, Tensor],
    ) -> Tensor:
        with self.autocast():
            shared = critic.backbone is None
            value_K = critic.values(hidden_KD) if shared else critic.read(self.model, micro)
        assert targets.value is not None and targets.target is not None
        old_K, target_K = self._take(targets.value, micro.token_K), self._take(targets.target, micro.token_K)
        if targets.first is not None:
            first_K = torch.as_tensor(targets.first[micro.token_K.cpu().numpy()], device=value_K.device)
            value_K, old_K, target_K = value_K[first_K], old_K[first_K], target_K[first_K]
        loss, value_metrics = value_loss(value_K, old_K, target_K, critic.settings.clip, count)
        metrics.update(value_metrics)
        return critic.settings.coefficient * loss

    def _step(self) -> float:
        """Clip the gradient and step; its norm before clipping."""
        norm = float(torch.nn.utils.clip_grad_norm_(self.parameters, self.max_grad_norm))
        if not np.isfinite(norm):
            self.optimizer.zero_grad(set_to_none=True)
            raise NonFiniteLoss(f"the gradient's norm is {norm}", [])
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return norm

    def _take(self, column: np.ndarray, token_K: Tensor) -> Tensor:
        return torch.as_tensor(column[token_K.cpu().numpy()], dtype=torch.float32, device=self.device)

    @torch.no_grad()
    def _reference(self, micro: MicroBatch) -> Tensor | None:
        if self.reference is None:
            return None
        with self.autocast():
            return token_logprobs(self.reference, micro, entropy=False)[0]


def _blame(
    micro: MicroBatch, layout: Layout, logprob_K: Tensor, advantage_K: Tensor, reference_K: Tensor | None
) -> NonFiniteLoss:
    found = find_nonfinite(
        layout, logprob=logprob_K, old_logprob=micro.logprob_K, advantage=advantage_K, reference=reference_K
    )
    message, rows = found or ("the loss is not finite although its inputs are", [])
    turns = sorted({int(turn) for row in rows for turn in micro.turn_K[layout.row_K == row].tolist()})
    return NonFiniteLoss(message, turns)


def _left_behind(steps: int) -> str:
    if not steps:
        return "the weights were left as they were"
    return f"{steps} steps of this update had been taken before: go on from the last checkpoint"


def _critic_summary(parts: Sequence[dict[str, Tensor]]) -> dict[str, float]:
    """Explained variance, clip fraction and error of the critic, where there is one."""
    if not parts or "values" not in parts[0]:
        return {}
    names = ("values", "value_clipped", "value_error", "target", "target_squared")
    total = {name: sum(float(part[name]) for part in parts) for name in names}
    count = total["values"]
    spread = total["target_squared"] / count - (total["target"] / count) ** 2
    error = total["value_error"] / count
    return {
        "value_error": error,
        "value_clip": total["value_clipped"] / count,
        "value_explained": 1 - error / spread if spread > 1e-12 else 0.0,
    }
