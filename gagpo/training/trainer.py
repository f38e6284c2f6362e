"""The training loop: collect episodes, learn from them, record, evaluate, save."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext

import torch

from gagpo.agents.setup import make_env
from gagpo.base.memory import release_freed
from gagpo.collecting.ahead import AheadCollector
from gagpo.collecting.collector import Collection, Collector
from gagpo.collecting.distributed_rollout import Rollout, require_fitting, rollout_of
from gagpo.collecting.first_rank import FirstRankCollector
from gagpo.collecting.on_policy import OnPolicyCollector
from gagpo.collecting.pool import open_run_pool
from gagpo.collecting.schedule import Schedule
from gagpo.controllers import Controllers
from gagpo.data import Episode, TurnCredit
from gagpo.distributed.interrupt import Interruptions
from gagpo.distributed.ranks import Ranks
from gagpo.envs.pool import Pool
from gagpo.eval.results import EvalResult
from gagpo.eval.runs import final_results
from gagpo.learning.learner import Learner, LearningResult
from gagpo.learning.policy import load_policy, require_trainable
from gagpo.learning.skipped_steps import NonFiniteLoss
from gagpo.model.loading import commit_of
from gagpo.model.sharding import unsharded_copy
from gagpo.model.spans import span
from gagpo.runs import checkpoint as checkpoints
from gagpo.runs.checkpoint import Checkpoint, Entry, State
from gagpo.runs.entries import SampledEntry, StateEntry
from gagpo.runs.metrics import Metrics
from gagpo.runs.run_folder import RunFolder, enough
from gagpo.settings import RunSettings
from gagpo.training.annotations import annotate
from gagpo.training.counters import RunCounters
from gagpo.training.empty_batch import require_turns
from gagpo.training.evaluation import Evaluator, panels_of
from gagpo.training.events import Report, WarningIssued
from gagpo.training.formats import choose_formats
from gagpo.training.metrics import iteration_metrics
from gagpo.training.progress import IterationProgress
from gagpo.training.recorder import Recorder
from gagpo.training.sampler import Sampler, fill_engine_model, needs_weights
from gagpo.training.time_left import TimeLeft

TurnCredits = list[list[TurnCredit]]

INTERRUPTED_SECONDS = 10.0
"""Longest wait of an interrupted run for episodes that are sampled ahead; later they are sampled again."""


class Trainer:
    """One run.

    report: called with every event, see :mod:`gagpo.training.events`.
    quiet: hide progress bars.
    ranks: the processes that train together. All do the same; only the first one writes and reports.
    """

    def __init__(
        self, folder: RunFolder, report: Report | None = None, quiet: bool = False, ranks: Ranks | None = None
    ):
        self.ranks = ranks = (ranks or Ranks()).sharding(folder.settings.training.unsharded)
        self._formats = choose_formats(folder, ranks)
        settings = folder.settings
        if not ranks.alone:
            require_fitting(settings, ranks.world_size)
            settings = settings.model_copy(update={"device": ranks.device(settings.device)})
        self.folder = folder
        self.settings = settings
        torch.set_num_threads(ranks.threads(settings.threads))

        # Environments and tasks, before anything slow: an unknown split is an error within seconds.
        environments = {
            env.name: make_env(env.environment.id, env.environment.kwargs) for env in settings.all_environments
        }
        panels = panels_of(settings, environments)
        controllers = Controllers(
            settings.algorithm.controllers, settings.training.target_kl, settings.optimizer.scale_by_groups
        )
        self.interruptions = Interruptions(ranks)
        rollout = rollout_of(ranks, self.interruptions, 1 if settings.rollout.ahead else None)
        schedule = Schedule(settings, panels.training)
        self.collector = self._make_collector(schedule, controllers, rollout)

        # The policy, and the engine's model before the learner shards the policy.
        checkpoint = self._last_checkpoint()
        require_trainable(settings)
        commit = ranks.of_first(lambda: folder.commit or commit_of(settings.model, settings.revision))
        policy = load_policy(settings, checkpoint, commit, ranks)
        model = policy.model
        if not ranks.alone:
            model = unsharded_copy(policy.model, settings.engine.dtype, needs_weights(settings, ranks))
        self.time_left = TimeLeft(settings)
        self.recorder = Recorder(folder, settings, policy.tokenizer, report, ranks)
        self.learner = Learner(settings, policy, controllers, ranks, checkpoint)
        fill_engine_model(settings, model, policy.model, ranks)
        self.sampler = Sampler(settings, environments, policy, model, rollout, ranks)
        hidden = quiet or not ranks.first
        self.progress = IterationProgress(settings, controllers.sampling_rounds, hidden)
        self.evaluator = Evaluator(
            settings, panels, self.collector, self.sampler, self.recorder, self.time_left, quiet=hidden
        )
        if ranks.first:
            folder.pin(commit)

        # The state of a resumed run.
        self.counters = RunCounters()
        self._consistent_state: State | None = None  # the state to save; None during an update
        entries = self._entries()
        if checkpoint:
            for entry in entries:
                checkpoint.read(entry)
        self.recorder.require_room_for_run([*self.learner.entries, *entries])
        self._consistent_state = self._state()
        self._saved_at = self.iteration

    def _make_collector(self, schedule: Schedule, controllers: Controllers, rollout: Rollout) -> Collector:
        if not self.settings.rollout.ahead:
            return OnPolicyCollector(self.settings, schedule, controllers, rollout)
        ahead = AheadCollector(self.settings, schedule, controllers)
        if self.ranks.alone:
            return ahead
        return FirstRankCollector(ahead, self.ranks, self.interruptions)

    @property
    def iteration(self) -> int:
        """Iterations done."""
        return self.counters.iteration

    @property
    def done(self) -> bool:
        """Whether all iterations or environment turns are done."""
        return enough(self.settings.training, self.iteration, self.counters.turns)

    def run(self) -> None:
        """Train to the end; a resumed run skips what is done.

        Ctrl-C and SIGTERM take effect between updates and saves, after a checkpoint is written.
        """
        with (
            self.interruptions.watching(),
            open_run_pool(self._pool_settings()) as pool,
            self.recorder.recording(self.iteration),
        ):
            try:
                for event in self._formats:
                    self.recorder.report(event)
                self._train(pool)
            except (KeyboardInterrupt, SystemExit):
                if self.iteration > self._saved_at and self._consistent_state is not None:
                    self._save(INTERRUPTED_SECONDS)
                raise
            finally:
                self.collector.close()
                self.sampler.engine.close()

    def _pool_settings(self) -> RunSettings:
        """The run's settings, with a single worker on a rank that steps no environment."""
        settings = self.settings
        if not settings.rollout.ahead or self.ranks.first:
            return settings
        return settings.model_copy(update={"rollout": settings.rollout.model_copy(update={"workers": 1})})

    def _train(self, pool: Pool) -> None:
        settings = self.settings
        if settings.evaluation.before and self.iteration == 0:
            self.evaluator.evaluate(pool, "before", self.iteration)
        # An interruption saves an iteration before its evaluation is done; a resumed run makes it first.
        self.evaluator.evaluate_if_due(pool, self.iteration, self.done)

        while not self.done:
            started = time.perf_counter()

            # Collect.
            with span("collecting"), self.progress.collecting(self.iteration + 1) as on_episode:
                collected = self.collector.collect(self.sampler.agent, pool, self.iteration, on_episode)
            release_freed()
            require_turns(collected.sampled_episodes, self.iteration + 1)

            # Learn and record. The first Ctrl-C waits until the state is consistent again. A second one is raised at
            # once and finds no state to save, because a checkpoint must not hold half an update.
            with self.interruptions.deferred("the update of this iteration"):
                self._consistent_state = None
                with span("credit and batches"):
                    metrics, turn_credits = self._learn(collected, pool, started)
                release_freed()
                with span("writing"):
                    seconds_left = self.time_left.seconds(self.iteration, self.counters.turns)
                    self.recorder.iteration(metrics, collected.sampled_episodes, turn_credits, seconds_left)
                self._consistent_state = self._state()

            # Evaluate and save when due.
            self.evaluator.evaluate_if_due(pool, self.iteration, self.done)
            if self.iteration % settings.training.save_every == 0 or self.done:
                self._save()

        self.evaluator.evaluate(pool, "after", self.iteration)
        if settings.training.measures_average and self.learner.average is not None:
            self.evaluator.evaluate_average(pool, self.learner, self.learner.average, self.iteration)

    def _learn(self, collected: Collection, pool: Pool, started: float) -> tuple[Metrics, TurnCredits | None]:
        """Learn from an iteration and count it; returns its metrics and the credit of all played turns.

        started: when its collection began.
        """
        collected_at = time.perf_counter()
        with self.collector.updating(self.sampler.engine, self.learner.model, self.iteration + 1):
            with self.progress.updating(self.iteration + 1) as self.learner.updater.on_step:
                result = self._update(collected.episodes)
            turn_credits = self._turn_credits(collected, result)
        counts = self.counters.count(collected)
        finished = time.perf_counter()
        self.time_left.iteration(finished - started, counts.turns)
        metrics = iteration_metrics(collected, result.metrics, self.counters, counts.tokens / (finished - started))
        metrics["seconds_train"] = finished - collected_at
        metrics["environment_restarts"] = pool.counters.restarts
        metrics |= self.sampler.measures()
        return metrics, turn_credits

    def _update(self, episodes: Sequence[Episode]) -> LearningResult:
        """Update the policy, and save the episodes whose loss is not finite."""
        iteration = self.iteration + 1  # people count from 1
        try:
            result = self.learner.learn(episodes, self.iteration)
        except NonFiniteLoss as error:  # after several skipped steps, whose turns the learner has kept
            path = self.recorder.save_nonfinite_episodes(iteration, episodes, self.learner.nonfinite_turns)
            raise NonFiniteLoss(f"iteration {iteration}: {error}; see {path}", error.turns) from None
        if result.skipped:
            path = self.recorder.save_nonfinite_episodes(iteration, episodes, self.learner.nonfinite_turns)
            self.recorder.report(WarningIssued(f"{result.skipped[0]}: the step was skipped; see {path}"))
        return result

    def _turn_credits(self, collected: Collection, result: LearningResult) -> TurnCredits | None:
        """The credit of the turns of each played episode; None without an update."""
        if result.turns is None or result.credit is None:
            return None
        return annotate(
            collected.sampled_episodes,
            collected.episodes,
            result.turns,
            result.credit,
            self.settings.algorithm.credit,
            self.learner.updater.ratio_K,
            self.learner.updater.gate_weight_K,
        )

    # Checkpoints ------------------------------------------------------------------------------------------------------

    def _save(self, seconds: float | None = None) -> None:
        """Write a checkpoint. seconds: longest wait for episodes that are sampled ahead."""
        sampled = self.collector.sampled(seconds)
        # Deferred, because a writer that is interrupted while it starts cannot be joined.
        with self.interruptions.deferred("the checkpoint"):
            self.recorder.save(self.iteration, [*self.learner.entries, *self._entries(sampled)])
            self._saved_at = self.iteration

    def _entries(self, sampled: bytes | None = None) -> list[Entry]:
        """What a checkpoint contains next to the learner's entries. sampled: by :meth:`Collector.sampled`."""
        return [
            StateEntry(lambda: self._consistent_state or self._state(), self._load_state),
            SampledEntry(sampled, self.collector.load_sampled),
        ]

    def _last_checkpoint(self) -> Checkpoint | None:
        """The checkpoint to resume from, verified and the same on all ranks."""
        checkpoint = checkpoints.latest(self.folder.path / "checkpoints")
        self.ranks.agree("the last checkpoint", checkpoint and checkpoint.iteration)
        if checkpoint:
            self.ranks.of_first(checkpoint.verify)
        return checkpoint

    def _state(self) -> State:
        """The state for a checkpoint."""
        return {**self.counters.state_dict(), **self.collector.buffer.state_dict(), **self.learner.state_dict()}

    def _load_state(self, state: State) -> None:
        self.counters.load_state_dict(state)
        self.collector.buffer.load_state_dict(state)
        self.learner.load_state_dict(state)


def train(
    folder: RunFolder, report: Report | None = None, quiet: bool = False, ranks: Ranks | None = None
) -> dict[str, EvalResult]:
    """Run or resume the run in ``folder``; returns its final evaluations by panel.

    A new run's folder is written when model, environments, engine and device have been found to work.
    """
    ranks = ranks or Ranks()
    trainer: Trainer | None = None
    if ranks.of_first(lambda: folder.is_new):
        trainer = Trainer(folder, report, quiet, ranks)
    with folder.locked() if ranks.first else nullcontext():
        if ranks.first:
            folder.write()
            folder.remove_leftovers()
        trainer = trainer or Trainer(folder, report, quiet, ranks)
        trainer.run()
        return final_results(folder.path, trainer.evaluator.panels)
