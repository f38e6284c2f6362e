"""The viewer's index: the runs and their results, the files of episodes, and every group and episode in columns."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields

from gagpo.data import INVALID_REASONS
from gagpo.eval.health import health
from gagpo.eval.runs import Evaluation, Run, read_label
from gagpo.runs.headline import REWARD_MEAN, SUCCESS_RATE, Outcomes, joint
from gagpo.runs.register import Display, metrics_in

FORMAT = "gagpo view 2"
SHOWN = {REWARD_MEAN: "reward", SUCCESS_RATE: "success"}  # the pages' names of the metrics that come first
DEAD_ZONE = 0.1  # advantages nearer to zero have no colour
LARGE = 0.5  # standard deviations of a group; two credits disagree where both have larger advantages of opposite signs


@dataclass(frozen=True)
class GroupEntry:
    """One group in the index.

    turns: mean number of turns.
    differ: share of turns on which the two algorithms disagree.
    gap: mean difference of their advantages, without sign; None in a group of one episode, which has no credit.
    reward: mean reward of its episodes.
    shard: number of its shard.
    place: its index within the shard.
    """

    task: str
    type: str
    size: int
    wins: int
    turns: float
    differ: float
    gap: float | None
    reward: float
    shard: int
    place: int


@dataclass(frozen=True)
class EpisodeEntry:
    """One episode in the index; ``flags``: success in bit 0, outcome in bits 1-2, left out of training in bit 3."""

    flags: int
    reward: float
    turns: int


@dataclass
class EpisodeFile:
    """One episode file in the index.

    state: time of its last change in nanoseconds, and its size.
    goals: the tasks as sentences, by their names, where the environment has them.
    """

    run: int
    label: str
    stage: str
    split: str
    iteration: int | None
    shards: list[str] = field(default_factory=list)
    groups: list[GroupEntry] = field(default_factory=list)
    episodes: list[EpisodeEntry] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    outcomes: Outcomes = field(default_factory=Outcomes)
    state: tuple[int, int] = (0, 0)
    goals: dict[str, str] = field(default_factory=dict)

    def record(self) -> dict[str, object]:
        """Its entry in the index, without groups and episodes."""
        return {name: getattr(self, name) for name in ("run", "label", "stage", "split", "iteration", "shards")}


def describe_file(run: int, label: str) -> EpisodeFile:
    """The entry of an episode file by its name, such as ``train-0005`` or ``after-valid_unseen``."""
    training = re.fullmatch(r"train-(\d{1,9})", label)
    if training:
        return EpisodeFile(run, label, "train", "train", int(training[1]))
    stage, split, iteration = read_label(label)
    return EpisodeFile(run, label, stage or "other", split, iteration)


def reading_order(source: EpisodeFile) -> tuple[int, int, int, str]:
    """Sort key of files: by run, from before training to after it."""
    order = {"before": 0, "train": 1, "iteration": 2, "after": 3, "average": 4, "other": 5}
    return (source.run, order[source.stage], source.iteration or 0, source.label)


def index(runs: Sequence[Run], sources: Sequence[EpisodeFile], problems: Sequence[str] = ()) -> dict[str, object]:
    """The index, JSON-ready. Names of tasks and types appear once and are referred to by number."""
    settings = [run.settings for run in runs]
    entries = [entry for source in sources for entry in source.groups]
    tasks = {name: number for number, name in enumerate(dict.fromkeys(entry.task for entry in entries))}
    goals = {task: goal for source in sources for task, goal in source.goals.items()}
    types = {name: number for number, name in enumerate(dict.fromkeys(entry.type for entry in entries))}
    groups: dict[str, list[object]] = {"source": [n for n, source in enumerate(sources) for _ in source.groups]}
    groups |= _columns(GroupEntry, entries)
    groups |= {"task": [tasks[entry.task] for entry in entries], "type": [types[entry.type] for entry in entries]}
    return {
        "format": FORMAT,
        "dead_zone": DEAD_ZONE,
        "large": LARGE,
        "invalid_reasons": INVALID_REASONS,
        "runs": [
            _run(run, joint(source.outcomes for source in sources if source.run == number))
            for number, run in enumerate(runs)
        ],
        "settings": settings_that_differ(settings),
        "curves": [
            {"name": metric.name, "caption": metric.caption, "share": metric.share}
            for metric in metrics_in(Display.VIEWER)
        ],
        "sources": [source.record() for source in sources],
        "tasks": list(tasks),
        "goals": [goals.get(task, "") for task in tasks],
        "types": list(types),
        "groups": groups,
        "episodes": _columns(EpisodeEntry, [entry for source in sources for entry in source.episodes]),
        "problems": [*problems, *(problem for source in sources for problem in source.problems)],
    }


def _columns(kind: type[GroupEntry | EpisodeEntry], entries: Sequence[object]) -> dict[str, list[object]]:
    return {column.name: [getattr(entry, column.name) for entry in entries] for column in fields(kind)}


def _run(run: Run, outcomes: Outcomes) -> dict[str, object]:
    """outcomes: of its files of episodes, which may be all that there is."""
    headline = (run.outcomes | outcomes).headline
    keys = sorted({key for row in run.metrics for key in row})
    return {
        "name": run.name,
        "algorithm": run.algorithm,
        "environment": run.environment,
        "seed": run.settings.get("seed", ""),
        "variant": run.label,
        "iterations": run.settings.get("training.iterations", ""),
        "environments": run.envs,
        "metrics": {key: [row.get(key) for row in run.metrics] for key in keys},
        "shows": [SHOWN[metric] for metric in headline],
        "health": [
            {"level": finding.level, "word": finding.word, "sentence": finding.sentence}
            for finding in health(run.metrics)
        ],
        "results": {split: _ends(run, split) for split in run.splits()},
    }


def _ends(run: Run, split: str) -> dict[str, object]:
    """Every evaluation of the trained weights, of which the last is the run's result, and that of their average."""
    averages = [
        evaluation for evaluation in run.evaluations if (evaluation.stage, evaluation.split) == ("average", split)
    ]
    return {
        "trained": [_evaluation(evaluation) for evaluation in run.trained(split)],
        "average": _evaluation(averages[0]) if averages else None,
    }


def _evaluation(evaluation: Evaluation) -> dict[str, object]:
    return {
        "label": evaluation.label,
        "stage": evaluation.stage,
        "iteration": evaluation.iteration,
        "task_set": evaluation.result.task_set.split_hash,
        "success": evaluation.result.success.record(),
        "reward": evaluation.result.mean_reward.record(),
    }


def settings_that_differ(settings: Sequence[dict[str, str]]) -> dict[str, list[str | None]]:
    """Settings that differ between runs, with the value in each; None if not set."""
    names = dict.fromkeys(name for run_settings in settings for name in run_settings)
    values_by_name = {name: [run_settings.get(name) for run_settings in settings] for name in names}
    return {name: values for name, values in values_by_name.items() if len(set(values)) > 1}
