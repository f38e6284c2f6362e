"""The learner: credit and optimiser steps for the episodes of an iteration."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gagpo.collecting.collector import Collection, tasks_of_groups
from gagpo.controllers import Controllers
from gagpo.controllers.average import AveragedWeights
from gagpo.credit import Credit, Turns, advantages, turns_for
from gagpo.credit.assign import first_tokens, statistics
from gagpo.credit.turns.grouping import group_mean
from gagpo.data.episodes import Episode
from gagpo.distributed.ranks import Ranks
from gagpo.distributed.sharding import shard
from gagpo.distributed.states import names_of
from gagpo.learning.batch import Row, build_rows
from gagpo.learning.forward import Critic, autocast
from gagpo.learning.optimizer import lr_scale, make_optimizer, parameter_groups
from gagpo.learning.packing import packing_of
from gagpo.learning.skipped_steps import NonFiniteLoss
from gagpo.learning.update import Updater, divergence
from gagpo.runs.checkpoint import Checkpoint, Snapshot, State, copied
from gagpo.runs.metrics import Metrics
from gagpo.runs.register import of_environment
from gagpo.settings import RunSettings
from gagpo.training.annotations import annotate
from gagpo.training.events import Warned
from gagpo.training.policy import TrainedPolicy
from gagpo.training.recorder import Recorder, checkpoint_bytes


class Learner:
    """Updates a policy. All ranks do the same, each with its share of the rows.

    recorder: saves the episodes that made a loss NaN.
    saved: the checkpoint to resume from; ``policy`` already has its weights.
    """

    def __init__(
        self,
        settings: RunSettings,
        policy: TrainedPolicy,
        controllers: Controllers,
        ranks: Ranks,
        recorder: Recorder,
        saved: Checkpoint | None = None,
    ):
        self.settings, self.policy, self.controllers, self.ranks = settings, policy, controllers, ranks
        self.recorder = recorder
        self.algorithm = settings.algorithm.resolved(settings.longest_response)
        rate, training = settings.optimizer, settings.training
        self.critic = Critic(self.model, settings.algorithm.critic) if settings.algorithm.critic else None
        if saved and self.critic is not None:
            saved.load_critic(self.critic)
        if not ranks.alone:
            self._shard()
        groups = parameter_groups(self.model, rate)
        if self.critic is not None:
            groups.append({"params": list(self.critic.parameters()), "lr": self.critic.settings.learning_rate})
        self.rates = [group["lr"] for group in groups]
        self.optimizer = make_optimizer(groups, rate)
        self.updater = Updater(
            self.model,
            self.optimizer,
            self.algorithm,
            epochs=training.epochs,
            minibatches=training.minibatches,
            packing=packing_of(self.model, settings),
            max_grad_norm=rate.max_grad_norm,
            reference=policy.reference,
            reference_scope=policy.reference_scope,
            critic=self.critic,
            autocast=functools.partial(autocast, settings),
            device=settings.device,
            max_nonfinite_steps=training.max_nonfinite_steps,
            ranks=ranks,
        )
        if saved:
            saved.load_optimizer(self.optimizer, names_of(self.model, self.critic), ranks)
        self.average = AveragedWeights(policy.trained(), policy.average) if training.ema else None

    @property
    def model(self) -> torch.nn.Module:
        return self.policy.model

    def _shard(self) -> None:
        """Shard policy, critic and reference; a reference that is the policy without its adapter is sharded once."""
        precision, device, critic = self.settings.training.dtype, self.settings.device, self.critic
        shard(self.model, self.ranks, precision, device, critic.head if critic else None)
        if self.policy.reference is not None and self.policy.reference is not self.model:
            shard(self.policy.reference, self.ranks, self.settings.engine.dtype, device)

    def learn(self, collected: Collection, iteration: int) -> Metrics:
        """Update the policy on the episodes of ``iteration`` (from 0), and annotate them with their credit.

        Returns the metrics of credit, update and controllers, and the learning rate.

        Raises:
            NonFiniteLoss: the message names the file with the episodes that caused it.
        """
        learned: Metrics = {}
        if collected.episodes:
            learned = self._update(collected, iteration)
        else:
            self.controllers.skip()
        if self.average:
            learned["average_distance"] = self.average.update(iteration + 1, self.ranks.total)
        return {**learned, **self.controllers.values(), "learning_rate": self.optimizer.param_groups[0]["lr"]}

    # An update --------------------------------------------------------------------------------------------------------

    def _update(self, collected: Collection, iteration: int) -> Metrics:
        episodes = collected.episodes
        turns, rows = self._turns(episodes), build_rows(episodes)
        credit = self._credit(episodes, turns, rows)
        learned = self._optimise(episodes, rows, credit, iteration)
        self._observe(rows, credit.tokens, learned)
        annotate(
            collected.played,
            episodes,
            turns,
            credit,
            self.settings.algorithm.credit,
            self.updater.ratio_K,
            self.updater.gate_weight_K,
        )
        return {**credit.stats, **self._by_environment(episodes, turns, credit), **learned}

    def _turns(self, episodes: Sequence[Episode]) -> Turns:
        """The turns as columns, with rewards as settings and controllers shape them."""
        settings = self.settings
        credit, only_success = settings.algorithm.credit, settings.reward == "success"
        turns = turns_for(episodes, credit, settings.invalid_action_penalty, only_success)
        limits = {env.name: env.max_tokens for env in settings.all_environments}
        limit_E = np.array([limits[episode.environment or ""] for episode in episodes])
        return self.controllers.shape(turns, limit_E[turns.episode_N])

    def _credit(self, episodes: Sequence[Episode], turns: Turns, rows: Sequence[Row]) -> Credit:
        """The advantage of every turn."""
        tokens = int(turns.tokens_N.sum())
        self.controllers.observe_batch(turns, tasks_of_groups(episodes), self._entropy(turns, rows))
        value_K = self.updater.values(rows, tokens)
        return advantages(self._measured(turns, rows), self.settings.algorithm.credit, value_K)

    def _optimise(self, episodes: Sequence[Episode], rows: Sequence[Row], credit: Credit, iteration: int) -> Metrics:
        """Take the optimiser steps."""
        settings = self.settings
        scheduled = lr_scale(settings.optimizer, iteration, settings.training.iterations)
        for group, highest in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = self.controllers.rate(highest, scheduled, credit.stats["zero_advantage_groups"])
        before = self.updater.weights() if self.controllers.bounds_steps else []
        rng = np.random.default_rng([settings.seed, iteration])
        try:
            learned = self.updater.update(rows, credit, rng, self.controllers.controls)
        except NonFiniteLoss as error:
            path = self._save_offenders(iteration, episodes)
            raise NonFiniteLoss(f"iteration {iteration + 1}: {error}; see {path}", error.turns) from None
        if self.updater.skips.errors:
            path = self._save_offenders(iteration, episodes)
            self.recorder.report(Warned(f"{self.updater.skips.errors[0]}: the step was skipped; see {path}"))
        self._bound_step(before, rows, credit.tokens, learned)
        return learned

    def _bound_step(self, before: list[torch.Tensor], rows: Sequence[Row], tokens: int, learned: Metrics) -> None:
        """Shorten the step if it left the trust region."""
        steps = learned["updates"]
        if not steps or not self.controllers.bounds_steps:
            self.controllers.skip()
            return
        seen = divergence(np.log(self.updater.ratio_K)) if steps > 1 else None
        gap = learned.get("mismatch_kl", 0.0)  # between sampler and trainer before any step
        self.controllers.bound_step(
            seen,
            measure=lambda: divergence(-self.updater.score(rows, tokens)[0]) - gap,
            shorten=lambda part: self.updater.retreat(before, part),
        )

    def _observe(self, rows: Sequence[Row], tokens: int, learned: Metrics) -> None:
        """Measure how far the update has moved the policy, if controllers need it."""
        if self.controllers.measures:
            learned["final_kl"] = float(self.updater.score(rows, tokens)[0].mean())
            self.controllers.observe_update(learned["final_kl"])

    def _measured(self, turns: Turns, rows: Sequence[Row]) -> Turns:
        """The turns with the measurements of the sampling policy that their credit needs."""
        wanted = self.settings.algorithm.credit.measure
        tokens_N, first_N = turns.tokens_N, first_tokens(turns.tokens_N)
        tokens = int(tokens_N.sum())
        if wanted == "entropy":
            entropy_K = np.append(self.updater.score(rows, tokens)[1], 0.0)
            entropy_N = np.add.reduceat(entropy_K, first_N) / np.maximum(tokens_N, 1)
            turns = replace(turns, entropy_N=np.where(tokens_N > 0, entropy_N, 0.0))
        if wanted == "energy":
            drift_K, squares_K = self.updater.score(rows, tokens, entropy="squares")
            logprob_K = np.zeros(tokens)
            for row in rows:
                logprob_K[row.token_K] = row.logprob_K
            turns = replace(turns, energy_K=1.0 - 2.0 * np.exp(logprob_K - drift_K) + squares_K)
        return turns

    def _entropy(self, turns: Turns, rows: Sequence[Row]) -> np.ndarray | None:
        """Mean entropy at temperature 1 over the response tokens of each task group, if controllers need it."""
        if not self.controllers.measures:
            return None
        group_K = np.repeat(turns.group_index_N, turns.tokens_N)
        return group_mean(self.updater.score(rows, len(group_K), plain=True)[1], group_K, turns.groups)

    def _by_environment(self, episodes: Sequence[Episode], turns: Turns, credit: Credit) -> Metrics:
        """Credit statistics of each environment, where the run has several."""
        found: Metrics = {}
        for own_E, one in turns.by_env():
            if name := episodes[int(np.argmax(own_E))].environment:
                own = statistics(one, credit.advantage_N[own_E[turns.episode_N]])
                found |= {of_environment(metric, name): value for metric, value in own.items()}
        return found

    def _save_offenders(self, iteration: int, episodes: Sequence[Episode]) -> Path:
        """Save the episodes whose turns made the loss NaN, or all ``episodes`` if these are unknown."""
        first = np.cumsum([0, *(len(episode.turns) for episode in episodes)])
        places = {int(np.searchsorted(first, turn, side="right")) - 1 for turn in self.updater.skips.turns}
        return self.recorder.save_offenders(iteration + 1, [episodes[i] for i in sorted(places)] or episodes)

    # Checkpoints ------------------------------------------------------------------------------------------------------

    def state_dict(self) -> State:
        """The state for a checkpoint, apart from weights and optimiser."""
        return {"skipped_in_a_row": self.updater.skips.row, "controllers": self.controllers.state_dict()}

    def load_state_dict(self, state: State) -> None:
        self.updater.skips.row = int(state["skipped_in_a_row"])
        self.controllers.load_state_dict(state["controllers"])

    @property
    def checkpoint_bytes(self) -> int:
        adapter, averaged = self.policy.base is not None, self.average is not None
        return checkpoint_bytes(self.model, self.optimizer, self.critic, adapter, averaged)

    def snapshot(self, state: State, sampled: bytes | None = None) -> Snapshot:
        """Copy everything that a checkpoint holds; all ranks together.

        state: of the whole trainer.
        sampled: by its collector.
        """
        more: dict[str, Any] = {"sampled": sampled}
        if self.average:
            with self.average.applied():
                more["average"] = copied(self.model, self.policy.base, self.ranks)
        return Snapshot.of(self.model, self.optimizer, state, self.critic, self.policy.base, self.ranks, **more)
