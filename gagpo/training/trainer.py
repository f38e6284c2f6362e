"""The training loop: collect groups of episodes, give credit, update, measure, save; resumable at any instant."""

from __future__ import annotations

import copy
import functools
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gagpo.agents.engines.base import Sampling, engine_measures
from gagpo.agents.episodes import Episode
from gagpo.agents.model import commit_of, load_model, load_tokenizer
from gagpo.agents.setup import language_agent, make_world, tasks_of
from gagpo.collecting import placement
from gagpo.collecting.async_collector import collector_for, sampling_engine
from gagpo.collecting.collector import Collection, tasks_of_groups
from gagpo.collecting.distributed_rollout import require_fitting, rollout_of
from gagpo.controllers import Controllers
from gagpo.credit import Credit, Turns, give_credit, turns_for
from gagpo.credit.turns.grouping import group_mean
from gagpo.distributed.interrupt import Interruptions
from gagpo.distributed.ranks import Ranks
from gagpo.distributed.sharding import sampled_from
from gagpo.distributed.states import names_of
from gagpo.envs.errors import GagpoError
from gagpo.envs.pool import Pool
from gagpo.eval.evaluate import choose_panel, evaluate
from gagpo.eval.metrics.health import health_line
from gagpo.eval.results import EvalResult
from gagpo.learning.batch import Row, build_rows
from gagpo.learning.critic import Critic
from gagpo.learning.optimizer import make_optimizer, parameter_groups, rate_scale, require_optimizer
from gagpo.learning.precision import autocast
from gagpo.learning.skipped_steps import NonFiniteLoss
from gagpo.learning.update import Updater
from gagpo.settings import SettingsError
from gagpo.trackers import tracking
from gagpo.training import checkpoint as checkpoints
from gagpo.training import keeping, lora
from gagpo.training.annotations import annotate
from gagpo.training.metrics import rollout_metrics
from gagpo.training.run_folder import ReadOnly, RunFolder
from gagpo.training.sharded import shard_all

Report = Callable[[dict[str, Any]], None]


class NothingToLearn(GagpoError, RuntimeError):
    """An iteration in which nothing was played; the message says why and what to do."""


class Trainer:
    """One run. ``report`` is called with the metrics of every iteration; ``quiet`` hides progress bars.

    ranks: this process's place among those that train the model together. All do the same; the first one alone writes
    and reports.
    """

    def __init__(
        self, folder: RunFolder, report: Report | None = None, quiet: bool = False, ranks: Ranks | None = None
    ):
        self.ranks = ranks = ranks or Ranks()
        self.folder = folder
        self.settings = settings = folder.settings
        if not ranks.alone:
            require_fitting(settings, ranks.world)
            self.folder = folder if ranks.first else ReadOnly(folder.path, settings)
            self.settings = settings = settings.model_copy(update={"device": ranks.device(settings.device)})
        self.report = report if report and ranks.first else (lambda _: None)
        self.quiet = quiet or not ranks.first
        torch.set_num_threads(ranks.threads(settings.threads))
        self.world = make_world(settings.environment.id, settings.environment.kwargs)
        tasks = tasks_of(self.world, settings.environment.split).require()
        self.panels = {
            split: choose_panel(tasks_of(self.world, split), settings.evaluation.tasks)
            for split in settings.evaluation.splits
        }
        self.algorithm = settings.algorithm.resolved(settings.rollout.max_tokens)
        self.controllers = Controllers(self.algorithm.controllers)
        self.interruptions = Interruptions(ranks)
        self.rollout = rollout_of(ranks, self.interruptions)
        self.collector = collector_for(settings, tasks, self.controllers)
        self.collector.rollout = self.rollout
        self.iteration = self.turns_total = self.tokens_total = 0
        self._health = ""
        self._load()
        self._boundary = self._state()
        self._saved_at = self.iteration

    def _load(self) -> None:
        """Model, critic and optimiser, as the last checkpoint left them if there is one."""
        settings, rate, training = self.settings, self.settings.optimizer, self.settings.training
        saved = checkpoints.latest(self.folder.path / "checkpoints")
        self.ranks.agree("the last checkpoint", saved and saved.iteration)
        if saved:
            self.ranks.of_first(saved.verify)
        require_device(settings.device)
        require_optimizer(rate, settings.device)
        lora.check(settings)
        commit = self.ranks.of_first(lambda: self.folder.commit or commit_of(settings.model, settings.revision))
        trust = settings.trust_remote_code
        self.tokenizer = load_tokenizer(settings.model, commit, trust_remote_code=trust)
        self.model, self.base = lora.load_policy(settings, saved, commit)
        if training.gradient_checkpointing:
            self.model.gradient_checkpointing_enable()  # type: ignore[operator]
        reference = None
        if settings.algorithm.kl.coefficient > 0 and settings.lora:
            reference = self.model
        elif settings.algorithm.kl.coefficient > 0:
            reference = load_model(
                settings.model, settings.engine.dtype, settings.device, trust_remote_code=trust, revision=commit
            ).requires_grad_(False)
        self.critic = Critic(self.model, settings.algorithm.critic) if settings.algorithm.critic else None
        if saved and self.critic is not None:
            saved.load_critic(self.critic)
        sampled = sampled_from(self.model, self.ranks, settings.engine.dtype)
        if not self.ranks.alone:
            shard_all(self.model, self.critic, reference, self.ranks, settings)
        groups = parameter_groups(self.model, rate)
        if self.critic is not None and settings.algorithm.critic:
            trained = [parameter for parameter in self.critic.parameters() if parameter.requires_grad]
            groups.append({"params": trained, "lr": settings.algorithm.critic.learning_rate})
        self.rates = [group["lr"] for group in groups]
        learners = [self.model] if self.critic is None else [self.model, self.critic]
        self.optimizer = make_optimizer(learners, groups, rate)
        self.engine = sampling_engine(settings, sampled, self.tokenizer)
        if sampled is not self.model:
            self.engine.shares_weights = False
        if settings.rollout.max_tokens >= self.engine.max_length:
            raise SettingsError(
                f"rollout.max_tokens={settings.rollout.max_tokens} leaves no room for a prompt in the "
                f"{self.engine.max_length} tokens that {settings.model} can read: lower it"
            )
        self.updater = Updater(
            self.model,
            self.optimizer,
            self.algorithm,
            epochs=training.epochs,
            minibatches=training.minibatches,
            microbatch_tokens=training.microbatch_tokens,
            max_grad_norm=rate.max_grad_norm,
            reference=reference,
            reference_scope=lora.reference_scope(self.model),
            critic=self.critic,
            autocast=functools.partial(autocast, settings),
            device=settings.device,
            max_skipped=training.max_skipped,
            ranks=self.ranks,
        )
        self.saver = checkpoints.Saver(
            self.folder.path / "checkpoints", self.tokenizer, self.ranks, settings.ranks.patience
        )
        self.folder.commit = commit
        if saved:
            self._restore(saved)
        each = keeping.bytes_of(self.model, self.optimizer, self.critic, self.base is not None)
        folder = self.folder.path / "checkpoints"
        self.ranks.of_first(lambda: keeping.require_room_for_run(folder, each, training))

    @property
    def done(self) -> bool:
        """Whether the last iteration, or the last environment turn, has been trained on."""
        training = self.settings.training
        enough = training.turns is not None and self.turns_total >= training.turns
        return enough or self.iteration >= training.iterations

    def run(self) -> None:
        """Train to the end, evaluating before, in between and after; skips what was done before a resume.

        Ctrl-C and SIGTERM take effect between updates and saves, and a checkpoint is written first.
        """
        settings = self.settings
        self.folder.rewind(self.iteration)
        with (
            self.interruptions.watching(),
            placement.open_pool(settings) as pool,
            tracking(
                settings.trackers if self.ranks.first else (),
                self.folder.path,
                settings.model_dump(mode="json"),
                self.iteration,
            ) as self.trackers,
        ):
            try:
                self._run(pool)
            except (KeyboardInterrupt, SystemExit):
                if self.iteration > self._saved_at:
                    self._save()
                raise
            finally:
                self.collector.close()
                self.saver.wait()

    def _run(self, pool: Pool) -> None:
        every = self.settings.evaluation.every
        if self.settings.evaluation.before and self.iteration == 0:  # a trained model cannot be measured "before"
            self._evaluate(pool, "before")
        while not self.done:
            begun = time.perf_counter()
            collected = self.collector.collect(self._agent(self.settings.rollout.sampling), pool, self.iteration)
            require_turns(collected.played, self.iteration + 1)
            with self.interruptions.held():
                metrics = self._train_on(collected, pool, begun)
                self.folder.log(metrics)
                self.trackers.log(metrics, self.iteration)
                self.report(metrics)
                self._tell_health()
                self._boundary = self._state()
                self.saver.check()
            if every and self.iteration % every == 0 and not self.done:
                self._evaluate(pool, f"iteration-{self.iteration:04d}")
            if self.iteration % self.settings.training.save_every == 0 or self.done:
                self._save()
        self._evaluate(pool, "after")

    def _tell_health(self) -> None:
        """Say in plain words that the run cannot learn, when it begins to look so and whenever that changes."""
        line = health_line(self.folder.metrics())
        kind = re.sub(r"\d+", "", line)  # the same words with another number are no news
        if kind and kind != self._health:
            self.report({"health": line})
        self._health = kind

    def _train_on(self, collected: Collection, pool: Pool, begun: float) -> dict[str, Any]:
        """The rest of an iteration whose collection began at ``begun``; returns its metrics."""
        collected_at = time.perf_counter()
        with self.collector.updating(self.engine, self.model, self.iteration + 1):
            credit, learned = self._learn(collected) if collected.episodes else (None, {})
        self.iteration += 1
        now = time.perf_counter()
        every = self.settings.training.keep_episodes
        if every and (self.iteration == 1 or self.iteration % every == 0):
            self.folder.save_episodes(f"train-{self.iteration:04d}", collected.played, decode=self.tokenizer.decode)
            self.trackers.episodes([episode.record() for episode in collected.played[:2]], self.iteration)
        turns = [turn for episode in (*collected.played, *collected.probe, *collected.stale) for turn in episode.turns]
        tokens = sum(len(turn.response_ids) for turn in turns)
        self.turns_total += len(turns)
        self.tokens_total += tokens
        return {
            "iteration": self.iteration,
            **rollout_metrics(collected.played),
            "sampling_rounds": collected.rounds,
            **collected.stats,
            **(credit.stats if credit else {}),
            **learned,
            **self.controllers.values(),
            "learning_rate": self.optimizer.param_groups[0]["lr"],
            "turns_total": self.turns_total,
            "tokens_total": self.tokens_total,
            "tokens_per_second": tokens / (now - begun),
            "seconds_env": collected.clock.environment,
            "seconds_generate": collected.clock.generation,
            "seconds_train": now - collected_at,
            "engine_busy": collected.clock.generation / max(collected.clock.total, 1e-9),
            "environment_restarts": pool.counters.restarts,
            **engine_measures(self.engine),
        }

    def _learn(self, collected: Collection) -> tuple[Credit, dict[str, float]]:
        """Credit and optimiser steps for what was collected."""
        settings, algorithm, episodes = self.settings, self.settings.algorithm, collected.episodes
        turns = self.controllers.shape(turns_for(episodes, algorithm.credit, settings.invalid_penalty))
        rows, tokens = build_rows(episodes), int(turns.tokens_N.sum())
        self.controllers.observe_batch(turns, tasks_of_groups(episodes), self._entropy(turns, rows))
        value = None
        if self.critic is not None:
            microbatch = settings.training.microbatch_tokens
            scope, device = self.updater.autocast, settings.device
            value = self.critic.of_rows(self.model, rows, tokens, microbatch, scope, device, self.ranks)
        credit, targets = give_credit(turns, algorithm.credit, value)
        scale = rate_scale(settings.optimizer, self.iteration, settings.training.iterations)
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * scale
        rng = np.random.default_rng([settings.seed, self.iteration])
        try:
            learned = self.updater.update(rows, targets, rng, self.controllers.controls)
        except NonFiniteLoss as error:
            path = self._save_offenders(episodes)
            raise NonFiniteLoss(f"iteration {self.iteration + 1}: {error}; see {path}", error.turns) from None
        if self.updater.skips.errors:
            path = self._save_offenders(episodes)
            self.report({"skipped": f"{self.updater.skips.errors[0]}: the step was skipped; see {path}"})
        if self.controllers.measures:
            learned["final_kl"] = float(self.updater.score(rows, tokens)[0].mean())
            self.controllers.observe_update(learned["final_kl"])
        annotate(collected.played, episodes, turns, credit, algorithm.credit, value, self.updater.ratio_K)
        return credit, learned

    def _entropy(self, turns: Turns, rows: Sequence[Row]) -> np.ndarray | None:
        """Mean entropy of the policy at temperature 1 over each task group's response tokens, where it is wanted."""
        if not self.controllers.measures:
            return None
        group_K = np.repeat(turns.group_index_N, turns.tokens_N)
        return group_mean(self.updater.score(rows, len(group_K), plain=True)[1], group_K, turns.groups)

    def _save_offenders(self, episodes: Sequence[Episode]) -> Path:
        """Write the episodes whose turns made the loss NaN, with their tokens (all of them where that is unknown)."""
        first = np.cumsum([0, *(len(episode.turns) for episode in episodes)])
        places = {int(np.searchsorted(first, turn, side="right")) - 1 for turn in self.updater.skips.turns}
        guilty = [episodes[i] for i in sorted(places)] or list(episodes)
        return self.folder.save_episodes(f"nonfinite-{self.iteration + 1:04d}", guilty, tokens=True)

    def _agent(self, sampling: Sampling) -> Any:
        context = self.settings.context
        return language_agent(
            self.engine,
            self.world,
            sampling,
            style=context.style,
            history=context.history,
            admissible=context.admissible,
            template=context.template,
        )

    def _measured(self, label: str) -> bool:
        return self.folder.evaluation(label) is not None

    def _evaluate(self, pool: Pool, stage: str) -> None:
        """Evaluate every panel once per stage; what a resumed run has already measured stands."""
        settings = self.settings
        for split, panel in self.panels.items():
            label = f"{stage}-{split}"
            if self.ranks.of_first(functools.partial(self._measured, label)):
                continue
            with self.collector.paused(self.engine):
                result, episodes = evaluate(
                    self._agent(Sampling(settings.evaluation.temperature, settings.rollout.max_tokens)),
                    pool,
                    panel,
                    environment=settings.environment.id,
                    kwargs=self.world.material(settings.environment.kwargs),
                    model=settings.model if stage == "before" else f"{settings.name}, iteration {self.iteration}",
                    temperature=settings.evaluation.temperature,
                    tries=settings.evaluation.tries,
                    concurrency=settings.rollout.concurrency,
                    lockstep=settings.rollout.lockstep,
                    quiet=self.quiet,
                    rollout=self.rollout,
                )
            self.folder.save_evaluation(label, result, episodes)
            self.report({"evaluation": label, "result": result})

    def _state(self) -> dict[str, Any]:
        """What a checkpoint holds beside weights and optimiser, as it is between two iterations."""
        return {
            "iteration": self.iteration,
            "turns_total": self.turns_total,
            "tokens_total": self.tokens_total,
            "position": self.collector.position,
            "skipped_in_a_row": self.updater.skips.row,
            "due": self.collector.due,
            "controllers": copy.deepcopy(self.controllers.state_dict()),
        }

    def _save(self) -> None:
        folder, training = self.folder.path / "checkpoints", self.settings.training
        with self.interruptions.held():  # a writer half begun is none that can be waited for
            self.saver.wait()
            each = keeping.bytes_of(self.model, self.optimizer, self.critic, self.base is not None)
            self.ranks.of_first(lambda: keeping.require_room(folder, each))
            boundary = self._boundary
            taken = checkpoints.Snapshot.of(self.model, self.optimizer, boundary, self.critic, self.base, self.ranks)
            spared = keeping.spared(folder, self.iteration, self.folder.metrics(), training)
            self.saver.save(self.iteration, taken, training.keep, spared)
            self._saved_at = self.iteration

    def _restore(self, saved: checkpoints.Checkpoint) -> None:
        saved.load_optimizer(self.optimizer, names_of(self.model, self.critic), self.ranks)
        state = saved.state()
        try:
            self.iteration = int(state["iteration"])
            self.turns_total, self.tokens_total = int(state["turns_total"]), int(state["tokens_total"])
            self.collector.position = int(state["position"])
            self.updater.skips.row = int(state.get("skipped_in_a_row", 0))  # earlier versions skipped nothing
            self.collector.due = [int(place) for place in state.get("due", [])]
            self.controllers.load_state_dict(state["controllers"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise checkpoints.CheckpointError(
                f"{saved.path / 'state.json'} is not a trainer's state: {error}"
            ) from None


def train(
    folder: RunFolder, report: Report | None = None, quiet: bool = False, ranks: Ranks | None = None
) -> dict[str, EvalResult]:
    """Run (or continue) the run in ``folder``; returns its final evaluations by split.

    The folder of a new run is made once model, environment, splits, engine and device have been found to work. Of
    several ``ranks`` the first one makes, locks and writes it.
    """
    ranks, trainer = ranks or Ranks(), None
    if not ranks.first:
        folder = ReadOnly(folder.path, folder.settings)
    if ranks.of_first(lambda: not (folder.path / "config.yaml").exists()):
        trainer = Trainer(folder, report, quiet, ranks)
        folder.write()
    with folder.locked():
        trainer = trainer or Trainer(folder, report, quiet, ranks)
        trainer.run()
        results = {split: folder.evaluation(f"after-{split}") for split in trainer.panels}
    return {split: result for split, result in results.items() if result is not None}


def require_device(name: str) -> None:
    """SettingsError when torch cannot compute on the device called ``name`` here."""
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        first = str(error).strip().splitlines()[0][:200]
        raise SettingsError(f"device {name!r} cannot be used here ({first}); set device=cpu") from None


def require_turns(played: Sequence[Episode], iteration: int) -> None:
    """Raise :class:`NothingToLearn` when no episode of an iteration had a single turn; the message says why."""
    if any(episode.turns and episode.outcome != "failed" for episode in played):
        return
    errors = [episode.info["error"] for episode in played if "error" in episode.info]
    if errors:
        raise NothingToLearn(f"iteration {iteration}: every episode failed in its environment, the first: {errors[0]}")
    raise NothingToLearn(
        f"iteration {iteration}: no prompt left room for a response; lower rollout.max_tokens or context.history, or "
        "use a model with a longer context"
    )
