"""The training loop: collect episodes, learn from them, record, evaluate, save."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext

import torch

from gagpo.agents.engines.sync import weights_synced
from gagpo.agents.setup import make_env, tasks_of
from gagpo.base.errors import GagpoError
from gagpo.base.memory import release_freed
from gagpo.collecting.ahead import AheadCollector
from gagpo.collecting.collector import Collection, Collector
from gagpo.collecting.distributed_rollout import require_fitting, rollout_of
from gagpo.collecting.pool import open_run_pool
from gagpo.collecting.schedule import Schedule
from gagpo.controllers import Controllers
from gagpo.data.episodes import Episode
from gagpo.distributed.interrupt import Interruptions
from gagpo.distributed.ranks import Ranks
from gagpo.distributed.sharding import sampled_from
from gagpo.envs.pool import Pool
from gagpo.eval.evaluate import choose_panel, require_played
from gagpo.eval.results import EvalResult
from gagpo.eval.runs import final_results
from gagpo.model.loading import commit_of
from gagpo.model.spans import span
from gagpo.runs import checkpoint as checkpoints
from gagpo.runs.checkpoint import Checkpoint, CheckpointError, State
from gagpo.runs.metrics import Metrics
from gagpo.runs.run_folder import RunFolder, enough
from gagpo.training.events import Report
from gagpo.training.learner import Learner
from gagpo.training.metrics import rollout_metrics
from gagpo.training.policy import load_policy, require_trainable
from gagpo.training.recorder import Recorder
from gagpo.training.sampler import Sampler, needs_weights
from gagpo.training.time_left import TimeLeft

INTERRUPTED_SECONDS = 10.0
"""Longest wait of an interrupted run for episodes that are sampled ahead; later they are sampled again."""


class NothingToLearn(GagpoError, RuntimeError):
    """An iteration without a single turn."""


class Trainer:
    """One run.

    report: called with every event, see :mod:`gagpo.training.events`.
    quiet: hide progress bars.
    ranks: the processes that train together. All do the same; only the first one writes and reports.
    """

    def __init__(
        self, folder: RunFolder, report: Report | None = None, quiet: bool = False, ranks: Ranks | None = None
    ):
        self.ranks = ranks = ranks or Ranks()
        settings = folder.settings
        if not ranks.alone:
            require_fitting(settings, ranks.world_size)
            settings = settings.model_copy(update={"device": ranks.device(settings.device)})
        self.folder, self.settings, self.quiet = folder, settings, quiet or not ranks.first
        torch.set_num_threads(ranks.threads(settings.threads))
        environments = {
            env.name: make_env(env.environment.id, env.environment.kwargs) for env in settings.all_environments
        }
        tasks = {env.name: tasks_of(environments[env.name], env.environment.split) for env in settings.all_environments}
        self.panels = {
            name: (env, choose_panel(tasks_of(environments[env.name], split), env.evaluation.tasks))
            for env in settings.all_environments
            for name, split in env.panels.items()
        }
        chosen = settings.algorithm.controllers
        controllers = Controllers(chosen, settings.training.target_kl, settings.optimizer.scale_by_groups)
        self.interruptions = Interruptions(ranks)
        rollout = rollout_of(ranks, self.interruptions)
        schedule = Schedule(settings, tasks)
        self.collector = (
            AheadCollector(settings, schedule, controllers)
            if settings.rollout.ahead
            else Collector(settings, schedule, controllers, rollout)
        )

        saved = self._last_checkpoint()
        require_trainable(settings)
        commit = ranks.of_first(lambda: folder.commit or commit_of(settings.model, settings.revision))
        policy = load_policy(settings, saved, commit)
        # Before the learner shards the policy.
        model = sampled_from(policy.model, ranks, settings.engine.dtype, needs_weights(settings))
        self.left = TimeLeft(settings)
        self.recorder = Recorder(folder, settings, policy.tokenizer, report, ranks)
        self.learner = Learner(settings, policy, controllers, ranks, self.recorder, saved)
        self.sampler = Sampler(settings, environments, policy, model, rollout, ranks)
        if ranks.first:
            folder.pin(commit)
        self.iteration = self.turns_total = self.tokens_total = 0
        if saved:
            self._restore(saved)
        self.recorder.require_room_for_run(self.learner.checkpoint_bytes)
        self._consistent: State | None = self._state()  # the state to save; None during an update
        self._saved_at = self.iteration

    @property
    def done(self) -> bool:
        """Whether all iterations or environment turns are done."""
        return enough(self.settings.training, self.iteration, self.turns_total)

    def run(self) -> None:
        """Train to the end; a resumed run skips what is done.

        Ctrl-C and SIGTERM take effect between updates and saves, after a checkpoint is written.
        """
        with (
            self.interruptions.watching(),
            open_run_pool(self.settings) as pool,
            self.recorder.recording(self.iteration),
        ):
            try:
                self._run(pool)
            except (KeyboardInterrupt, SystemExit):
                if self.iteration > self._saved_at and self._consistent is not None:
                    self._save(INTERRUPTED_SECONDS)
                raise
            finally:
                self.collector.close()

    def _run(self, pool: Pool) -> None:
        training = self.settings.training
        if self.settings.evaluation.before and self.iteration == 0:
            self._evaluate(pool, "before")
        # Of a resumed run: an interruption saves the iteration before its evaluation is done.
        self._evaluate_if_due(pool)
        while not self.done:
            # Collect, learn, record; then evaluate and save when due.
            begun = time.perf_counter()
            with span("collecting"):
                collected = self.collector.collect(self.sampler.agent(), pool, self.iteration)
            release_freed()
            require_turns(collected.played, self.iteration + 1)
            with self.interruptions.deferred():
                self._consistent = None  # a second Ctrl-C is raised at once, and half an update must not be saved
                with span("credit and batches"):
                    metrics = self._learn(collected, pool, begun)
                release_freed()
                with span("writing"):
                    left = self.left.seconds(self.iteration, self.turns_total)
                    self.recorder.iteration(metrics, collected.played, left)
                self._consistent = self._state()
            self._evaluate_if_due(pool)
            if self.iteration % training.save_every == 0 or self.done:
                self._save()
        self._evaluate(pool, "after")
        if training.measures_average:
            self._evaluate_average(pool)

    def _learn(self, collected: Collection, pool: Pool, begun: float) -> Metrics:
        """Learn from an iteration and count it; returns its metrics. begun: when its collection began."""
        collected_at = time.perf_counter()
        with self.collector.updating(self.sampler.engine, self.learner.model, self.iteration + 1):
            learned = self.learner.learn(collected, self.iteration)
        now, clock = time.perf_counter(), collected.clock
        episodes = [*collected.played, *collected.probe, *collected.stale]
        turns = [turn for episode in episodes for turn in episode.turns]
        tokens = sum(len(turn.response_ids) for turn in turns)
        self.iteration += 1
        self.turns_total += len(turns)
        self.tokens_total += tokens
        self.left.iteration(now - begun, len(turns))
        return {
            "iteration": self.iteration,
            **rollout_metrics(collected.played),
            "sampling_rounds": collected.rounds,
            **collected.stats,
            **learned,
            "turns_total": self.turns_total,
            "tokens_total": self.tokens_total,
            "tokens_per_second": tokens / (now - begun),
            "seconds_env": clock.environment,
            "seconds_generate": clock.generation,
            "seconds_train": now - collected_at,
            "engine_busy": clock.generation / max(clock.total, 1e-9),
            "environment_restarts": pool.counters.restarts,
            **self.sampler.measures(),
        }

    def _evaluate_if_due(self, pool: Pool) -> None:
        """Make the evaluation of the last iteration if one is due; the last of the run is measured after it."""
        every = self.settings.evaluation.every
        if every and self.iteration and self.iteration % every == 0 and not self.done:
            self._evaluate(pool, f"iteration-{self.iteration:04d}")

    def _evaluate(self, pool: Pool, stage: str) -> None:
        """Evaluate every panel that has no result of this stage yet."""
        settings = self.settings
        name = settings.model if stage == "before" else f"{settings.name}, iteration {self.iteration}"
        begun, played = time.perf_counter(), False
        for panel_name, (env, panel) in self.panels.items():
            label = f"{stage}-{panel_name}"
            if not self.recorder.has_measured(label):
                played = True
                with self.collector.paused(self.sampler.engine):
                    result, episodes = self.sampler.evaluate(pool, env, panel, name, self.quiet)
                require_played(result, episodes, label)
                self.recorder.evaluation(label, result, episodes)
        release_freed()
        if played:
            self.left.evaluation(time.perf_counter() - begun)

    def _evaluate_average(self, pool: Pool) -> None:
        """Evaluate the averaged weights at the end of the run; the engine keeps them."""
        average = self.learner.average
        if average is None or all(self.recorder.has_measured(f"average-{split}") for split in self.panels):
            return
        self.collector.close()
        with average.applied():
            with weights_synced(self.sampler.engine, self.learner.model, self.settings.engine.sleep):
                pass
            self._evaluate(pool, "average")

    # Checkpoints ------------------------------------------------------------------------------------------------------

    def _save(self, seconds: float | None = None) -> None:
        """Write a checkpoint. seconds: longest wait for episodes that are sampled ahead."""
        sampled = self.collector.sampled(seconds)
        with self.interruptions.deferred():  # a writer that is interrupted while it starts cannot be joined
            size, state = self.learner.checkpoint_bytes, self._consistent or self._state()
            self.recorder.save(self.iteration, size, lambda: self.learner.snapshot(state, sampled))
            self._saved_at = self.iteration

    def _last_checkpoint(self) -> Checkpoint | None:
        """The checkpoint to resume from, verified and the same on all ranks."""
        saved = checkpoints.latest(self.folder.path / "checkpoints")
        self.ranks.agree("the last checkpoint", saved and saved.iteration)
        if saved:
            self.ranks.of_first(saved.verify)
        return saved

    def _state(self) -> State:
        """The state for a checkpoint, apart from weights and optimiser."""
        counters = {"iteration": self.iteration, "turns_total": self.turns_total, "tokens_total": self.tokens_total}
        return {**counters, **self.collector.state_dict(), **self.learner.state_dict()}

    def _restore(self, saved: Checkpoint) -> None:
        state = saved.state()
        try:
            self.iteration = int(state["iteration"])
            self.turns_total, self.tokens_total = int(state["turns_total"]), int(state["tokens_total"])
            self.collector.load_state_dict(state)
            saved.load_sampled(self.collector.load_sampled)
            self.learner.load_state_dict(state)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            reason = str(error)[:200]  # it may quote a damaged state at any length
            raise CheckpointError(f"{saved.path / 'state.json'} is not a trainer's state: {reason}") from None


def train(
    folder: RunFolder, report: Report | None = None, quiet: bool = False, ranks: Ranks | None = None
) -> dict[str, EvalResult]:
    """Run or resume the run in ``folder``; returns its final evaluations by panel.

    A new run's folder is written when model, environments, engine and device have been found to work.
    """
    ranks, trainer = ranks or Ranks(), None
    if ranks.of_first(lambda: folder.is_new):
        trainer = Trainer(folder, report, quiet, ranks)
    with folder.locked() if ranks.first else nullcontext():
        if ranks.first:
            folder.write()
            folder.remove_leftovers()
        trainer = trainer or Trainer(folder, report, quiet, ranks)
        trainer.run()
        return final_results(folder.path, trainer.panels)


def require_turns(played: Sequence[Episode], iteration: int) -> None:
    """Raise :class:`NothingToLearn` if no episode of an iteration had a turn."""
    if any(episode.turns and episode.outcome != "failed" for episode in played):
        return
    errors = [episode.info["error"] for episode in played if "error" in episode.info]
    if errors:
        raise NothingToLearn(
            f"iteration {iteration}: every episode failed in its environment; the first error: {errors[0]}"
        )
    raise NothingToLearn(
        f"iteration {iteration}: no prompt left room for a response; lower rollout.max_tokens or context.history, or "
        "use a model with a longer context"
    )
