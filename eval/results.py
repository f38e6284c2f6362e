"""The result of an evaluation: its task set, every try, and the measures of them.

A result file stores each try, so that two files can be compared task by task. It contains no date and no machine: equal
evaluations give equal files.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, AliasChoices, BeforeValidator, Field, StrictBool, StrictStr
from pydantic.dataclasses import dataclass

from gagpo.base import durable
from gagpo.base.errors import InvalidArgument
from gagpo.data import Episode
from gagpo.envs.lookup import TaskClusters, clusters_of, declared
from gagpo.eval.at_k import powers_of_two
from gagpo.eval.measures import MAJORITY, OF_K, PASS, REWARD, SUCCESS, Difference, Measure, has_votes, measures_in
from gagpo.eval.statistics import Clusters, Interval
from gagpo.eval.tries import CHECKED, Count, Number, TaskResult, Try
from gagpo.runs.headline import Outcomes, joint
from gagpo.runs.reading import BadResult, Document, parse, read_text, shortened, validated

FORMAT = "gagpo evaluation 1"
SHOWN = 120  # characters of a value in an error about task sets


def _plain_json(value: object) -> object:
    """The value as read back from a file, so that a task set equals the one in its own file."""
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"plain JSON values ({error})") from None


T = TypeVar("T")
AtLeastOne = Annotated[int, Field(strict=True, ge=1)]
JsonObject = Annotated[dict[str, object], BeforeValidator(_plain_json)]


@dataclass(frozen=True, config=CHECKED)
class EvaluatedTaskSet:
    """The tasks of an evaluation, and how they were run. Only results of the same task set can be compared.

    environment: environment id.
    split_hash: ``TaskSet.hash`` of the tasks.
    tasks: number of tasks.
    tries: episodes of each task; compared results may differ in it.
    kwargs: arguments of the environment. Those that only choose tasks, such as the seed of generated ones, may differ.
    seed: seed of the episodes.
    conditions: how a language model was prompted and sampled (style, history, temperature and so on); empty for an
        agent without a prompt. A condition that only one result has, such as the dtype of local weights, may differ.
    """

    environment: StrictStr
    split: StrictStr
    split_hash: StrictStr
    tasks: AtLeastOne
    tries: AtLeastOne = 1
    kwargs: JsonObject = Field(default_factory=dict)
    seed: Count = 0
    conditions: JsonObject = Field(default_factory=dict)

    def difference(self, other: EvaluatedTaskSet) -> str | None:
        """The first difference between two task sets in words, or None; the number of tries may differ."""
        for name in ("environment", "split", "split_hash", "kwargs", "tasks", "seed"):
            value = getattr(self, name)
            other_value = getattr(other, name)
            if name == "kwargs" and value != other_value:
                # The hash identifies the tasks, whatever arguments chose them.
                ignored = declared(self.environment, "choosing")
                value, other_value = _differing(value, other_value, ignored), _differing(other_value, value, ignored)
            if value != other_value:
                return _differs(name.replace("_", " "), value, other_value)
        common = sorted(self.conditions.keys() & other.conditions.keys())
        names = [name for name in common if self.conditions[name] != other.conditions[name]]
        return ", ".join(_differs(name, self.conditions[name], other.conditions[name]) for name in names) or None


def _differing(arguments: dict[str, object], baseline: dict[str, object], ignored: frozenset[str]) -> dict[str, object]:
    """The arguments that ``baseline`` lacks or has with another value: the first ones of many may be all equal."""
    return {
        name: value
        for name, value in arguments.items()
        if name not in ignored and (name not in baseline or baseline[name] != value)
    }


def _differs(name: str, value: object, other: object) -> str:
    return f"{name} {shortened(value, SHOWN)} against {shortened(other, SHOWN)}"


def _tries(episodes: Iterable[Episode], several: bool) -> tuple[Try, ...]:
    return tuple(Try.of(episode, several) for episode in sorted(episodes, key=lambda episode: episode.sample))


def _by_name(tasks: tuple[TaskResult, ...]) -> tuple[TaskResult, ...]:
    return tuple(sorted(tasks, key=lambda result: result.task))


@dataclass(frozen=True, config=CHECKED)
class EvalResult:
    """The result of an evaluation. In its file, the task set has the key ``panel``.

    temperature: None for an agent that samples no tokens.
    tasks: sorted by id.
    success_assumed: whether the environment reports no success, so that a graded reward above 0 counts as one.
    """

    task_set: Annotated[EvaluatedTaskSet, Field(validation_alias=AliasChoices("panel", "task_set"))]
    model: StrictStr
    temperature: Number | None
    tasks: Annotated[tuple[TaskResult, ...], AfterValidator(_by_name)]
    success_assumed: StrictBool = False

    @classmethod
    def from_episodes(
        cls, episodes: Iterable[Episode], task_set: EvaluatedTaskSet, model: str, temperature: float | None
    ) -> EvalResult:
        """The result of finished episodes. A failed episode counts as a try without success.

        Raises:
            InvalidArgument: a task was not run exactly ``task_set.tries`` times.
        """
        by_task: dict[str, list[Episode]] = defaultdict(list)
        for episode in episodes:
            by_task[episode.task].append(episode)
        if len(by_task) != task_set.tasks:
            raise InvalidArgument(f"the task set has {task_set.tasks} tasks, but {len(by_task)} were run")
        for task, task_episodes in by_task.items():
            if len(task_episodes) != task_set.tries:
                raise InvalidArgument(f"task {task!r} was run {len(task_episodes)} times instead of {task_set.tries}")
        tasks = tuple(
            TaskResult(task, task_episodes[0].task_type, _tries(task_episodes, several=task_set.tries > 1))
            for task, task_episodes in by_task.items()
        )
        is_assumed = any(episode.success_assumed for task_episodes in by_task.values() for episode in task_episodes)
        return cls(task_set, model, None if temperature is None else float(temperature), tasks, is_assumed)

    # Numbers ----------------------------------------------------------------------------------------------------------

    @property
    def every_try(self) -> list[Try]:
        return [attempt for task in self.tasks for attempt in task.tries]

    @property
    def episodes(self) -> int:
        return sum(len(task.tries) for task in self.tasks)

    @property
    def successes(self) -> int:
        return sum(task.successes for task in self.tasks)

    @cached_property
    def clusters(self) -> TaskClusters | None:
        """What the tasks share, such as the rooms of released games; intervals and tests are over these then."""
        task_set = self.task_set
        return clusters_of(task_set.environment, task_set.kwargs, [task.task for task in self.tasks])

    @property
    def units(self) -> list[str] | None:
        """The cluster of each task, in the order of ``tasks``; None where each task stands alone."""
        return self.clusters.names if self.clusters else None

    @property
    def success(self) -> Interval:
        """Success rate over all tries with its interval over tasks, or over their clusters."""
        return self.estimate(SUCCESS)

    @property
    def mean_reward(self) -> Interval:
        """Mean reward of an episode without penalties, with a bootstrap interval over tasks."""
        return self.estimate(REWARD)

    def estimate(self, measure: Measure) -> Interval:
        """A measure with its 95 % interval over tasks, or over their clusters."""
        return measure.estimate(self.tasks, self.units)

    def difference(self, other: EvalResult, measure: Measure) -> Difference:
        """``other`` minus this result in a measure. Both have the same tasks."""
        return measure.difference(self.tasks, other.tasks, self.units)

    @property
    def by_type(self) -> dict[str, Interval]:
        """Success rate of each task type, sorted by name."""
        return self.estimates_by_type(SUCCESS)

    def estimates_by_type(self, measure: Measure) -> dict[str, Interval]:
        """A measure of the tasks of each type, sorted by name."""
        return {task_type: measure.estimate(*tasks) for task_type, tasks in self._tasks_by_type().items()}

    def _tasks_by_type(self) -> dict[str, tuple[list[TaskResult], list[str] | None]]:
        """The tasks of each type, with their clusters."""
        numbers_by_type: dict[str, list[int]] = defaultdict(list)
        for number, task in enumerate(self.tasks):
            numbers_by_type[task.task_type].append(number)
        units = self.units
        return {
            task_type: ([self.tasks[number] for number in numbers], units and [units[number] for number in numbers])
            for task_type, numbers in sorted(numbers_by_type.items())
        }

    def tasks_of_type(self, kind: str) -> int:
        return sum(task.task_type == kind for task in self.tasks)

    @property
    def outcomes(self) -> Outcomes:
        """What occurred in its episodes, apart from failed ones."""
        finished = [attempt for attempt in self.every_try if attempt.outcome != "failed"]
        return Outcomes.of([(attempt.reward, attempt.success, self.success_assumed) for attempt in finished])

    @property
    def mean_turns(self) -> float:
        """Mean turns of the episodes that did not fail; NaN if all failed."""
        return self._over_tries(
            lambda attempt: attempt.turns * (attempt.outcome != "failed"),
            lambda attempt: attempt.outcome != "failed",
        )

    @property
    def invalid_rate(self) -> float:
        """Share of turns without a valid action, of those that the model answered; NaN without any."""
        return self._over_tries(lambda attempt: attempt.invalid, lambda attempt: attempt.turns - attempt.withheld)

    @property
    def cut_rate(self) -> float:
        """Share of turns whose response ended at the token limit; NaN without turns."""
        return self._over_tries(lambda attempt: attempt.cut, lambda attempt: attempt.turns)

    @property
    def withheld(self) -> int:
        """Turns in which a server gave no answer of the model."""
        return sum(attempt.withheld for attempt in self.every_try)

    @property
    def failed(self) -> int:
        """Episodes that failed in their environment."""
        return sum(attempt.outcome == "failed" for attempt in self.every_try)

    @property
    def truncated(self) -> int:
        """Episodes ended by a turn or context limit."""
        return sum(attempt.outcome == "truncated" for attempt in self.every_try)

    @property
    def restarts(self) -> int:
        """How often an episode started over because its environment broke."""
        return sum(attempt.restarts for attempt in self.every_try)

    @property
    def pass_at_k(self) -> dict[int, float]:
        """Mean unbiased pass@k over tasks, for k = 1, 2, 4, ... and all tries; empty with one try per task."""
        tries = self.task_set.tries
        ks = powers_of_two(tries) if tries > 1 else []
        return {k: math.fsum(PASS.at(k).values(self.tasks)) / len(self.tasks) for k in ks}

    def summary(self) -> dict[str, object]:
        """Every number above as JSON-ready values, NaN as None."""
        return {
            "success_rate": _finite(self.success.value),
            "success": {key: _finite(value) for key, value in self.success.record().items()},
            "successes": self.successes,
            "episodes": self.episodes,
            "mean_reward": {key: _finite(value) for key, value in self.mean_reward.record().items()},
            "mean_turns": _finite(self.mean_turns),
            "invalid_rate": _finite(self.invalid_rate),
            "cut_rate": _finite(self.cut_rate),
            "failed": self.failed,
            "truncated": self.truncated,
            "restarts": self.restarts,
            **({"withheld": self.withheld} if self.withheld else {}),
            "task_types": {
                task_type: {"tasks": self.tasks_of_type(task_type), **interval.record()}
                for task_type, interval in self.by_type.items()
            },
            **self._reward_record(),
            "pass_at_k": {str(k): value for k, value in self.pass_at_k.items()},
        }

    def _reward_record(self) -> dict[str, object]:
        """The mean reward of each task type, if mean rewards come first."""
        if REWARD not in shown_measures([self]):
            return {}
        rewards = self.estimates_by_type(REWARD)
        return {"reward_task_types": {task_type: reward.record() for task_type, reward in rewards.items()}}

    # Files ------------------------------------------------------------------------------------------------------------

    def to_json(self) -> str:
        """The result as ASCII text; :meth:`from_json` returns an equal one."""
        record = {
            "format": FORMAT,
            "panel": asdict(self.task_set),
            "model": self.model,
            "temperature": self.temperature,
            **({"success_assumed": True} if self.success_assumed else {}),
            "summary": self.summary(),
            "tasks": [task.record() for task in self.tasks],
        }
        return json.dumps(record, indent=1, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str, name: str = "result") -> EvalResult:
        """Read :meth:`to_json`; a :class:`BadResult` tells ``name`` and the wrong key."""
        document = parse(text, name)
        head = validated(ResultHead, document, name)
        result = validated(cls, document, name)
        complaint = result._contradiction(head.summary.successes)
        if complaint:
            raise BadResult(f"key {complaint}", where=name)
        return result

    def save(self, path: Path) -> None:
        """Write the file whole and flushed, or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        durable.write_text(path, self.to_json())

    @classmethod
    def load(cls, path: Path) -> EvalResult:
        """Read a file of :meth:`save`; :class:`BadResult` if it is wrong."""
        return cls.from_json(read_text(path), str(path))

    def _over_tries(self, top: Callable[[Try], float], bottom: Callable[[Try], float]) -> float:
        """Sum of one number over the sum of another; NaN if that is 0."""
        below = sum(bottom(attempt) for attempt in self.every_try)
        return sum(top(attempt) for attempt in self.every_try) / below if below else math.nan

    def _contradiction(self, successes: int) -> str | None:
        """Where task set or summary contradict the listed tasks; None if they agree."""
        task_set = self.task_set
        count = len(self.tasks)
        if task_set.tasks != count:
            return f"'panel.tasks' must be {count}, the number of tasks listed, got {task_set.tasks}"
        for number, task in enumerate(self.tasks):
            if len(task.tries) != task_set.tries:
                return f"'tasks[{number}].tries' must hold {task_set.tries} tries, got {len(task.tries)}"
        if len({task.task for task in self.tasks}) != count:
            return "'tasks' lists a task twice"
        if successes != self.successes:
            return f"'summary.successes' must be {self.successes}, the successes of the tries listed, got {successes}"
        return None


class ResultSummary(Document):
    """The part of a file's summary that is checked; the rest follows from the tries."""

    successes: int


class ResultHead(Document):
    """The keys of a file that are not part of the result."""

    format: Literal["gagpo evaluation 1"]
    summary: ResultSummary


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


# Measures of several results ------------------------------------------------------------------------------------------


def shown_measures(results: Iterable[EvalResult]) -> list[Measure]:
    """The measures of several results that come first, the same for all: mean reward, success, or both."""
    return measures_in(joint(result.outcomes for result in results).headline)


def measures_of_k(results: Mapping[str, EvalResult], pass_at: Sequence[int] | None = None) -> list[Measure]:
    """pass@k, majority@k and solutions@k at each k to show: those that all results have.

    results: by label. majority@k needs an answer in at least one of them.
    pass_at: the k; by default 1, 2, 4, ... and the smallest number of episodes per task. By default there are none if a
        result has one episode per task, or no result reports success.

    Raises:
        InvalidArgument: a k of ``pass_at`` exceeds the episodes per task of a result.
    """
    ks = pass_at
    if ks is None:
        fewest = min(result.task_set.tries for result in results.values())
        ks = powers_of_two(fewest) if fewest > 1 and SUCCESS in shown_measures(results.values()) else []
    for label, result in results.items():
        _require_episodes(label, result.task_set.tries, ks)
    has_answers = any(has_votes(result.tasks) for result in results.values())
    measures = [measure for measure in OF_K if all(measure.stored(result.tasks) for result in results.values())]
    return [measure.at(k) for measure in measures if has_answers or measure is not MAJORITY for k in ks]


def _require_episodes(label: str, tries: int, pass_at: Sequence[int]) -> None:
    """Raise :class:`InvalidArgument` if a k exceeds the episodes per task."""
    if pass_at and max(pass_at) > tries:
        tries_in_words = "1 episode" if tries == 1 else f"{tries} episodes"
        advice = f"evaluate it with --episodes-per-task {max(pass_at)}, or choose at most {tries}"
        raise InvalidArgument(
            f"--pass-at {max(pass_at)}: {label} has {tries_in_words} per task", key="--pass-at", advice=advice
        )


def by_name_and_k(measures: Iterable[Measure], record: Callable[[Measure], T]) -> dict[str, dict[str, T]]:
    """What ``record`` returns for each measure of k episodes, by its name and k, as JSON-ready values."""
    records: dict[str, dict[str, T]] = {}
    for measure in measures:
        records.setdefault(measure.name, {})[str(measure.k)] = record(measure)
    return records


def at_k_record(result: EvalResult, pass_at: Sequence[int] | None = None) -> dict[str, dict[str, dict[str, float]]]:
    """The intervals of a result by measure and k, as JSON-ready values."""
    measures = measures_of_k({"": result}, pass_at)
    return by_name_and_k(measures, lambda measure: result.estimate(measure).record())


def whole(results: Iterable[EvalResult], measure: Measure = SUCCESS) -> Interval:
    """A measure over all tries of several task sets with its interval over tasks."""
    return measure.estimate(*_pooled(results))


def _pooled(results: Iterable[EvalResult]) -> tuple[list[TaskResult], Clusters]:
    """The tasks of several results with their clusters; a task of a result without clusters is one by itself."""
    tasks: list[TaskResult] = []
    units: list[tuple[int, str]] = []
    clustered = False
    for number, result in enumerate(results):
        tasks += result.tasks
        clustered = clustered or result.units is not None
        # The same room in two splits is one cluster; tasks of equal id in two splits are not.
        units += [(-1, unit) for unit in result.units or ()] or [(number, task.task) for task in result.tasks]
    return tasks, units if clustered else None
