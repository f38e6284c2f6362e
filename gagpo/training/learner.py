"""What learns: model, critic and optimiser; credit and optimiser steps for the episodes of an iteration."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from gagpo.agents.episodes import Episode
from gagpo.collecting.collector import Collection, tasks_of_groups
from gagpo.controllers import Controllers
from gagpo.controllers.average import AveragedWeights
from gagpo.credit import Credit, Turns, give_credit, turns_for
from gagpo.credit.assign import first_tokens, statistics
from gagpo.credit.turns.grouping import group_mean
from gagpo.distributed.ranks import Ranks
from gagpo.distributed.sharding import shard
from gagpo.distributed.states import names_of
from gagpo.envs.base import TextEnv
from gagpo.imitation.imitation import Imitation
from gagpo.learning.batch import Row, build_rows
from gagpo.learning.critic import Critic
from gagpo.learning.packing import packing_of
from gagpo.learning.precision import autocast
from gagpo.learning.steps.optimizer import make_optimizer, parameter_groups, rate_scale
from gagpo.learning.steps.skipped_steps import NonFiniteLoss
from gagpo.learning.update import Updater, divergence
from gagpo.runs.checkpoint import Checkpoint, Snapshot, State, copied
from gagpo.runs.register import of_world
from gagpo.settings import RunSettings, SettingsError, World
from gagpo.training import room
from gagpo.training.annotations import annotate
from gagpo.training.events import Metrics
from gagpo.training.policy import TrainedPolicy
from gagpo.training.recorder import Recorder


class Learner:
    """Improves a policy. All ranks do the same, each with its share of the rows.

    recorder: keeps what made a loss NaN. saved: the checkpoint to go on from, verified; its weights are in ``policy``.
    worlds: one environment of each, by its name, to ask what is said of it.
    """

    def __init__(
        self,
        settings: RunSettings,
        policy: TrainedPolicy,
        controllers: Controllers,
        ranks: Ranks,
        recorder: Recorder,
        saved: Checkpoint | None = None,
        worlds: Mapping[str, TextEnv] | None = None,
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
        elif "weights" in training.offload:
            raise SettingsError(
                "training.offload: [weights] moves the parts of several processes, and this one trains alone: set "
                "processes=2 or more, or take it out"
            )
        groups = parameter_groups(self.model, rate)
        if self.critic is not None:
            trained = [parameter for parameter in self.critic.parameters() if parameter.requires_grad]
            groups.append({"params": trained, "lr": self.critic.settings.learning_rate})
        self.rates = [group["lr"] for group in groups]
        self.optimizer = make_optimizer(groups, rate)
        self.updater = Updater(
            self.model,
            self.optimizer,
            self.algorithm,
            epochs=training.epochs,
            minibatches=training.minibatches,
            minibatch_of="group",
            packing=packing_of(self.model, settings),
            max_grad_norm=rate.max_grad_norm,
            reference=policy.reference,
            reference_scope=policy.reference_scope,
            critic=self.critic,
            autocast=functools.partial(autocast, settings),
            device=settings.device,
            max_skipped=training.max_skipped,
            ranks=ranks,
        )
        self.imitation = Imitation(settings, self.model, policy.tokenizer, ranks, worlds or {})
        if saved and self.imitation.replay is not None:
            saved.load_replay(self.imitation.replay.restore)
        if saved:
            saved.load_optimizer(self.optimizer, names_of(self.model, self.critic), ranks)
        self.average = AveragedWeights(policy.trained(), policy.average) if training.average else None

    @property
    def model(self) -> torch.nn.Module:
        return self.policy.model

    def _shard(self) -> None:
        """Shard what is computed with; a reference that is the model itself, its adapter off, only once."""
        precision, device, critic = self.settings.training.precision, self.settings.device, self.critic
        offload = "weights" in self.settings.training.offload
        shared = critic is not None and critic.backbone is None
        shard(
            self.model, self.ranks, precision, device, critic.head if critic is not None and shared else None, offload
        )
        if critic is not None and critic.backbone is not None:
            shard(critic.backbone, self.ranks, precision, device, critic.head, offload)
        if self.policy.reference is not None and self.policy.reference is not self.model:
            shard(self.policy.reference, self.ranks, self.settings.engine.dtype, device, offload=offload)

    def learn(self, collected: Collection, iteration: int) -> Metrics:
        """Give credit, take the optimiser steps of ``iteration`` (from 0), and write to the episodes what was made.

        The metrics are those of credit, update and controllers, and the learning rate. Raises :class:`NonFiniteLoss`
        where the updater does, naming the file with the evidence. A collection without episodes teaches nothing.
        """
        learned: Metrics = {}
        if collected.episodes:
            learned = self._update(collected, iteration)
        else:
            self.controllers.skip()
        if self.average:
            learned["average_distance"] = self.average.update(iteration + 1, self.ranks.total)
        return {**learned, **self.controllers.values(), "learning_rate": self.optimizer.param_groups[0]["lr"]}

    def _update(self, collected: Collection, iteration: int) -> Metrics:
        settings, credit_settings, episodes = self.settings, self.settings.algorithm.credit, collected.episodes
        worlds = {name: settings.world_named(name) for name in {episode.world or "" for episode in episodes}}
        world_E = [worlds[episode.world or ""] for episode in episodes]
        turns = turns_for(
            episodes,
            credit_settings,
            [world.invalid_penalty for world in world_E],
            [world.reward == "success" for world in world_E],
        )
        limit_E = np.array([world.max_tokens for world in world_E])
        turns = self.controllers.shape(turns, limit_E[turns.episode_N] if settings.environments else None)
        rows, tokens = build_rows(episodes), int(turns.tokens_N.sum())
        self.controllers.observe_batch(turns, tasks_of_groups(episodes), self._entropy(turns, rows))
        value_K = self.updater.values(rows, tokens)
        credit = give_credit(self._measured(turns, rows), credit_settings, value_K)
        scheduled = rate_scale(settings.optimizer, iteration, settings.training.iterations)
        for group, highest in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = self.controllers.rate(highest, scheduled, credit.stats["zero_groups"])
        rng = np.random.default_rng([settings.seed, iteration])
        before = self.updater.weights() if self.controllers.bounds_steps else []
        try:
            lesson = self.imitation.lesson(episodes, rows, credit, iteration)
            learned = self.updater.update(
                lesson.rows, lesson.credit, rng, self.controllers.controls, lesson.supervision
            )
        except NonFiniteLoss as error:
            path = self._save_offenders(iteration, episodes)
            raise NonFiniteLoss(f"iteration {iteration + 1}: {error}; see {path}", error.turns) from None
        if self.updater.skips.errors:
            path = self._save_offenders(iteration, episodes)
            self.recorder.skipped(f"{self.updater.skips.errors[0]}: the step was skipped; see {path}")
        self._bound_step(before, rows, tokens, learned)
        if self.controllers.measures:
            learned["final_kl"] = float(self.updater.score(rows, tokens)[0].mean())
            self.controllers.observe_update(learned["final_kl"])
        self.imitation.remember(episodes, turns, credit, iteration)
        annotate(collected.played, episodes, turns, credit, credit_settings, value_K, self.updater.ratio_K[:tokens])
        return {**credit.stats, **_by_world(turns, credit, world_E), **lesson.stats, **learned}

    def _bound_step(self, before: list[torch.Tensor], rows: Sequence[Row], tokens: int, learned: Metrics) -> None:
        """Take back what the updates moved the policy by beyond the trust region, and adapt the rate."""
        steps = learned["updates"]
        if not steps or not self.controllers.bounds_steps:
            self.controllers.skip()
            return
        seen = divergence(np.log(self.updater.ratio_K[:tokens])) if steps > 1 else None
        # What sampler and trainer differ by without any step is no distance.
        apart = learned.get("mismatch_kl", 0.0)
        self.controllers.bound_step(
            seen,
            measure=lambda: divergence(-self.updater.score(rows, tokens)[0]) - apart,
            shorten=lambda part: self.updater.retreat(before, part),
        )

    def _measured(self, turns: Turns, rows: Sequence[Row]) -> Turns:
        """The turns with what their credit reads of the policy that sampled them."""
        credit = self.settings.algorithm.credit
        wanted = {part.measure for part in getattr(credit, "credits", [credit])}
        tokens_N, first_N = turns.tokens_N, first_tokens(turns.tokens_N)
        tokens = int(tokens_N.sum())
        if "entropy" in wanted:
            entropy_K = np.append(self.updater.score(rows, tokens)[1], 0.0)
            entropy_N = np.add.reduceat(entropy_K, first_N) / np.maximum(tokens_N, 1)
            turns = replace(turns, entropy_N=np.where(tokens_N > 0, entropy_N, 0.0))
        if "energy" in wanted:
            drift_K, squares_K = self.updater.score(rows, tokens, entropy="squares")
            logprob_K = np.zeros(tokens)
            for row in rows:
                logprob_K[row.token_K] = row.logprob_K
            turns = replace(turns, energy_K=1.0 - 2.0 * np.exp(logprob_K - drift_K) + squares_K)
        return turns

    def _entropy(self, turns: Turns, rows: Sequence[Row]) -> np.ndarray | None:
        """Mean entropy of the policy at temperature 1 over each task group's response tokens, where it is wanted."""
        if not self.controllers.measures:
            return None
        group_K = np.repeat(turns.group_index_N, turns.tokens_N)
        return group_mean(self.updater.score(rows, len(group_K), plain=True)[1], group_K, turns.groups)

    def _save_offenders(self, iteration: int, episodes: Sequence[Episode]) -> Path:
        """Keep the episodes whose turns made the loss NaN; all of them where that is unknown."""
        first = np.cumsum([0, *(len(episode.turns) for episode in episodes)])
        places = {int(np.searchsorted(first, turn, side="right")) - 1 for turn in self.updater.skips.turns}
        return self.recorder.save_offenders(iteration + 1, [episodes[i] for i in sorted(places)] or episodes)

    # Checkpoints ------------------------------------------------------------------------------------------------------

    def state_dict(self) -> State:
        """What a checkpoint holds beside weights and optimiser."""
        return {"skipped_in_a_row": self.updater.skips.row, "controllers": self.controllers.state_dict()}

    def load_state_dict(self, state: State) -> None:
        """Go on where a checkpoint ended."""
        self.updater.skips.row = int(state.get("skipped_in_a_row", 0))  # earlier versions skipped nothing
        self.controllers.load_state_dict(state["controllers"])

    @property
    def checkpoint_bytes(self) -> int:
        adapter, averaged = self.policy.base is not None, self.average is not None
        return room.bytes_of(self.model, self.optimizer, self.critic, adapter, averaged)

    def snapshot(self, state: State, sampled: bytes | None = None) -> Snapshot:
        """A copy of everything that a checkpoint holds; all ranks together.

        state: of the whole trainer. sampled: of its collector.
        """
        base, average, buffer = self.policy.base, None, self.imitation.replay
        replay = buffer.state() if buffer is not None and self.ranks.first else None
        if self.average:
            with self.average.applied():
                average = copied(self.model, base, self.ranks)
        optimizer, critic = self.optimizer, self.critic
        return Snapshot.of(self.model, optimizer, state, critic, base, self.ranks, average, replay, sampled)


def _by_world(turns: Turns, credit: Credit, world_E: Sequence[World]) -> Metrics:
    """What credit says of the batch, of each world of several by itself."""
    names_E = np.array([world.name for world in world_E])
    found: Metrics = {}
    for name in dict.fromkeys(filter(None, names_E.tolist())):
        own_E = names_E == name
        own = statistics(turns.only(own_E), credit.advantage_N[own_E[turns.episode_N]])
        found |= {of_world(metric, name): value for metric, value in own.items()}
    return found
