"""The environments of a run: rows of ``environments``, and every environment with what it takes from the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError

from gagpo.base.errors import InvalidArgument
from gagpo.base.nearest import hint
from gagpo.base.options import Options, problems
from gagpo.controllers.curriculum import Curriculum
from gagpo.envs.tasks import in_environment
from gagpo.settings.environment import ContextSettings, EnvironmentSettings, Kwargs
from gagpo.settings.training import EvaluationSettings

Reward = Literal["environment", "success"]
"""What training pays for a task: the environment's rewards, or 1 at the last turn of a success."""


def _part_of(section: type[Options], given: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Validated values of some keys of a section.

    names: keys that may be given.

    Raises:
        InvalidArgument: a key or a value is not valid.
    """
    if other := [name for name in given if name in section.model_fields and name not in names]:
        raise InvalidArgument(f"{other[0]} cannot differ between environments, only {', '.join(names)}")
    try:
        checked = section.model_validate(dict(given))
    except ValidationError as error:
        faults = [
            f"unknown key {place!r}; {hint(place, names)}" if unknown else f"{place}: {message}"
            for place, message, unknown in problems(error)
        ]
        raise InvalidArgument("; ".join(faults)) from None
    return {name: getattr(checked, name) for name in given}


def _context(given: dict[str, Any]) -> dict[str, Any]:
    return _part_of(ContextSettings, given, list(ContextSettings.model_fields))


def _evaluation(given: dict[str, Any]) -> dict[str, Any]:
    return _part_of(EvaluationSettings, given, ["splits", "tries", "tasks"])


class EnvironmentRow(Options):
    """One of several environments that a run trains on together; what is absent is as for the run."""

    name: str = Field(
        pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,39}$", description="in metrics, panels and tasks: letters, digits, - and _"
    )
    weight: float = Field(1.0, ge=1e-6, le=1e6, description="share of the task groups, relative to other environments")
    id: str = Field(description="a registered id, or module:Name-v0 of a file in the working directory")
    split: str = Field("train", description="the split that is trained on")
    kwargs: Kwargs = Field({}, description="arguments of the environment's constructor")
    context: Annotated[dict[str, Any], AfterValidator(_context)] = Field(
        {}, description="keys of `context` that differ from the run's"
    )
    max_tokens: int | None = Field(None, ge=1, description="most tokens of a response; rollout.max_tokens if absent")
    evaluation: Annotated[dict[str, Any], AfterValidator(_evaluation)] = Field(
        {}, description="splits, tries or tasks where they differ from the run's `evaluation`"
    )


@dataclass(frozen=True)
class RunEnvironment:
    """An environment of a run with everything filled in.

    name: empty in a run of one ``environment``.
    weight: share of the task groups, relative to other environments.
    environment: how it is built.
    context: what the model reads.
    max_tokens: most tokens of a response.
    samples: episodes of a group.
    reward: what training pays.
    invalid_penalty: what a turn without a valid action costs.
    evaluation: how it is measured.
    curriculum: order of its tasks.
    """

    name: str
    weight: float
    environment: EnvironmentSettings
    context: ContextSettings
    max_tokens: int
    samples: int
    reward: Reward
    invalid_penalty: float
    evaluation: EvaluationSettings
    curriculum: Curriculum

    def task(self, task: str) -> str:
        """The name of one of its tasks within the run."""
        return in_environment(self.name, task)

    @property
    def panels(self) -> dict[str, str]:
        """The splits that are measured, by the name of the panel within the run."""
        return {in_environment(self.name, split): split for split in self.evaluation.splits}


def fault_of(rows: Sequence[EnvironmentRow]) -> str:
    """What is wrong with the rows together; '' if nothing is."""
    first: dict[str, int] = {}
    for number, row in enumerate(rows):
        if row.name.casefold() in first:  # names of files, which some disks compare without case
            return f"rows {first[row.name.casefold()]} and {number} are both named {row.name!r}: give each its own name"
        first[row.name.casefold()] = number
    return ""
