"""Episodes as report and viewer show them, from episode files, journals and results, with every line checked."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from gagpo.data import SUCCESS_ASSUMED, Invalid, episode_record
from gagpo.eval.journal import read_journal
from gagpo.eval.results import EvalResult
from gagpo.runs.headline import Outcomes
from gagpo.runs.reading import BadResult, Document, read_as, validated

HEAD = re.compile(rb'\s*{\s*"format":\s*"gagpo (evaluation|journal) ')
MOST_BROKEN = 20  # lines read of a file that begins with no episode


class TokensRecord(Document):
    """A turn token by token: the length of its prompt, tokens of the response, and numbers per response token.

    read: the last new tokens of the prompt, in files of older versions.
    """

    prompt: int = 0
    read: list[str] = Field(default_factory=list)
    text: list[str] = Field(default_factory=list)
    logprob: list[float] | None = None
    ratio: list[float] | None = None
    gate_weight: list[float] | None = None
    advantage: list[float] | None = None


Sized = Annotated[float, Field(ge=-1e30, le=1e30)]
"""A number whose sums and squares stay finite."""


def _writable(info: dict[str, Any]) -> dict[str, Any]:
    try:
        json.dumps(info, allow_nan=False)
    except (ValueError, RecursionError):
        raise ValueError("an object of finite numbers") from None
    return info


MOST_SCREENSHOT = 8_000_000  # characters
Screenshot = Annotated[str, Field(pattern=r"^iVBORw0KGgo[A-Za-z0-9+/]*={0,2}$", max_length=MOST_SCREENSHOT)]
"""A PNG in base64."""


class CallRecord(Document):
    """A tool call of a turn; see :class:`gagpo.data.Call`."""

    action: str = ""
    error: str = ""
    answer: str | None = None


class TurnRecord(Document):
    """One turn; see :class:`gagpo.data.Turn`."""

    observation: str
    response: str
    sent: str = ""
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
    screenshot: Screenshot | None = None
    diff: str | None = None


class EpisodeRecord(Document):
    """One episode; see :class:`gagpo.data.Episode`.

    length: number of turns; they are missing in an evaluation's result.
    """

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
    length: int = 0

    @property
    def num_turns(self) -> int:
        """The number of turns."""
        return len(self.turns) or self.length

    @property
    def kind(self) -> str:
        """The task type, with the environment's name in a run of several."""
        return ": ".join(filter(None, (self.environment, self.task_type)))

    @property
    def won(self) -> bool:
        """Whether it is a success; a failed episode never is."""
        return self.success and self.outcome != "failed"


def outcomes_of(episodes: Sequence[EpisodeRecord]) -> Outcomes:
    """What occurred in episodes, apart from failed ones, which decides the numbers that come first."""
    finished = [episode for episode in episodes if episode.outcome != "failed"]
    return Outcomes.of([(episode.reward, episode.success, SUCCESS_ASSUMED in episode.info) for episode in finished])


def episode_files(run: Path) -> tuple[list[Path], list[str]]:
    """The files of episodes in a run folder, and an error for each that must not be read.

    A link may lead out of the run, which may be somebody else's, and reading a pipe or a device may never end.
    """
    files: list[Path] = []
    problems: list[str] = []
    for path in sorted((run / "episodes").glob("*.jsonl")):
        if path.is_symlink():
            problems.append(f"{path}: skipped, because it is a link; copy the file to show its episodes")
        elif not path.is_file():
            problems.append(f"{path}: skipped, because it is not a regular file")
        else:
            files.append(path)
    return files, problems


def read_episode_file(path: Path) -> tuple[list[EpisodeRecord], list[str]]:
    """The episodes of a file, and an error for each line that is not an episode, such as a torn last line.

    Raises:
        GagpoError: the file cannot be read, or has no episode, journal or result.
    """
    file_format = format_of(path)
    if file_format == "journal":
        return [validated(EpisodeRecord, episode_record(episode), str(path)) for episode in read_journal(path)[1]], []
    if file_format == "evaluation":
        return _tries(EvalResult.load(path), str(path)), []
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
                if not episodes and len(problems) == MOST_BROKEN:
                    break
    except OSError as error:
        raise BadResult(f"cannot be read ({error.strerror})", where=path) from None
    if problems and not episodes:
        raise BadResult(f"holds no episodes of this project: {problems[0]}", where=path)
    return episodes, problems


def format_of(path: Path) -> str:
    """``evaluation``, ``journal``, or '' for any other file, by its first key."""
    try:
        with path.open("rb") as file:
            head = HEAD.match(file.read(80))
    except OSError as error:
        raise BadResult(f"cannot be read ({error.strerror})", where=path) from None
    return head[1].decode() if head else ""


def _tries(result: EvalResult, name: str) -> list[EpisodeRecord]:
    """The tries of a result as episodes without turns; a task is a group."""
    records = []
    for group, task in enumerate(result.tasks):
        for sample, attempt in enumerate(task.tries):
            facts = {"task": task.task, "task_type": task.task_type, "group": group, "sample": sample, "turns": []}
            facts |= {
                "success": attempt.success,
                "outcome": attempt.outcome,
                "reward": attempt.reward,
                "length": attempt.turns,
            }
            records.append(validated(EpisodeRecord, facts, name))
    return records
