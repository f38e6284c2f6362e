"""Evaluations of a run: of every panel before, during and after training, and of the averaged weights."""

from __future__ import annotations

import time
from collections.abc import Mapping

from gagpo.agents.engines.sync import weights_synced
from gagpo.agents.setup import tasks_of
from gagpo.base.memory import release_freed
from gagpo.collecting.collector import Collector
from gagpo.controllers.average import AveragedWeights
from gagpo.envs import TaskSet, TextEnv
from gagpo.envs.pool import Pool
from gagpo.eval.evaluate import choose_tasks, require_finished_episode
from gagpo.learning.learner import Learner
from gagpo.settings import RunEnvironment, RunSettings
from gagpo.training.recorder import Recorder
from gagpo.training.sampler import Sampler
from gagpo.training.time_left import TimeLeft

Panels = dict[str, tuple[RunEnvironment, TaskSet]]
"""The environment and the tasks of each panel, by its name."""


def panels_of(settings: RunSettings, environments: Mapping[str, TextEnv]) -> Panels:
    """The panels of all environments. environments: one of each, by name."""
    return {
        panel_name: (env, choose_tasks(tasks_of(environments[env.name], split), env.evaluation.tasks))
        for env in settings.all_environments
        for panel_name, split in env.panels.items()
    }


class Evaluator:
    """Evaluates the panels of a run that have no result yet, so that a resumed run repeats none.

    collector: pauses, because it may be using engine and pool.
    time_left: gets the seconds that evaluations take.
    """

    def __init__(
        self,
        settings: RunSettings,
        panels: Panels,
        collector: Collector,
        sampler: Sampler,
        recorder: Recorder,
        time_left: TimeLeft,
        quiet: bool = False,
    ):
        self.settings = settings
        self.panels = panels
        self.collector = collector
        self.sampler = sampler
        self.recorder = recorder
        self.time_left = time_left
        self.quiet = quiet

    def evaluate_if_due(self, pool: Pool, iteration: int, done: bool) -> None:
        """Evaluate ``iteration`` if its evaluation is due; that of the last one comes after training."""
        every = self.settings.evaluation.every
        if every and iteration and iteration % every == 0 and not done:
            self.evaluate(pool, f"iteration-{iteration:04d}", iteration)

    def evaluate(self, pool: Pool, stage: str, iteration: int) -> None:
        """Evaluate every panel that has no result of this stage."""
        settings = self.settings
        model_name = settings.model if stage == "before" else f"{settings.name}, iteration {iteration}"
        started = time.perf_counter()
        evaluated = False
        for panel_name, (env, panel) in self.panels.items():
            label = f"{stage}-{panel_name}"
            if self.recorder.has_result(label):
                continue
            evaluated = True
            with self.collector.paused():
                result, episodes = self.sampler.evaluate(pool, env, panel, model_name, self.quiet)
            require_finished_episode(result, episodes, label)
            self.recorder.evaluation(label, result, episodes)
        release_freed()
        if evaluated:
            self.time_left.evaluation(time.perf_counter() - started)

    def evaluate_average(self, pool: Pool, learner: Learner, average: AveragedWeights, iteration: int) -> None:
        """Evaluate the averaged weights at the end of the run; the engine keeps them."""
        if all(self.recorder.has_result(f"average-{panel_name}") for panel_name in self.panels):
            return
        self.collector.close()
        with average.applied():
            with weights_synced(self.sampler.engine, learner.model, self.settings.engine.sleep):
                pass
            self.evaluate(pool, "average", iteration)
