"""Credit and losses in verl's V1 trainer, under names that its settings accept.

verl imports the modules that ``VERL_USE_EXTERNAL_MODULES`` names, in its driver and in its workers. Such a module calls
:func:`register`, which enters an advantage estimator and a policy loss into verl's registries. Neither gets all that it
needs from verl, so two methods of verl are wrapped:

* An estimator sees rewards, mask and group of its rows. The response tokens, from which states are made, stay in verl's
  transfer queue; ``PPOTrainer._compute_advantage`` has the keys of the rows there.
* A loss sees one micro-batch, and verl adds the gradients of all micro-batches. The mean is over the mini-batch of all
  ranks, which only ``BaseEngine.train_batch`` sees; :func:`count` counts it there.
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

# Set while verl's method runs. verl computes advantages and losses in the thread that calls these methods.
_responses: ContextVar[Tensor | None] = ContextVar("responses of the rows whose advantages are computed", default=None)
_mini_batch: ContextVar[Normaliser | None] = ContextVar("counts of the mini-batch that is trained on", default=None)


def register(algorithm: Algorithm, name: str = "gagpo") -> None:
    """Enter ``algorithm`` as ``algorithm.adv_estimator=NAME`` and ``actor...policy_loss.loss_mode=NAME``.

    A row of verl is an episode. Rows of padding get no advantage and no loss. Controllers are not run.

    algorithm: without KL and entropy terms, which verl adds itself.

    Raises:
        InvalidArgument: the algorithm has such a term.
    """
    if algorithm.kl.coefficient or algorithm.entropy:
        raise InvalidArgument(
            "in verl the KL and entropy terms are verl's (actor.use_kl_loss, actor.entropy_coeff)",
            key="kl",
            advice='load the algorithm with {"kl": {"coefficient": 0.0}, "entropy": 0.0}',
        )
    _set_while_running(PPOTrainer, "_compute_advantage", _responses, _fetch_responses)
    _set_while_running(BaseEngine, "train_batch", _mini_batch, _count_of_batch)

    @register_adv_est(name)
    def estimate(token_level_rewards: Tensor, response_mask: Tensor, index: Any, **_: object) -> tuple[Tensor, Tensor]:
        responses = _require(_responses, "responses")
        sampled = response_mask.bool()
        rows = sampled.any(dim=1).cpu()  # the other rows are padding, which makes the batch divisible by the ranks
        groups = intern(index[rows.numpy()])
        turns = turns_from_tokens(responses[rows], sampled[rows], token_level_rewards[rows], groups)
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
            return log_prob.sum() * 0.0, {}  # padding only: a number with a gradient, as verl expects
        value, metrics = policy_loss(
            log_prob[mask],
            old_log_prob[mask],
            advantages[mask],
            Layout.of_mask(mask),
            algorithm,
            _require(_mini_batch, "mini-batch"),
            weight_K=None if rollout_is_weights is None else rollout_is_weights[mask],
        )
        # Ranks average their gradients, and each has its part of a mean over all ranks.
        value = value * config.global_batch_info["dp_size"]
        return value, {f"actor/{key}": number for key, number in summary([metrics]).items()}


def count(mask: Tensor, engine: BaseEngine) -> Normaliser:
    """Numbers of tokens, actions and rows of a mini-batch over all ranks. mask: of responses, nested or padded."""
    padded = (mask.to_padded_tensor(0) if mask.is_nested else mask).bool()
    normaliser = Layout.of_mask(padded).normaliser if padded.any() else Normaliser(0, 0, 0)
    total = torch.tensor([normaliser.tokens, normaliser.actions, normaliser.rows], device=padded.device)
    if engine.get_data_parallel_size() > 1:
        torch.distributed.all_reduce(total, group=engine.get_data_parallel_group())
    return Normaliser(*total.tolist())


def _count_of_batch(engine: BaseEngine, data: Any, *_: object) -> Normaliser:
    return count(data["loss_mask"], engine)


def _fetch_responses(trainer: PPOTrainer, batch: Any, *_: object) -> Tensor:
    """The response tokens of a batch, padded as its other columns are."""
    fields = transfer_queue.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=["responses"])
    tokens: Tensor = fields["responses"]
    return tokens.to_padded_tensor(0) if tokens.is_nested else tokens


def _set_while_running(owner: type, method: str, variable: ContextVar[Any], read: Callable[..., Any]) -> None:
    """Wrap ``owner.method`` once: while it runs, ``variable`` contains what ``read`` returns for its arguments."""
    original = getattr(owner, method)
    if hasattr(original, "_gagpo"):
        return

    @wraps(original)
    def wrapper(self: Any, *arguments: Any, **options: Any) -> Any:
        token = variable.set(read(self, *arguments, *options.values()))
        try:
            return original(self, *arguments, **options)
        finally:
            variable.reset(token)

    wrapper._gagpo = True  # type: ignore[attr-defined]
    setattr(owner, method, wrapper)


def _require(variable: ContextVar[Any], name: str) -> Any:
    value = variable.get()
    if value is None:
        raise InvalidArgument(
            f"the {name} of verl is not known here",
            advice=(
                "the adapter needs verl's V1 trainer (trainer.use_v1=true), and register() must be "
                "called before verl's trainer and workers are made"
            ),
        )
    return value
