"""The problems of a family of reasoning-gym, generated and scored in a child process with deadlines."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from gagpo.base import durable, lock
from gagpo.base.child import Child, ChildEnded, ChildFailed, ChildLate, Shared
from gagpo.base.errors import GagpoError, InvalidArgument
from gagpo.base.folders import data_folder
from gagpo.base.progress import track
from gagpo.envs.tasks import Task, TaskSet

Verdict = Literal["correct", "partial", "wrong", "no_answer", "timeout"]

GENERATION_SECONDS = 120.0  # wall time of one problem; the slowest families take seconds
SCORING_CPU_SECONDS = 5.0
SCORING_SECONDS = 60.0  # wall time
LISTING_SECONDS = 4 * 3600.0  # that another process may take to list the tasks
MEMORY = 4 * 2**30  # address space of the process, in bytes
MAX_ANSWER = 50_000  # characters


class GenerationFailed(GagpoError, RuntimeError):
    """A problem that the family cannot generate, or not in time."""


@dataclass(frozen=True)
class GeneratedProblem:
    """A question, and an answer that scores 1; None if none is known."""

    question: str
    answer: str | None

    @property
    def digest(self) -> str:
        """Identifies the content, across families and seeds."""
        return hashlib.sha256(" ".join(self.question.split()).encode()).hexdigest()[:16]


class ProblemProcess:
    """The problems of one family and configuration. Thread-safe; usable again after ``close()``.

    family: its name in reasoning-gym.
    config: fields of its configuration, ``seed`` and ``size`` included.
    """

    def __init__(self, family: str, config: Mapping[str, Any]):
        self.family = family
        self.config = dict(config)
        self._child = Child(
            "gagpo.envs.reasoning_gym.worker:main",
            family,
            json.dumps(self.config),
            name=f"the process of reasoning_gym:{family}",
            memory=MEMORY,
            variables={**os.environ, "PYTHONHASHSEED": "0"},
        )

    def problem(self, seed: int) -> GeneratedProblem:
        """The problem of a seed.

        Raises:
            InvalidArgument: the configuration is invalid.
            GenerationFailed: the family raises an error, or takes too long.
        """
        where = f"reasoning_gym:{self.family}: the problem of seed {seed}"
        try:
            answer = self._child.ask(("problem", seed), GENERATION_SECONDS)
        except ChildLate:
            raise GenerationFailed(
                f"was not generated in {GENERATION_SECONDS:g} s", where=where, advice="use other seeds"
            ) from None
        except ChildEnded as error:
            raise GenerationFailed(
                f"the process ended ({error.status})", where=where, advice="use other seeds"
            ) from None
        self._require_valid(answer)
        if answer[0] != "ok":
            raise GenerationFailed(f"cannot be generated: {answer[1:]}", where=where, advice="use other seeds")
        return GeneratedProblem(answer[1], answer[2])

    def score(self, seed: int, answer: str) -> tuple[float, Verdict]:
        """The score of an answer from 0 to 1, and the verdict.

        An answer that exceeds its CPU time or memory is wrong. One that misses its wall-clock deadline gets a second
        attempt, because the machine may be busy.
        """
        if len(answer) > MAX_ANSWER:
            return 0.0, "wrong"
        reply: tuple[Any, ...] = ("timeout",)
        for _ in range(2):
            try:
                reply = self._child.ask(("score", seed, answer, SCORING_CPU_SECONDS), SCORING_SECONDS)
                break
            except ChildEnded as error:
                # The system's limit of CPU time, some seconds above the interpreter's own, which a long call into C
                # code does not notice.
                if error.status == -signal.SIGXCPU:
                    break
            except ChildLate:
                continue
        self._require_valid(reply)
        if reply[0] == "failed":
            raise GenerationFailed(f"seed {seed} cannot be scored: {reply[1]}", where=f"reasoning_gym:{self.family}")
        if reply[0] != "ok":
            return 0.0, "timeout"
        if reply[1] >= 1:
            return 1.0, "correct"
        return reply[1], "partial" if reply[1] > 0 else "wrong"

    def close(self) -> None:
        self._child.close()

    def _require_valid(self, reply: object) -> None:
        if not isinstance(reply, tuple) or not reply:
            raise ChildFailed(f"{self._child.name} sent an invalid answer")
        if reply[0] == "invalid":
            raise InvalidArgument(f"invalid configuration: {reply[1]}", where=f"reasoning_gym:{self.family}")


@functools.lru_cache(maxsize=64)
def shared_problems(family: str, config: str) -> Shared[ProblemProcess]:
    """The problems that all environments of this process with one configuration (as JSON) share."""
    return Shared(ProblemProcess(family, json.loads(config)))


def task_sets(problems: ProblemProcess, seeds: Mapping[str, range]) -> dict[str, TaskSet]:
    """The tasks of every split: the seeds whose question occurs in no later split and at no earlier seed of its own.

    Later splits come first, so held-out tasks stay the same when the training split grows. The list is stored once in
    ``$GAGPO_DATA/reasoning_gym``.

    Raises:
        InvalidArgument, GenerationFailed: see :meth:`ProblemProcess.problem`.
    """
    file = _file(problems, seeds)
    seeds_and_digests = _stored(file)
    if seeds_and_digests is None:
        file.parent.mkdir(parents=True, exist_ok=True)
        with lock.alone(Path(f"{file}.lock"), LISTING_SECONDS, f"listing the tasks of {problems.family}"):
            seeds_and_digests = _stored(file)  # another process may have listed them meanwhile
            if seeds_and_digests is None:
                seeds_and_digests = _list(problems, seeds)
                durable.write_text(file, json.dumps(seeds_and_digests))
    advice = f"reasoning_gym:{problems.family} has too few different problems with this configuration"
    return {
        split: TaskSet(split, _tasks(problems.family, split, rows), advice) for split, rows in seeds_and_digests.items()
    }


def _tasks(family: str, split: str, rows: list[tuple[int, str]]) -> list[Task]:
    return [Task(f"{split}-{seed:07d}", split, family, digest, str(seed)) for seed, digest in rows]


def _list(problems: ProblemProcess, seeds: Mapping[str, range]) -> dict[str, list[tuple[int, str]]]:
    seeds_and_digests: dict[str, list[tuple[int, str]]] = {}
    digests: set[str] = set()
    total = sum(map(len, seeds.values()))
    with track(f"generating reasoning_gym:{problems.family}", total, "problems") as meter:
        for split in reversed(list(seeds)):
            seeds_and_digests[split] = []
            for seed in seeds[split]:
                digest = problems.problem(seed).digest
                if digest not in digests:
                    digests.add(digest)
                    seeds_and_digests[split].append((seed, digest))
                meter.advance()
    return {split: seeds_and_digests[split] for split in seeds}


def _file(problems: ProblemProcess, seeds: Mapping[str, range]) -> Path:
    """Where the list of tasks is stored: a file per version, family, configuration and seeds."""
    ranges = {split: [numbers.start, numbers.stop] for split, numbers in seeds.items()}
    content = [version("reasoning-gym"), problems.family, problems.config, ranges]
    name = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]
    return data_folder() / "reasoning_gym" / f"{problems.family}-{name}.json"


def _stored(file: Path) -> dict[str, list[tuple[int, str]]] | None:
    """The list of tasks in ``file``; None if the file does not exist or cannot be read."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        return {str(split): [(int(seed), str(digest)) for seed, digest in rows] for split, rows in content.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return None
