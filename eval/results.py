"""The result of an evaluation: its task set, every try, and the numbers computed from them.

A result file stores each try, so that two files can be compared task by task. It contains no date and no machine: equal
evaluations give equal files.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, AliasChoices, BeforeValidator, ConfigDict, Field, StrictBool, StrictStr
from pydantic.dataclasses import dataclass

from gagpo.base import durable
from gagpo.base.errors import InvalidArgument
from gagpo.data import Episode
from gagpo.envs.lookup import TaskClusters, clusters_of, declared
from gagpo.eval.statistics import Clusters, Interval, cluster_bootstrap, clustered_wilson, pass_at_k
from gagpo.runs.headline import Headline, Outcomes, is_graded, joint
from gagpo.runs.reading import BadResult, Document, parse, read_text, shortened, validated

FORMAT = "gagpo evaluation 1"
LONGEST_ANSWER = 200  # characters of an answer that are stored
SHOWN = 120  # characters of a value in an error about task sets
CHECKED = ConfigDict(allow_inf_nan=False)


def _plain_json(value: object) -> object:
    """The value as read back from a file, so that a task set equals the one in its own file."""
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"plain JSON values ({error})") from None


Count = Annotated[int, Field(strict=True, ge=0)]
Number = Annotated[float, Field(strict=True)]
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


@dataclass(frozen=True, config=CHECKED)
class Try:
    """One episode in short. A failed one is never a success.

    invalid: turns without a valid action.
    cut: turns whose response ended at the token limit.
    withheld: turns in which a server gave no answer of the model, because of its filter or a refusal; not in
        ``invalid``.
    answer: canonical final answer, for majority votes; None if it has none, or with one try per task.
    solution: hash of the actions of a success, to count distinct ones; None as for ``answer``.
    """

    success: StrictBool
    reward: Number
    turns: Count
    invalid: Count
    outcome: Literal["terminated", "truncated", "failed"] = "terminated"
    restarts: Count = 0
    cut: Count = 0
    withheld: Count = 0
    answer: StrictStr | None = None
    solution: StrictStr | None = None

    @classmethod
    def of(cls, episode: Episode, several: bool = False) -> Try:
        """An episode in short. several: one of several at its task, so answer and solution are noted."""
        success = bool(episode.success) and episode.outcome != "failed"
        return cls(
            success=success,
            reward=float(episode.reward),
            turns=len(episode.turns),
            invalid=sum(not turn.valid and turn.invalid != "withheld" for turn in episode.turns),
            outcome=episode.outcome,  # type: ignore[arg-type]  # checked
            restarts=int(episode.restarts),
            cut=sum(turn.cut for turn in episode.turns),
            withheld=sum(turn.invalid == "withheld" for turn in episode.turns),
            answer=_answer(episode) if several else None,
            solution=_solution(episode) if several and success else None,
        )

    def record(self) -> dict[str, object]:
        """JSON-ready values, without ``withheld`` if it is 0 and without answer and solution if there is none."""
        optional = {"withheld": 0, "answer": None, "solution": None}
        return {name: value for name, value in asdict(self).items() if name not in optional or value != optional[name]}


def _answer(episode: Episode) -> str | None:
    """The environment's canonical answer; a hash of a long one. The text comes from a model: any characters."""
    answer = episode.info.get("answer")
    text = "" if answer is None else str(answer).strip().encode("utf-8", "backslashreplace").decode()
    return (text if len(text) <= LONGEST_ANSWER else _digest(text)) or None


def _solution(episode: Episode) -> str:
    """A hash of the actions that the environment accepted, without differences in white space.

    The action of a turn of several calls consists of its valid calls, even if one of the calls is invalid.
    """
    accepted = [turn.action for turn in episode.turns if turn.valid or (turn.calls and turn.invalid != "refused")]
    return _digest(json.dumps([" ".join(action.split()) for action in accepted if action.strip()]))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, config=CHECKED)
class TaskResult:
    """The tries of one task, in order."""

    task: StrictStr
    task_type: StrictStr
    tries: tuple[Try, ...]

    @property
    def successes(self) -> int:
        return sum(attempt.success for attempt in self.tries)

    @property
    def reward_sum(self) -> float:
        """Sum of the rewards of its episodes."""
        return math.fsum(attempt.reward for attempt in self.tries)

    def record(self) -> dict[str, object]:
        """JSON-ready values."""
        tries = [attempt.record() for attempt in self.tries]
        return {"task": self.task, "task_type": self.task_type, "tries": tries}


def _mean_reward(tasks: Sequence[TaskResult], clusters: Clusters = None) -> Interval:
    rewards, tries = [task.reward_sum for task in tasks], [len(task.tries) for task in tasks]
    return cluster_bootstrap(rewards, tries, clusters=clusters)


def _success(tasks: Sequence[TaskResult], clusters: Clusters = None) -> Interval:
    successes, tries = [task.successes for task in tasks], [len(task.tries) for task in tasks]
    return clustered_wilson(successes, tries, clusters=clusters)


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
    def counts(self) -> tuple[list[int], list[int]]:
        """Successes and tries of every task, in the order of ``tasks``."""
        return [task.successes for task in self.tasks], [len(task.tries) for task in self.tasks]

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
        return _success(self.tasks, self.units)

    @property
    def by_type(self) -> dict[str, Interval]:
        """Success rate of each task type, sorted by name."""
        return {task_type: _success(tasks, units) for task_type, (tasks, units) in self._tasks_by_type().items()}

    @property
    def reward_by_type(self) -> dict[str, Interval]:
        """Mean reward of each task type, sorted by name, with a bootstrap interval over tasks."""
        return {task_type: _mean_reward(tasks, units) for task_type, (tasks, units) in self._tasks_by_type().items()}

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
    def mean_reward(self) -> Interval:
        """Mean reward of an episode without penalties, with a bootstrap interval over tasks."""
        return _mean_reward(self.tasks, self.units)

    @property
    def task_rewards(self) -> list[float]:
        """Mean reward of the episodes of every task, in the order of ``tasks``."""
        return [task.reward_sum / len(task.tries) for task in self.tasks]

    @property
    def outcomes(self) -> Outcomes:
        """What occurred in its episodes, apart from failed ones."""
        finished = [attempt for attempt in self.every_try if attempt.outcome != "failed"]
        return Outcomes(
            graded=any(is_graded(attempt.reward) for attempt in finished),
            rewarded=any(attempt.reward != 0 for attempt in finished),
            succeeded=any(attempt.success for attempt in finished),
            assumed=self.success_assumed,
        )

    @property
    def headline(self) -> Headline:
        """Which numbers are shown first."""
        return self.outcomes.headline

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
        if tries == 1:
            return {}
        ks = powers_of_two(tries)
        passed = {k: [pass_at_k(tries, task.successes, k) for task in self.tasks] for k in ks}
        return {k: math.fsum(of_tasks) / len(self.tasks) for k, of_tasks in passed.items()}

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
        if not self.headline.reward:
            return {}
        return {"reward_task_types": {task_type: reward.record() for task_type, reward in self.reward_by_type.items()}}

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


def powers_of_two(most: int) -> list[int]:
    """1, 2, 4, ... below ``most``, and ``most``.

    >>> powers_of_two(6)
    [1, 2, 4, 6]
    """
    return [*(2**i for i in range(most.bit_length()) if 2**i < most), most]


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def joint_headline(results: Iterable[EvalResult]) -> Headline:
    """Which numbers of several results are shown first, the same for all."""
    return joint(result.outcomes for result in results).headline


def whole_reward(results: Iterable[EvalResult]) -> Interval:
    """Mean reward over all episodes of several task sets with its bootstrap interval over tasks."""
    return _mean_reward(*_pooled(results))


def whole(results: Iterable[EvalResult]) -> Interval:
    """Success rate over all tries of several task sets with its interval over tasks."""
    return _success(*_pooled(results))


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
