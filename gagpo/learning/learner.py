"""The learner: credit and optimiser steps for the episodes of an iteration.

Credit is computed before the optimiser steps and never again: it measures the policy that sampled. All ranks compute
the credit of all episodes, so that it needs no communication.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from gagpo.base.memory import release_freed
from gagpo.controllers import Controllers
from gagpo.controllers.average import AveragedWeights
from gagpo.credit import Credit, Turns, advantages, turns_for
from gagpo.credit.assign import credit_statistics
from gagpo.credit.statistics.groups import group_mean
from gagpo.data import Episode, Row, build_rows, tasks_of_groups
from gagpo.distributed.ranks import Ranks
from gagpo.distributed.states import names_of
from gagpo.learning.optimizer import Group, lr_scale, make_optimizer, parameter_groups
from gagpo.learning.policy import TrainedPolicy, average_shards
from gagpo.learning.sampled_kl import bounded_kl
from gagpo.learning.skipped_steps import NonFiniteLoss
from gagpo.learning.update import Updater, UpdateSettings, divergence
from gagpo.model.dtypes import autocast
from gagpo.model.networks import Critic, Networks
from gagpo.model.sharding import shard
from gagpo.model.slices import read_shards
from gagpo.runs.checkpoint import AVERAGE, Checkpoint, Entry, State
from gagpo.runs.entries import CriticEntry, OptimizerEntry, WeightsEntry
from gagpo.runs.metrics import Metrics
from gagpo.runs.register import of_environment
from gagpo.settings import RunSettings, SettingsError


@dataclass(frozen=True, eq=False)
class LearningResult:
    """What an iteration's update computed.

    metrics: of credit, update and controllers, and the learning rate.
    turns, credit: columns and advantages of the turns; None if there were no episodes.
    skipped: the errors of the steps that were skipped.
    """

    metrics: Metrics
    turns: Turns | None = None
    credit: Credit | None = None
    skipped: tuple[NonFiniteLoss, ...] = ()


class Learner:
    """Updates a policy. All ranks do the same, each with its part of the rows.

    checkpoint: to resume from; ``policy`` already has its weights.
    entries: of a checkpoint: weights, their average, optimiser and critic.
    """

    def __init__(
        self,
        settings: RunSettings,
        policy: TrainedPolicy,
        controllers: Controllers,
        ranks: Ranks,
        checkpoint: Checkpoint | None = None,
    ):
        self.settings = settings
        self.policy = policy
        self.controllers = controllers
        self.ranks = ranks
        self.algorithm = settings.algorithm.resolved(settings.longest_response)
        self.critic = Critic(self.model, torch.device(settings.device)) if settings.algorithm.critic else None
        self.entries: list[Entry] = []
        if self.critic is not None:
            self._add_entry(CriticEntry(self.critic, ranks), checkpoint)  # whole tensors, so before the sharding
        self._shard()
        groups = self._parameter_groups()
        self.max_rates = [group["lr"] for group in groups]
        self.optimizer = make_optimizer(groups, settings.optimizer, settings.training.offload)
        self._add_entry(OptimizerEntry(self.optimizer, names_of(self.model, self.critic), ranks), checkpoint)
        networks = Networks(
            self.model,
            self.critic,
            policy.reference,
            policy.reference_scope,
            functools.partial(autocast, settings.device, settings.training.dtype),
            torch.device(settings.device) if settings.training.offload else None,
        )
        update_settings = UpdateSettings.of(settings, self.model)
        self.updater = Updater(networks, self.optimizer, self.algorithm, update_settings, ranks)

        # The run's own tokenizer is used by other threads than the one that writes checkpoints.
        tokenizer = copy.deepcopy(policy.tokenizer)
        self.entries.append(WeightsEntry(self.model, policy.base, tokenizer, ranks))
        self.average: AveragedWeights | None = None
        if settings.training.ema:
            self.average = AveragedWeights(policy.trained(), average_shards(policy))
            applied = self.average.applied
            self.entries.append(WeightsEntry(self.model, policy.base, tokenizer, ranks, AVERAGE, applied))

    @property
    def model(self) -> torch.nn.Module:
        """The policy in training."""
        return self.policy.model

    @property
    def nonfinite_turns(self) -> list[int]:
        """Turns that made a loss of the last update non-finite, counted over its episodes; empty if unknown."""
        return self.updater.skipped.turns

    def _add_entry(self, entry: Entry, checkpoint: Checkpoint | None) -> None:
        self.entries.append(entry)
        if checkpoint is not None:
            checkpoint.read(entry)

    def _shard(self) -> None:
        """Shard policy, critic and reference, and read their weights; an adapter's policy is its own reference."""
        mesh = self.ranks.mesh(self.settings.device)
        offload = self.settings.training.offload
        if offload and mesh is None:
            raise SettingsError(
                "training.offload needs processes=2 or more (got 1): set training.offload=false",
                key="training.offload",
                advice=("lora or training.gradient_checkpointing save memory on one GPU"),
            )
        critic_head = self.critic.head if self.critic else None
        shard(self.model, mesh, self.settings.training.dtype, critic_head, offload, self.settings.training.unsharded)
        if self.policy.reference is not None and self.policy.reference is not self.model:
            shard(self.policy.reference, mesh, self.settings.engine.dtype, offload=offload)
        # After the sharding, so that no rank ever holds a whole model.
        device = torch.device("cpu" if offload else self.settings.device)
        for model in filter(None, (self.model, self.policy.reference)):
            read_shards(model, device)
        release_freed()  # the check gathers layers, whose memory glibc would keep

    def _parameter_groups(self) -> list[Group]:
        """The optimiser's groups: the policy's parameters, then the critic's with its own learning rate."""
        optimizer, critic_settings = self.settings.optimizer, self.settings.algorithm.critic
        groups = parameter_groups(self.model, optimizer.learning_rate, optimizer.weight_decay)
        if self.critic is not None and critic_settings is not None:
            groups += parameter_groups(self.critic, critic_settings.learning_rate, optimizer.weight_decay)
        return groups

    def learn(self, episodes: Sequence[Episode], iteration: int) -> LearningResult:
        """Update the policy on the ``episodes`` of ``iteration`` (from 0), group after group.

        Raises:
            NonFiniteLoss: a loss, gradient or weight is not finite; :attr:`nonfinite_turns` caused it.
        """
        if episodes:
            result = self._update(episodes, iteration)
        else:
            result = LearningResult({})
            self.controllers.skip()
        metrics = dict(result.metrics)
        if self.average:
            metrics["average_distance"] = self.average.update(iteration + 1, self.ranks.total)
        metrics |= self.controllers.values()
        metrics["learning_rate"] = self.optimizer.param_groups[0]["lr"]
        return replace(result, metrics=metrics)

    # An update --------------------------------------------------------------------------------------------------------

    def _update(self, episodes: Sequence[Episode], iteration: int) -> LearningResult:
        turns = self._turns(episodes)
        rows = build_rows(episodes)
        credit = self._credit(episodes, turns, rows)
        metrics = self._optimise(rows, credit, iteration)
        self._observe_update(rows, credit.tokens, metrics)
        metrics = {**credit.stats, **self._by_environment(episodes, turns, credit), **metrics}
        return LearningResult(metrics, turns, credit, tuple(self.updater.skipped.errors))

    def _turns(self, episodes: Sequence[Episode]) -> Turns:
        """The turns as columns, with rewards as settings and controllers shape them."""
        settings = self.settings
        only_success = settings.reward == "success"
        turns = turns_for(episodes, settings.algorithm.credit, settings.invalid_action_penalty, only_success)
        max_tokens = {env.name: env.max_tokens for env in settings.all_environments}
        max_tokens_E = np.array([max_tokens[episode.environment or ""] for episode in episodes])
        return self.controllers.shape(turns, max_tokens_E[turns.episode_N])

    def _credit(self, episodes: Sequence[Episode], turns: Turns, rows: Sequence[Row]) -> Credit:
        """The advantage of every turn."""
        tokens = turns.num_tokens
        self.controllers.observe_batch(turns, tasks_of_groups(episodes), self._entropy(turns, rows))
        value_K = self.updater.values(rows, tokens)
        return advantages(self._measured(turns, rows), self.settings.algorithm.credit, value_K)

    def _optimise(self, rows: Sequence[Row], credit: Credit, iteration: int) -> Metrics:
        """Take the optimiser steps."""
        settings = self.settings
        controllers = self.controllers
        scheduled = lr_scale(settings.optimizer, iteration, settings.training.iterations)
        for group, max_rate in zip(self.optimizer.param_groups, self.max_rates, strict=True):
            group["lr"] = controllers.rate(max_rate, scheduled, credit.stats["zero_advantage_groups"])
        weights_before = self.updater.weights() if controllers.bounds_steps else []
        # A function of seed and iteration: a resumed run draws the same mini-batches.
        rng = np.random.default_rng([settings.seed, iteration])
        metrics = self.updater.update(rows, credit, rng, controllers.controls)
        self._bound_update(weights_before, rows, credit.tokens, metrics, rng)
        return metrics

    def _bound_update(
        self,
        weights_before: list[torch.Tensor],
        rows: Sequence[Row],
        tokens: int,
        metrics: Metrics,
        rng: np.random.Generator,
    ) -> None:
        """Scale the update down if it left the trust region."""
        steps = metrics["updates"]
        if not steps or not self.controllers.bounds_steps:
            self.controllers.skip()
            return
        # A token's ratio is that of the step that read it last, before the step; after a single step all are 1.
        kl_before_last_step = divergence(np.log(self.updater.ratio_K)) if steps > 1 else None
        gap = metrics.get("mismatch_kl", 0.0)  # between sampler and trainer before any step
        target_kl = self.settings.training.target_kl
        assert target_kl is not None  # or steps would not be bounded

        def measure() -> float:
            return bounded_kl(rows, lambda sample: -self.updater.score(sample, tokens)[0], target_kl, gap, rng)

        self.controllers.bound_step(
            kl_before_last_step,
            measure=measure,
            shorten=lambda fraction: self.updater.scale_update(weights_before, fraction),
        )

    def _observe_update(self, rows: Sequence[Row], tokens: int, metrics: Metrics) -> None:
        """Measure how far the update has moved the policy, if controllers need it."""
        if self.controllers.measures:
            metrics["final_kl"] = float(self.updater.score(rows, tokens)[0].mean())
            self.controllers.observe_update(metrics["final_kl"])

    def _measured(self, turns: Turns, rows: Sequence[Row]) -> Turns:
        """The turns with the measurements of the sampling policy that their credit needs."""
        measure = self.settings.algorithm.credit.measure
        tokens_N = turns.tokens_N
        tokens = turns.num_tokens
        if measure == "entropy":
            # reduceat needs an index within the array for a last turn without tokens.
            entropy_K = np.append(self.updater.score(rows, tokens)[1], 0.0)
            entropy_N = np.add.reduceat(entropy_K, turns.first_token_N) / np.maximum(tokens_N, 1)
            turns = turns.with_columns(entropy_N=np.where(tokens_N > 0, entropy_N, 0.0))
        if measure == "energy":
            drift_K, squares_K = self.updater.score(rows, tokens, entropy="squares")
            logprob_K = np.zeros(tokens)
            for row in rows:
                logprob_K[row.token_K] = row.logprob_K
            turns = turns.with_columns(energy_K=1.0 - 2.0 * np.exp(logprob_K - drift_K) + squares_K)
        return turns

    def _entropy(self, turns: Turns, rows: Sequence[Row]) -> np.ndarray | None:
        """Mean entropy at temperature 1 over the response tokens of each task group, if controllers need it."""
        if not self.controllers.measures:
            return None
        group_K = np.repeat(turns.group_index_N, turns.tokens_N)
        entropy_K = self.updater.score(rows, len(group_K), at_temperature_1=True)[1]
        return group_mean(entropy_K, group_K, turns.num_groups)

    def _by_environment(self, episodes: Sequence[Episode], turns: Turns, credit: Credit) -> Metrics:
        """Credit statistics of each environment, where the run has several."""
        metrics: Metrics = {}
        for mask_E, env_turns in turns.by_env():
            name = episodes[int(np.argmax(mask_E))].environment
            if name:
                stats = credit_statistics(env_turns, credit.advantage_N[mask_E[turns.episode_N]])
                metrics |= {of_environment(metric, name): value for metric, value in stats.items()}
        return metrics

    # Checkpoints ------------------------------------------------------------------------------------------------------

    def state_dict(self) -> State:
        """The state for a checkpoint, apart from the :attr:`entries`."""
        return {"skipped_in_a_row": self.updater.skipped.in_a_row, "controllers": self.controllers.state_dict()}

    def load_state_dict(self, state: State) -> None:
        self.updater.skipped.in_a_row = int(state["skipped_in_a_row"])
        self.controllers.load_state_dict(state["controllers"])
