"""Suites: YAML files of task sets, on each of which one command evaluates a model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from gagpo.base.core_schema import read_mapping
from gagpo.base.errors import InvalidArgument
from gagpo.base.nearest import hint
from gagpo.base.options import Options, explain
from gagpo.eval.request import EvaluationRequest

SHIPPED = Path(__file__).parents[1] / "configs" / "suites"
"""The suites that come with the package."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,60}")
EXCLUDED = ("environment", "like", "split", "kwargs", "tasks")
"""Options that a suite decides for each of its task sets."""


class SuiteEntry(Options):
    """One task set of a suite."""

    environment: str = Field(description="id of the environment")
    split: str | None = Field(None, description="split; by default the environment's last one with tasks")
    kwargs: Mapping[str, Any] = Field({}, description="arguments of the environment")
    tasks: int | None = Field(None, ge=1, description="number of tasks, evenly spaced; by default the whole split")
    episodes_per_task: int | None = Field(None, ge=1, description="episodes of each task")
    temperature: float | None = Field(None, ge=0, description="sampling temperature")
    max_tokens: int | None = Field(None, ge=1, description="token limit of a response")


def shipped_suites() -> dict[str, Path]:
    """The suites that come with the package, by name."""
    return {path.stem: path for path in sorted(SHIPPED.glob("*.yaml"))}


def read_suite(suite: str) -> dict[str, SuiteEntry]:
    """The task sets of a YAML file or of a shipped suite, by name; of ``agents:math,sql``, two of ``agents``.

    Raises: InvalidArgument naming the file, the task set and the key.
    """
    name, colon, chosen = suite.rpartition(":")
    if not colon or Path(suite).is_file():
        return _read_file(suite)
    entries = _read_file(name)
    names = chosen.split(",")
    if unknown := [each for each in names if each not in entries]:
        raise InvalidArgument(
            f"unknown task set {unknown[0]!r:.80} of {name}", advice=f"choose from {', '.join(entries)}"
        )
    return {each: entries[each] for each in names}


def _read_file(suite: str) -> dict[str, SuiteEntry]:
    shipped = shipped_suites()
    path = shipped.get(suite, Path(suite))
    if not path.is_file():
        raise InvalidArgument(f"there is no suite {suite!r:.80}", advice=f"{hint(suite, shipped)}, or a YAML file")
    entries = {}
    for name, values in read_mapping(path).items():
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise InvalidArgument(f"{name!r:.80} must be a name of letters, digits, - and _", where=path)
        if not isinstance(values, Mapping):
            raise InvalidArgument(f"{name} must be a mapping with environment, split, tasks, ...", key=name, where=path)
        try:
            entries[name] = SuiteEntry.model_validate(values)
        except ValidationError as error:
            raise explain(error, SuiteEntry.model_fields, f"{path}: {name}") from None
    if not entries:
        raise InvalidArgument("must list at least one task set", where=path)
    return entries


def requests_of(request: EvaluationRequest) -> dict[str, EvaluationRequest]:
    """The request for each task set of the suite. What the command sets counts more than what the suite says.

    Raises: InvalidArgument for options that the suite decides.
    """
    for name in EXCLUDED:
        if getattr(request, name) is not None:
            raise InvalidArgument(f"{name} is decided by the suite: leave it out, or write your own suite", key=name)
    requests = {}
    for name, entry in read_suite(request.suite or "").items():
        changes = {key: value for key, value in entry if value is not None}
        for key in ("temperature", "max_tokens", "episodes_per_task"):
            if getattr(request, key) != EvaluationRequest.model_fields[key].default:
                changes.pop(key, None)
        requests[name] = request.model_copy(update={**changes, "suite": None})
    return requests
