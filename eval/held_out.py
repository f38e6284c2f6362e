"""Refuse to measure on held-out training tasks that the model was trained on."""

from __future__ import annotations

from contextlib import closing

from gagpo.agents.setup import make_env, tasks_of
from gagpo.base.errors import InvalidArgument
from gagpo.envs.division import shared
from gagpo.envs.tasks import HELD_OUT, TaskSet
from gagpo.settings import RunSettings


def require_held_out(tasks: TaskSet, environment: str, run: RunSettings) -> None:
    """Raise InvalidArgument if tasks of the split ``train_dev`` are training tasks of the run.

    Which tasks are held out is an argument of the environment, so a run may have been trained with another fraction,
    or train on the same tasks in another of its environments. Other splits are not checked: they never change.
    """
    if tasks.split != HELD_OUT:
        return
    for env in run.all_environments:
        chosen = env.environment
        if chosen.id != environment:
            continue
        with closing(make_env(chosen.id, chosen.kwargs, warn_of=())) as trained:
            overlap = shared(tasks, tasks_of(trained, chosen.split))
        if overlap:
            raise InvalidArgument(
                f"{len(overlap)} of {len(tasks)} tasks of {HELD_OUT} are training tasks of {run.name!r}, which has "
                f"held_out={chosen.kwargs.get('held_out', 0)}",
                advice="evaluate with the held_out of the run, or another split",
            )
