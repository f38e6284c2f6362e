"""The training loop: collect groups of episodes, give credit, update, measure, save; resumable at any instant."""

from __future__ import annotations

import functools
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from agents.engine import Sampling
from agents.episodes import Episode
from agents.model import load_model, load_tokenizer
from agents.rollout import Clock, group_jobs, rollout
from agents.setup import language_agent, make_engine, make_world
from envs.pool import Pool
from envs.tasks import TaskSet
from eval.evaluate import choose_panel, evaluate
from eval.results import EvalResult
from gagpo import checkpoint as checkpoints
from gagpo.batch import build_rows
from gagpo.credit import Credit, CreditSettings, Turns, advantages
from gagpo.credit.turns import StateKey
from gagpo.run_folder import RunFolder
from gagpo.update import NonFiniteLoss, update
from gagpo.warm_start import autocast

Report = Callable[[dict[str, Any]], None]


class Trainer:
    """One run. ``report`` is called with the metrics of every iteration; ``quiet`` hides progress bars."""

    def __init__(self, folder: RunFolder, report: Report | None = None, quiet: bool = False):
        self.folder = folder
        self.settings = settings = folder.settings
        self.report = report or (lambda _: None)
        self.quiet = quiet
        torch.set_num_threads(settings.threads or os.cpu_count() or 1)
        self.world = make_world(settings.environment.id, settings.environment.kwargs)
        self.tasks = self.world.tasks(settings.environment.split).require()
        self.panels = {
            split: choose_panel(self.world.tasks(split), settings.evaluation.tasks)
            for split in settings.evaluation.splits
        }
        self.saved = checkpoints.latest(folder.path / "checkpoints")
        self.tokenizer = load_tokenizer(settings.model)
        source = self.saved.model if self.saved else settings.model
        self.model = load_model(source, settings.dtype, settings.device)
        if settings.training.gradient_checkpointing:
            self.model.gradient_checkpointing_enable()  # type: ignore[operator]
        self.reference: torch.nn.Module | None = None
        if settings.algorithm.kl.coefficient > 0:
            self.reference = load_model(settings.model, settings.dtype, settings.device).requires_grad_(False)
        rate = settings.optimizer
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=rate.learning_rate, weight_decay=rate.weight_decay, betas=rate.betas
        )
        self.engine = make_engine(settings.engine, self.model, self.tokenizer)
        self.iteration = 0
        self.turns_total = self.tokens_total = 0
        if self.saved:
            self._restore(self.saved)

    def run(self) -> None:
        """Train to the end, evaluating before, in between and after; skips what was done before a resume."""
        settings, last = self.settings, self.settings.training.iterations
        self.folder.rewind(self.iteration)
        kwargs, rolling = settings.environment.kwargs, settings.rollout
        with (
            Pool(
                settings.environment.id,
                kwargs,
                workers=rolling.workers,
                step_deadline=rolling.step_deadline,
                reset_deadline=rolling.reset_deadline,
            ) as pool,
            _tensorboard(self.folder.path, self.iteration) as board,
        ):
            self._evaluate(pool, "before")
            while self.iteration < last:
                metrics = self._iterate(pool)
                self.folder.log(metrics)
                for name, value in metrics.items():
                    board.add_scalar(name, value, self.iteration)
                self.report(metrics)
                every = settings.evaluation.every
                if every and self.iteration % every == 0 and self.iteration < last:
                    self._evaluate(pool, f"iteration-{self.iteration:04d}")
                if self.iteration % settings.training.save_every == 0 or self.iteration == last:
                    self._save()
            self._evaluate(pool, "after")

    def _iterate(self, pool: Pool) -> dict[str, Any]:
        """One iteration; returns its metrics."""
        begun = time.perf_counter()
        episodes, clock = self._collect(pool)
        trained = [episode for episode in episodes if episode.outcome != "failed" and episode.turns]
        training_since = time.perf_counter()
        credit = self._credit(trained)
        learned = self._learn(trained, credit)
        self.engine.refresh()
        self.iteration += 1
        now = time.perf_counter()
        every = self.settings.training.keep_episodes
        if every and (self.iteration == 1 or self.iteration % every == 0):
            self.folder.save_episodes(f"train-{self.iteration:04d}", episodes)
        tokens = sum(len(turn.response_ids) for episode in episodes for turn in episode.turns)
        self.turns_total += sum(len(episode.turns) for episode in episodes)
        self.tokens_total += tokens
        return {
            "iteration": self.iteration,
            **rollout_metrics(episodes),
            **credit.stats,
            **learned,
            "learning_rate": self.optimizer.param_groups[0]["lr"],
            "turns_total": self.turns_total,
            "tokens_total": self.tokens_total,
            "tokens_per_second": tokens / (now - begun),
            "seconds_env": clock.environment,
            "seconds_generate": clock.generation,
            "seconds_train": now - training_since,
            "engine_busy": clock.generation / max(clock.total, 1e-9),
            "environment_restarts": float(pool.counters.restarts),
        }

    def _collect(self, pool: Pool) -> tuple[list[Episode], Clock]:
        """The groups of this iteration: ``samples`` episodes of each of the next ``tasks`` tasks."""
        settings, rolling = self.settings, self.settings.rollout
        names = upcoming_tasks(self.tasks, settings.seed, self.iteration, rolling.tasks)
        jobs = group_jobs(names, rolling.samples, settings.seed, f"iteration {self.iteration}")
        return rollout(
            self._agent(rolling.sampling), pool, jobs, concurrency=rolling.concurrency, lockstep=rolling.lockstep
        )

    def _credit(self, episodes: Sequence[Episode]) -> Credit:
        settings = self.settings
        turns = Turns.from_episodes(episodes, state_key(settings.algorithm.credit), settings.invalid_penalty)
        return advantages(turns, settings.algorithm.credit)

    def _learn(self, episodes: Sequence[Episode], credit: Credit) -> dict[str, float]:
        settings, training = self.settings, self.settings.training
        rate = settings.optimizer
        rise = min(1.0, (self.iteration + 1) / rate.warmup) if rate.warmup else 1.0
        for group in self.optimizer.param_groups:
            group["lr"] = rate.learning_rate * rise
        try:
            return update(
                self.model,
                self.optimizer,
                build_rows(episodes),
                credit.per_token(),
                settings.algorithm,
                epochs=training.epochs,
                minibatches=training.minibatches,
                microbatch_tokens=training.microbatch_tokens,
                max_grad_norm=rate.max_grad_norm,
                temperature=settings.rollout.temperature,
                rng=np.random.default_rng([settings.seed, self.iteration]),
                reference=self.reference,
                autocast=functools.partial(autocast, settings),
                device=settings.device,
            )
        except NonFiniteLoss as error:
            path = self._save_offenders(episodes, error)
            raise NonFiniteLoss(f"iteration {self.iteration + 1}: {error}; see {path}", error.rows) from None

    def _save_offenders(self, episodes: Sequence[Episode], error: NonFiniteLoss) -> Path:
        """Write the episodes whose turns made the loss NaN, with their tokens (all of them where that is unknown)."""
        first = np.cumsum([0, *(len(episode.turns) for episode in episodes)])
        places = {int(np.searchsorted(first, turn, side="right")) - 1 for turn in error.rows}
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
        )

    def _evaluate(self, pool: Pool, stage: str) -> None:
        """Evaluate every panel once per stage; what a resumed run has already measured stands."""
        settings = self.settings
        for split, panel in self.panels.items():
            label = f"{stage}-{split}"
            if self.folder.evaluation(label) is not None:
                continue
            result, episodes = evaluate(
                self._agent(Sampling(settings.evaluation.temperature, settings.rollout.max_tokens)),
                pool,
                panel,
                environment=settings.environment.id,
                kwargs=settings.environment.kwargs,
                model=settings.model if stage == "before" else f"{settings.name}, iteration {self.iteration}",
                temperature=settings.evaluation.temperature,
                tries=settings.evaluation.tries,
                concurrency=settings.rollout.concurrency,
                lockstep=settings.rollout.lockstep,
                quiet=self.quiet,
            )
            self.folder.save_evaluation(label, result, episodes)
            self.report({"evaluation": label, "result": result})

    def _save(self) -> None:
        state = {"iteration": self.iteration, "turns_total": self.turns_total, "tokens_total": self.tokens_total}
        checkpoints.write(
            self.folder.path / "checkpoints",
            self.iteration,
            self.model,
            self.tokenizer,
            self.optimizer,
            state,
            self.settings.training.keep,
        )

    def _restore(self, saved: checkpoints.Checkpoint) -> None:
        state = saved.state()
        saved.load_optimizer(self.optimizer)
        self.iteration = int(state["iteration"])
        self.turns_total, self.tokens_total = int(state["turns_total"]), int(state["tokens_total"])


def train(folder: RunFolder, report: Report | None = None, quiet: bool = False) -> dict[str, EvalResult]:
    """Run (or continue) the run in ``folder``; returns its final evaluations by split."""
    with folder.locked():
        trainer = Trainer(folder, report, quiet)
        trainer.run()
        results = {split: folder.evaluation(f"after-{split}") for split in trainer.panels}
    return {split: result for split, result in results.items() if result is not None}


def state_key(credit: CreditSettings) -> StateKey:
    """What makes two turns the same state; credits that group no states report the observations' coverage."""
    return getattr(credit, "key", "observation")


def upcoming_tasks(tasks: TaskSet, seed: int, iteration: int, count: int) -> list[str]:
    """The ``count`` tasks of an iteration: the split in random order, each task once before any comes again."""
    names = []
    for place in range(iteration * count, (iteration + 1) * count):
        epoch, position = divmod(place, len(tasks))
        order = np.random.default_rng([seed, 7, epoch]).permutation(len(tasks))
        names.append(tasks.ids[order[position]])
    return names


def rollout_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """What the episodes of an iteration look like; a failed episode counts as no success."""
    turns = [turn for episode in episodes for turn in episode.turns]
    return {
        "success_rate": float(np.mean([episode.success for episode in episodes])),
        "reward_mean": float(np.mean([episode.reward for episode in episodes])),
        "mean_turns": len(turns) / len(episodes),
        "invalid_rate": float(np.mean([not turn.valid for turn in turns])) if turns else 0.0,
        "response_tokens": float(np.mean([len(turn.response_ids) for turn in turns])) if turns else 0.0,
        "failed_episodes": float(sum(episode.outcome == "failed" for episode in episodes)),
        "restarted_episodes": float(sum(episode.restarts > 0 for episode in episodes)),
    }


def _tensorboard(folder: Path, iteration: int) -> Any:
    """A TensorBoard writer that forgets what a resumed run is about to log again."""
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder / "tensorboard"), purge_step=iteration + 1)


def describe(metrics: dict[str, Any]) -> str:
    """One line for people."""
    if "evaluation" in metrics:
        interval = metrics["result"].success
        return (
            f"{metrics['evaluation']}: success {100 * interval.value:.1f} % "
            f"[{100 * interval.low:.1f}, {100 * interval.high:.1f}]"
        )
    m = {key: value for key, value in metrics.items() if isinstance(value, (int, float))}
    return (
        f"{m['iteration']:>4}  success {100 * m['success_rate']:5.1f} %  turns {m['mean_turns']:4.1f}  "
        f"invalid {100 * m['invalid_rate']:4.1f} %  zero groups {100 * m['zero_groups']:3.0f} %  "
        f"coverage {100 * m.get('coverage', float('nan')):3.0f} %  adv {m['advantage_std']:.2f}  "
        f"clip {100 * m['clip']:4.1f} %  kl {m['old_kl']:+.4f}  ent {m['entropy']:.3f}  grad {m['grad_norm']:.2f}  "
        f"{m['tokens_per_second']:.0f} tok/s  env {m['seconds_env']:.1f} s  gen {m['seconds_generate']:.1f} s  "
        f"train {m['seconds_train']:.1f} s"
    )


def as_json(results: dict[str, EvalResult]) -> str:
    """The final evaluations as one JSON object."""
    return json.dumps({split: result.summary() for split, result in results.items()})
