"""One evaluation: which panel was played, what became of every try, and the numbers that follow from it.

The file keeps each try's facts; every rate and interval is computed from them, so that two files can be compared task
by task. No date and no machine in it: equal evaluations give equal files.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from gagpo.agents.episodes import Episode
from gagpo.envs import durable
from gagpo.envs.errors import InvalidArgument
from gagpo.eval.many_tries import majority_at_k, pass_at_k, usual_k
from gagpo.eval.reading import BadResult, Document, read_as, read_text
from gagpo.eval.statistics import Interval, cluster_bootstrap, clustered_wilson

FORMAT = "gagpo evaluation 1"


@dataclass(frozen=True)
class Panel:
    """What was played: two results can be compared exactly when environment, kwargs, split and hash agree.

    tasks: how many tasks; tries: how often each; split_hash: ``TaskSet.hash`` of the tasks played. conditions: how a
    language model was spoken to and sampled from (style, history, template, temperature and so on); empty for whoever
    has no prompt, who can be compared with everybody.
    """

    environment: str
    split: str
    split_hash: str
    tasks: int
    tries: int = 1
    kwargs: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    conditions: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # As JSON would give them back, so that a panel equals the one read from its own file.
        try:
            for name in ("kwargs", "conditions"):
                object.__setattr__(self, name, json.loads(json.dumps(getattr(self, name), allow_nan=False)))
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidArgument(f"the arguments of an environment must be plain JSON values: {error}") from None
        if self.tasks < 1 or self.tries < 1:
            raise InvalidArgument(f"a panel holds at least one task and one try, got {self.tasks} and {self.tries}")

    def difference(self, other: Panel) -> str | None:
        """The first fact in which the two panels differ, in words, or None; the number of tries may differ."""
        for name in ("environment", "split", "split_hash", "kwargs", "tasks", "seed"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                return f"{name.replace('_', ' ')} {_short(mine)} against {_short(theirs)}"
        if not (self.conditions and other.conditions):
            return None
        names = sorted(self.conditions.keys() | other.conditions.keys())
        apart = [name for name in names if self.conditions.get(name) != other.conditions.get(name)]
        pairs = (
            f"{name} {_short(self.conditions.get(name))} against {_short(other.conditions.get(name))}" for name in apart
        )
        return ", ".join(pairs) or None


@dataclass(frozen=True)
class Try:
    """One episode in short. A failed one is never a success; ``invalid`` counts the turns without a valid action."""

    success: bool
    reward: float
    turns: int
    invalid: int
    outcome: str = "terminated"
    restarts: int = 0
    answer: str | None = None


@dataclass(frozen=True)
class TaskResult:
    """Every try at one task, in order."""

    task: str
    task_type: str
    tries: tuple[Try, ...]

    @property
    def successes(self) -> int:
        return sum(one.success for one in self.tries)


@dataclass(frozen=True)
class EvalResult:
    """The outcome of a panel. ``answers`` says whether the environment hands over answers that can be voted on.

    temperature: None for an agent that samples no tokens.
    """

    panel: Panel
    model: str
    temperature: float | None
    tasks: tuple[TaskResult, ...]
    answers: bool = False
    level: float = 0.95

    @classmethod
    def from_episodes(
        cls, episodes: Iterable[Episode], panel: Panel, model: str, temperature: float | None, level: float = 0.95
    ) -> EvalResult:
        """Sum up a finished panel; ValueError unless every task was played exactly ``panel.tries`` times.

        A failed episode stays in every denominator and counts as no success, whatever it had earned so far.
        """
        by_task: dict[str, list[Episode]] = defaultdict(list)
        for episode in episodes:
            by_task[episode.task].append(episode)
        if len(by_task) != panel.tasks:
            raise InvalidArgument(f"the panel has {panel.tasks} tasks, but {len(by_task)} were played")
        for task, played in by_task.items():
            if len(played) != panel.tries:
                raise InvalidArgument(f"task {task!r} was played {len(played)} times instead of {panel.tries}")
        answers = any("answer" in one.info for played in by_task.values() for one in played)
        tasks = tuple(
            TaskResult(task, played[0].task_type, tuple(_try(one) for one in sorted(played, key=lambda e: e.sample)))
            for task, played in sorted(by_task.items())
        )
        return cls(panel, model, None if temperature is None else float(temperature), tasks, answers, level)

    # What follows from the tries --------------------------------------------------------------------------------------

    @property
    def counts(self) -> tuple[list[int], list[int]]:
        """Successes and tries of every task, in the order of ``tasks``: the arguments of the paired statistics."""
        return [one.successes for one in self.tasks], [len(one.tries) for one in self.tasks]

    @property
    def every_try(self) -> list[Try]:
        return [one for task in self.tasks for one in task.tries]

    @property
    def episodes(self) -> int:
        return sum(len(task.tries) for task in self.tasks)

    @property
    def successes(self) -> int:
        return sum(task.successes for task in self.tasks)

    @property
    def success(self) -> Interval:
        """Success rate over all tries, failed ones included, with its interval over tasks."""
        return clustered_wilson(*self.counts, self.level)

    @property
    def by_type(self) -> dict[str, Interval]:
        """Success rate of each task type, sorted by name."""
        kinds: dict[str, list[TaskResult]] = defaultdict(list)
        for task in self.tasks:
            kinds[task.task_type].append(task)
        return {
            kind: clustered_wilson([t.successes for t in tasks], [len(t.tries) for t in tasks], self.level)
            for kind, tasks in sorted(kinds.items())
        }

    def tasks_of_type(self, kind: str) -> int:
        return sum(task.task_type == kind for task in self.tasks)

    @property
    def mean_reward(self) -> Interval:
        """Mean reward of an episode, with a bootstrap interval over tasks.

        Penalties are excluded; a failed episode counts with what it had earned.
        """
        return self._ratio(lambda one: one.reward, lambda one: 1)

    @property
    def mean_turns(self) -> float:
        """Mean turns of the episodes that did not fail; NaN when all failed."""
        return self._plain(lambda one: one.turns * (one.outcome != "failed"), lambda one: one.outcome != "failed")

    @property
    def invalid_rate(self) -> float:
        """Share of all turns without a valid action; NaN when no turn was played."""
        return self._plain(lambda one: one.invalid, lambda one: one.turns)

    @property
    def failed(self) -> int:
        """Episodes whose environment broke for good; they count as no success."""
        return sum(one.outcome == "failed" for one in self.every_try)

    @property
    def truncated(self) -> int:
        """Episodes ended by a turn or context limit."""
        return sum(one.outcome == "truncated" for one in self.every_try)

    @property
    def restarts(self) -> int:
        """How often a broken environment made an episode start over."""
        return sum(one.restarts for one in self.every_try)

    @property
    def pass_at_k(self) -> dict[int, float]:
        """Mean over tasks of the unbiased pass@k, for the usual k; empty with one try per task."""
        if self.panel.tries < 2 or not self.tasks:
            return {}
        return {
            k: math.fsum(pass_at_k(len(t.tries), t.successes, k) for t in self.tasks) / len(self.tasks)
            for k in usual_k(self.panel.tries)
        }

    @property
    def majority_at_k(self) -> dict[int, float]:
        """Mean over tasks of majority@k; empty with one try per task or without answers to vote on."""
        if self.panel.tries < 2 or not self.tasks or not self.answers:
            return {}
        votes = [([one.answer for one in t.tries], [one.success for one in t.tries]) for t in self.tasks]
        return {
            k: math.fsum(majority_at_k(answers, right, k) for answers, right in votes) / len(votes)
            for k in usual_k(self.panel.tries)
        }

    def summary(self) -> dict[str, Any]:
        """Every number above as JSON-ready values (NaN as None); what ``--json`` prints."""
        return {
            "success_rate": _finite(self.success.value),
            "success": {key: _finite(value) for key, value in self.success.record().items()},
            "successes": self.successes,
            "episodes": self.episodes,
            "mean_reward": {key: _finite(value) for key, value in self.mean_reward.record().items()},
            "mean_turns": _finite(self.mean_turns),
            "invalid_rate": _finite(self.invalid_rate),
            "failed": self.failed,
            "truncated": self.truncated,
            "restarts": self.restarts,
            "task_types": {
                kind: {"tasks": self.tasks_of_type(kind), **interval.record()}
                for kind, interval in self.by_type.items()
            },
            "pass_at_k": {str(k): value for k, value in self.pass_at_k.items()},
            "majority_at_k": {str(k): value for k, value in self.majority_at_k.items()},
        }

    # Files ------------------------------------------------------------------------------------------------------------

    def to_json(self) -> str:
        """The whole result as ASCII text; :meth:`from_json` gives back an equal one."""
        record = {
            "format": FORMAT,
            "panel": asdict(self.panel),
            "model": self.model,
            "temperature": self.temperature,
            "level": self.level,
            "answers": self.answers,
            "summary": self.summary(),
            "tasks": [asdict(task) for task in self.tasks],
        }
        return json.dumps(record, indent=1, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str, name: str = "result") -> EvalResult:
        """Read :meth:`to_json`; :class:`BadResult` names ``name`` and the key that is missing or wrong."""
        read = read_as(_ResultFile, text, name)
        _require_whole(read, name)
        tasks = tuple(
            TaskResult(one.task, one.task_type, tuple(Try(**each.model_dump()) for each in one.tries))
            for one in sorted(read.tasks, key=lambda one: one.task)
        )
        panel = Panel(**read.panel.model_dump())
        result = cls(panel, read.model, read.temperature, tasks, read.answers, read.level)
        if read.summary.successes != result.successes:
            raise BadResult(
                f"{name}: key 'summary.successes' must be {result.successes}, the successes of the tries listed, "
                f"got {read.summary.successes}"
            )
        return result

    def save(self, path: Path) -> None:
        """Write the file whole, down to the disk, or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        durable.write_text(path, self.to_json())

    @classmethod
    def load(cls, path: Path) -> EvalResult:
        """Read a file of :meth:`save`; :class:`BadResult` says what is wrong with it."""
        return cls.from_json(read_text(path), str(path))

    def _plain(self, top: Callable[[Try], float], bottom: Callable[[Try], float]) -> float:
        below = sum(bottom(one) for one in self.every_try)
        return sum(top(one) for one in self.every_try) / below if below else math.nan

    def _ratio(self, top: Callable[[Try], float], bottom: Callable[[Try], float]) -> Interval:
        return cluster_bootstrap(
            [math.fsum(top(one) for one in task.tries) for task in self.tasks],
            [math.fsum(bottom(one) for one in task.tries) for task in self.tasks],
            self.level,
        )


def _try(episode: Episode) -> Try:
    answer = episode.info.get("answer")
    return Try(
        success=bool(episode.success) and episode.outcome != "failed",
        reward=float(episode.reward),
        turns=len(episode.turns),
        invalid=sum(not turn.valid for turn in episode.turns),
        outcome=episode.outcome,
        restarts=int(episode.restarts),
        answer=None if answer is None else str(answer),
    )


# The file, key by key -------------------------------------------------------------------------------------------------


class _PanelFile(Document):  # type: ignore[no-redef]  # mypy takes the field kwargs for the one of **kwargs
    environment: str
    split: str
    split_hash: str
    tasks: int = Field(ge=1)
    tries: int = Field(ge=1)
    kwargs: dict[str, Any]
    seed: int = Field(default=0, ge=0)
    conditions: dict[str, Any] = Field(default_factory=dict)


class _TryFile(Document):
    turns: int = Field(ge=0)
    invalid: int = Field(ge=0)
    outcome: Literal["terminated", "truncated", "failed"]
    success: bool
    reward: float
    restarts: int = Field(ge=0)
    answer: str | None

    @field_validator("invalid")
    @classmethod
    def _no_more_than_turns(cls, value: int, info: ValidationInfo) -> int:
        turns = info.data.get("turns", value)
        if value > turns:
            raise ValueError(f"at most {turns}, the number of turns")
        return value

    @field_validator("success")
    @classmethod
    def _never_of_a_failed_try(cls, value: bool, info: ValidationInfo) -> bool:
        if value and info.data.get("outcome") == "failed":
            raise ValueError("false of a failed try")
        return value


class _TaskFile(Document):
    task: str
    task_type: str
    tries: list[_TryFile]


class _SummaryFile(Document):
    successes: int


class _ResultFile(Document):
    format: Literal["gagpo evaluation 1"]
    tasks: list[_TaskFile]
    panel: _PanelFile
    model: str
    temperature: float | None
    level: float
    answers: bool
    summary: _SummaryFile

    @field_validator("level")
    @classmethod
    def _a_probability(cls, value: float) -> float:
        if not 0 < value < 1:
            raise ValueError("strictly between 0 and 1")
        return value


def _require_whole(read: _ResultFile, name: str) -> None:
    """The panel must say what the tasks are that follow it."""
    panel, tasks = read.panel, read.tasks
    if panel.tasks != len(tasks):
        raise BadResult(
            f"{name}: key 'panel.tasks' must be {len(tasks)}, the number of tasks listed, got {panel.tasks}"
        )
    for number, task in enumerate(tasks):
        if len(task.tries) != panel.tries:
            raise BadResult(f"{name}: key 'tasks[{number}].tries' must hold {panel.tries} tries, got {len(task.tries)}")
    if len({task.task for task in tasks}) != len(tasks):
        raise BadResult(f"{name}: key 'tasks' lists a task twice")


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 120 else shown[:117] + "..."


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
