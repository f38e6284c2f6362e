"""Our credit and losses in verl's V1 trainer, under names that its settings take.

A module of one's own, named in ``VERL_USE_EXTERNAL_MODULES`` so that verl's driver and workers all import it, calls
:func:`register`. Three places of verl are taken: the registry of estimators, that of losses, and two methods that know
what those registries are not told.

* An estimator sees rewards, mask and group of its rows. Which tokens tell one state from another stays in verl's
  transfer queue; ``PPOTrainer._compute_advantage`` knows their keys.
* A loss sees one micro-batch, and verl adds up the gradients of all of them. What the mean runs over is the mini-batch
  of all ranks; ``BaseEngine.train_batch`` holds it, and :func:`count` counts it there.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from functools import wraps
from typing import Any

import torch
import transfer_queue
from torch import Tensor
from verl.trainer.ppo.core_algos import register_adv_est, register_policy_loss
from verl.trainer.ppo.v1 import PPOTrainer
from verl.workers.engine.base import BaseEngine

from gagpo.algorithms import Algorithm
from gagpo.base.errors import InvalidArgument
from gagpo.credit import advantages as credit_of
from gagpo.credit import intern, turns_from_tokens
from gagpo.objectives import Layout, Normaliser, policy_loss, summary

_responses: ContextVar[Tensor | None] = ContextVar("responses of the rows whose advantages are computed", default=None)
_mini_batch: ContextVar[Normaliser | None] = ContextVar("what is in the mini-batch that is trained on", default=None)


def register(algorithm: Algorithm, name: str = "gagpo") -> None:
    """Make ``algorithm.adv_estimator=NAME`` and ``actor_rollout_ref.actor.policy_loss.loss_mode=NAME`` known.

    verl adds its own KL and entropy terms, so the algorithm must bring none: InvalidArgument otherwise. Controllers are
    not run. A row of verl's is an episode; rows of padding get no advantage and no loss.
    """
    if algorithm.kl.coefficient or algorithm.entropy:
        raise InvalidArgument(
            "in verl the KL and entropy terms are verl's (actor.use_kl_loss, actor.entropy_coeff): load the algorithm "
            'with {"kl": {"coefficient": 0.0}, "entropy": 0.0}'
        )
    _tell(PPOTrainer, "_compute_advantage", _responses, _fetch)
    _tell(BaseEngine, "train_batch", _mini_batch, lambda engine, data, *_: count(data["loss_mask"], engine))

    @register_adv_est(name)
    def estimate(token_level_rewards: Tensor, response_mask: Tensor, index: Any, **_: object) -> tuple[Tensor, Tensor]:
        responses = _known(_responses, "responses")
        sampled = response_mask.bool()
        rows = sampled.any(dim=1).cpu()  # the others are padding, to make the batch divisible by its ranks
        turns = turns_from_tokens(
            responses[rows], sampled[rows], token_level_rewards[rows], intern(index[rows.numpy()])
        )
        credit = torch.as_tensor(credit_of(turns, algorithm.credit).per_token()).to(token_level_rewards)
        advantage = torch.zeros_like(token_level_rewards).masked_scatter(sampled, credit)
        return advantage, advantage

    @register_policy_loss(name)
    def loss(
        old_log_prob: Tensor,
        log_prob: Tensor,
        advantages: Tensor,
        response_mask: Tensor,
        config: Any = None,
        rollout_is_weights: Tensor | None = None,
        **_: object,
    ) -> tuple[Tensor, dict[str, float]]:
        mask = response_mask.bool()
        if not mask.any():
            return log_prob.sum() * 0.0, {}  # padding alone; still a number that gradients can be taken of
        value, metrics = policy_loss(
            log_prob[mask],
            old_log_prob[mask],
            advantages[mask],
            Layout.of_mask(mask),
            algorithm,
            _known(_mini_batch, "mini-batch"),
            weight_K=None if rollout_is_weights is None else rollout_is_weights[mask],
        )
        # Ranks average their gradients, and each holds its part of a mean over all of them.
        value = value * config.global_batch_info["dp_size"]
        return value, {f"actor/{key}": number for key, number in summary([metrics]).items()}


def count(mask: Tensor, engine: BaseEngine) -> Normaliser:
    """Tokens, actions and rows of a mini-batch over all ranks. mask: of responses, nested or padded."""
    padded = (mask.to_padded_tensor(0) if mask.is_nested else mask).bool()
    layout = Layout.of_mask(padded).normaliser if padded.any() else Normaliser(0, 0, 0)
    group = engine.get_data_parallel_group()
    total = torch.tensor([layout.tokens, layout.actions, layout.rows], device=padded.device)
    if engine.get_data_parallel_size() > 1:
        torch.distributed.all_reduce(total, group=group)
    return Normaliser(*total.tolist())


def _fetch(trainer: PPOTrainer, batch: Any, *_: object) -> Tensor:
    """The response tokens of a batch, padded as its other columns are."""
    fields = transfer_queue.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=["responses"])
    tokens = fields["responses"]
    return tokens.to_padded_tensor(0) if tokens.is_nested else tokens


def _tell(owner: type, method: str, variable: ContextVar[Any], fact: Callable[..., Any]) -> None:
    """While ``owner.method`` runs, ``variable`` holds what ``fact`` says of its arguments. Asked twice, done once."""
    original = getattr(owner, method)
    if hasattr(original, "_gagpo"):
        return

    @wraps(original)
    def told(self: Any, *arguments: Any, **named: Any) -> Any:
        token = variable.set(fact(self, *arguments, *named.values()))
        try:
            return original(self, *arguments, **named)
        finally:
            variable.reset(token)

    told._gagpo = True  # type: ignore[attr-defined]
    setattr(owner, method, told)


def _known(variable: ContextVar[Any], what: str) -> Any:
    value = variable.get()
    if value is None:
        raise InvalidArgument(
            f"verl did not say what the {what} is: these names work in its V1 trainer (trainer.use_v1=true), whose "
            "classes this module must not come after in a process"
        )
    return value
