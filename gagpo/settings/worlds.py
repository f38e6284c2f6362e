"""The worlds of a run: rows of ``environments``, and every world with what it takes from the run filled in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from gagpo.base.options import Options
from gagpo.controllers.curriculum import AnyCurriculum, Curriculum
from gagpo.envs.tasks import in_world
from gagpo.settings.environment import Calls, ContextSettings, EnvironmentSettings, History, Kwargs, Style, Template
from gagpo.settings.training import EvaluationSettings

Reward = Literal["world", "success"]
"""What training pays for a task: what its world pays, or 1 at the last turn of a success and nothing else."""


class WorldContextSettings(Options):
    """What differs from the run's ``context`` in this world; what is absent is as there."""

    style: Style | None = Field(None, description="how observations become messages")
    history: History | None = Field(None, description="full, or the number of earlier turns that a window shows")
    admissible: bool | None = Field(None, description="list the admissible actions in the prompt")
    template: Template | None = Field(None, description="variables of the chat template")
    calls: Calls | None = Field(None, description="with style tools, the format that the model calls in")


class WorldEvaluationSettings(Options):
    """What differs from the run's ``evaluation`` in this world; what is absent is as there."""

    splits: list[str] | None = Field(None, description="panels, each a whole split or a part of it")
    tries: int | None = Field(None, ge=1, description="how often each task is played")
    tasks: int | None = Field(None, ge=1, description="an evenly spaced part of the split")


class WorldSettings(Options):
    """One of several worlds that a run trains on together; what is absent is as the run says."""

    name: str = Field(
        pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,39}$", description="in metrics, panels and tasks: letters, digits, - and _"
    )
    weight: float = Field(1.0, ge=1e-6, le=1e6, description="share of the task groups, relative to the other worlds")
    id: str = Field(description="a registered id, or module:Name-v0 of a file in the working directory")
    split: str = Field("train", description="the split that is trained on")
    kwargs: Kwargs = Field({}, description="arguments of the environment's constructor")
    context: WorldContextSettings = WorldContextSettings()
    max_tokens: int | None = Field(None, ge=1, description="most tokens of a response; rollout.max_tokens if absent")
    samples: int | None = Field(None, ge=1, description="episodes of a group; rollout.samples if absent")
    reward: Reward | None = Field(None, description="what training pays; the run's reward if absent")
    invalid_penalty: float | None = Field(
        None, ge=0, description="what a turn without a valid action costs; the run's invalid_penalty if absent"
    )
    evaluation: WorldEvaluationSettings = WorldEvaluationSettings()
    curriculum: AnyCurriculum | None = Field(None, description="order of the tasks; the run's curriculum if absent")


@dataclass(frozen=True)
class World:
    """A world of a run with everything filled in. name: empty in a run of one ``environment``."""

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
        """The name of a task of this world within the run."""
        return in_world(self.name, task)

    @property
    def panels(self) -> dict[str, str]:
        """The splits that are measured, by the name of the panel within the run."""
        return {in_world(self.name, split): split for split in self.evaluation.splits}


def fault_of(rows: Sequence[WorldSettings]) -> str:
    """What is wrong with the rows together; '' if nothing is."""
    first: dict[str, int] = {}
    for number, row in enumerate(rows):
        if row.name.casefold() in first:  # their panels are files, which some disks do not tell apart
            return f"rows {first[row.name.casefold()]} and {number} are both named {row.name!r}: give each its own name"
        first[row.name.casefold()] = number
    return ""
