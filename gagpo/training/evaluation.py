"""Evaluations of a run: before and after training on its splits, during training on a validation split.

Test tasks that are evaluated during training invite a choice by them: of an iteration, a setting, or when to stop. So
evaluations during training use the environment's validation split where it has one. Of the user's own data without one,
a tenth of the training tasks is held out for them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from gagpo.agents.engines.sync import weights_synced
from gagpo.agents.setup import tasks_of
from gagpo.base.errors import GagpoError
from gagpo.base.memory import release_freed
from gagpo.collecting.collector import Collector
from gagpo.controllers.average import AveragedWeights
from gagpo.envs import TaskSet, TextEnv
from gagpo.envs.division import FEW, hold_out_tenth
from gagpo.envs.pool import Pool
from gagpo.envs.tasks import VALIDATION_SPLITS, in_environment
from gagpo.eval.evaluate import choose_tasks, require_finished_episode
from gagpo.eval.held_out import require_held_out
from gagpo.learning.learner import Learner
from gagpo.settings import RunEnvironment, RunSettings
from gagpo.training.recorder import Recorder
from gagpo.training.sampler import Sampler
from gagpo.training.time_left import TimeLeft

HELD_OUT_NAME = "validation"
"""The split of tasks that are held out of the user's training data."""

Panels = dict[str, tuple[RunEnvironment, TaskSet]]
"""The environment and the tasks of each panel, by its name."""


@dataclass(frozen=True)
class RunPanels:
    """The panels of a run.

    final: evaluated before and after training.
    validation: evaluated during training.
    training: the tasks to train on, by environment.
    """

    final: Panels
    validation: Panels
    training: dict[str, TaskSet]


def panels_of(settings: RunSettings, environments: Mapping[str, TextEnv]) -> RunPanels:
    """The panels of all environments. environments: one of each, by name.

    Raises: InvalidArgument if held-out training tasks are trained on in another environment of the run.
    """
    final = {
        panel_name: (env, choose_tasks(tasks_of(environments[env.name], split), env.evaluation.tasks))
        for env in settings.all_environments
        for panel_name, split in env.panels.items()
    }
    training = {env.name: tasks_of(environments[env.name], env.environment.split) for env in settings.all_environments}
    panels = RunPanels(final, _validation_panels(settings, environments, final, training), training)
    for env, tasks in (panels.final | panels.validation).values():
        require_held_out(tasks, env.environment.id, settings)
    return panels


def _validation_panels(
    settings: RunSettings, environments: Mapping[str, TextEnv], panels: Panels, training: dict[str, TaskSet]
) -> Panels:
    """The panels to evaluate during training; empty if ``evaluation.every`` is 0 or nothing is evaluated.

    Of each environment: the validation splits that ``evaluation.splits`` names, else the one that the environment has,
    else held-out tasks of its own data, else all of its panels.

    panels: evaluated before and after training.
    training: the tasks to train on, by environment, from which the held-out ones are taken.
    """
    if not settings.evaluation.every:
        return {}
    chosen: Panels = {}
    for env in settings.all_environments:
        of_env = {name: panels[name] for name in env.panels}
        if not of_env:
            continue
        listed = {name: panels[name] for name, split in env.panels.items() if split in VALIDATION_SPLITS}
        environment = environments[env.name]
        panel = listed or _validation_panel(env, environment) or _held_out_panel(env, environment, training)
        chosen |= panel or of_env
    return chosen


def _held_out_panel(env: RunEnvironment, environment: TextEnv, training: dict[str, TaskSet]) -> Panels:
    """A tenth of the training tasks of the user's data, which are then not trained on; empty for few tasks."""
    tasks = training[env.name]
    is_evaluated = env.environment.split in env.panels.values()
    if not getattr(environment, "has_own_data", False) or len(tasks) < FEW or is_evaluated:
        return {}
    training[env.name], held = hold_out_tenth(tasks, HELD_OUT_NAME)
    return {in_environment(env.name, HELD_OUT_NAME): (env, choose_tasks(held, env.evaluation.tasks))}


def _validation_panel(env: RunEnvironment, environment: TextEnv) -> Panels:
    """The panel of an environment's validation split; empty if it has none with tasks, or trains on it."""
    splits = [split for split in VALIDATION_SPLITS if split in getattr(environment, "splits", ())]
    for split in splits:
        if split == env.environment.split:
            continue
        try:
            tasks = choose_tasks(tasks_of(environment, split), env.evaluation.tasks)
        except (GagpoError, OSError):  # such as a data set without this split
            continue
        return {in_environment(env.name, split): (env, tasks)}
    return {}


class Evaluator:
    """Evaluates the panels of a run that have no result yet, so that a resumed run repeats none.

    panels: evaluated before and after training.
    collector: pauses, because it may be using engine and pool.
    time_left: gets the seconds that evaluations take.
    """

    def __init__(
        self,
        settings: RunSettings,
        panels: RunPanels,
        collector: Collector,
        sampler: Sampler,
        recorder: Recorder,
        time_left: TimeLeft,
        quiet: bool = False,
    ):
        self.settings = settings
        self.panels = panels.final
        self.validation_panels = panels.validation
        self.collector = collector
        self.sampler = sampler
        self.recorder = recorder
        self.time_left = time_left
        self.quiet = quiet

    def evaluate_if_due(self, pool: Pool, iteration: int, done: bool) -> None:
        """Evaluate ``iteration`` if its evaluation is due; that of the last one comes after training."""
        every = self.settings.evaluation.every
        if every and iteration and iteration % every == 0 and not done:
            self._evaluate(pool, f"iteration-{iteration:04d}", iteration, self.validation_panels)

    def evaluate(self, pool: Pool, stage: str, iteration: int) -> None:
        """Evaluate every panel that has no result of this stage."""
        self._evaluate(pool, stage, iteration, self.panels)

    def _evaluate(self, pool: Pool, stage: str, iteration: int, panels: Panels) -> None:
        settings = self.settings
        model_name = settings.model if stage == "before" else f"{settings.name}, iteration {iteration}"
        started = time.perf_counter()
        evaluated = False
        for panel_name, (env, panel) in panels.items():
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
