"""Episode files as report, viewer and terminal show them, with every line checked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from gagpo.agents.episodes import Invalid
from gagpo.runs.reading import BadResult, Document, read_as


class TokensRecord(Document):
    """A turn token by token: tokens read, tokens of the response, and numbers per response token."""

    prompt: int = 0
    read: list[str] = Field(default_factory=list)
    text: list[str] = Field(default_factory=list)
    logprob: list[float] | None = None
    ratio: list[float] | None = None
    advantage: list[float] | None = None


Sized = Annotated[float, Field(ge=-1e30, le=1e30)]
"""A number whose sums and squares stay finite."""


def _writable(info: dict[str, Any]) -> dict[str, Any]:
    try:
        json.dumps(info, allow_nan=False)
    except (ValueError, RecursionError):
        raise ValueError("an object of finite numbers") from None
    return info


class CallRecord(Document):
    """A tool call of a turn; see :class:`gagpo.agents.episodes.Call`."""

    action: str = ""
    error: str = ""
    answer: str | None = None


class TurnRecord(Document):
    """One turn; see :class:`gagpo.agents.episodes.Turn`."""

    observation: str
    response: str
    action: str = ""
    reward: Sized = 0.0
    valid: bool = True
    invalid: Invalid | None = None
    refusal: str | None = None
    calls: list[CallRecord] | None = None
    state: str | None = None
    advantage: Sized | None = None
    value: Sized | None = None
    group_state: int | None = None
    tokens: TokensRecord | None = None


class EpisodeRecord(Document):
    """One episode; see :class:`gagpo.agents.episodes.Episode`."""

    task: str
    task_type: str = ""
    environment: str | None = None
    group: int = 0
    sample: int = 0
    success: bool = False
    outcome: str = "terminated"
    reward: Sized = 0.0
    temperature: float | None = None
    restarts: int = 0
    kept: bool | None = None
    info: Annotated[dict[str, Any], AfterValidator(_writable)] = Field(default_factory=dict)
    turns: list[TurnRecord]

    @property
    def kind(self) -> str:
        """The task type, with the environment's name in a run of several."""
        return ": ".join(filter(None, (self.environment, self.task_type)))

    @property
    def won(self) -> bool:
        """Whether it is a success; a failed episode never is."""
        return self.success and self.outcome != "failed"


def read_episode_file(path: Path) -> tuple[list[EpisodeRecord], list[str]]:
    """The episodes of a file, and an error for each line that is not an episode, such as a torn last line.

    Raises:
        BadResult: the file cannot be read, or none of its lines is an episode.
    """
    episodes: list[EpisodeRecord] = []
    problems: list[str] = []
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                try:
                    episodes.append(read_as(EpisodeRecord, line, f"{path.name}, line {number}"))
                except BadResult as error:
                    problems.append(str(error))
    except OSError as error:
        raise BadResult(f"{path}: cannot be read ({error.strerror})") from None
    if problems and not episodes:
        raise BadResult(f"{path} holds no episodes of this project: {problems[0]}")
    return episodes, problems
