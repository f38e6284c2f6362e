"""The table of runs in the viewer: what was run, in which environment, with which seeds."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from gagpo.eval.runs import Evaluation, Run, load_run
from gagpo.eval.secrets import HIDDEN, shown_settings
from gagpo.eval.statistics import Interval, mean_over_seeds
from gagpo.runs.reading import BadResult

OWN = ("name", "seed")  # settings in which the runs of one experiment differ
DEEPEST, MOST = 8, 2000  # nesting and number of settings that are read from one file
LONGEST = 200  # characters of one setting


def runs_in(folders: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """The run folders among ``folders``, or directly inside them, and complaints about those that cannot be read.

    Raises:
        BadResult: a folder neither is a run nor holds one.
    """
    found: list[Path] = []
    problems: list[str] = []
    for folder in folders:
        if not folder.is_dir():
            raise BadResult(f"{folder}: not a run folder (no such folder)")
        if is_run(folder):
            found.append(folder)
            continue
        inside = sorted(one for one in folder.iterdir() if not one.name.startswith(".") and is_run(one))
        if not inside:
            raise BadResult(f"{folder}: neither a run folder nor a folder of runs (no metrics.jsonl, no evals/*.json)")
        for one in inside:
            try:
                load_run(one)
            except BadResult as error:
                problems.append(str(error))
            else:
                found.append(one)
    if not found:
        raise BadResult(f"none of the runs can be read: {problems[0]}")
    return found, problems


def is_run(folder: Path) -> bool:
    """Whether a folder looks like a run's: it has metrics or an evaluation."""
    return (folder / "metrics.jsonl").exists() or any((folder / "evals").glob("*.json"))


def experiments(runs: Sequence[Run]) -> list[dict[str, object]]:
    """Runs grouped by settings, name and seed aside: one row of the table for each group.

    ``success`` holds, by split, the result with its interval: over tasks for one run, over seeds for several. A run
    without settings is a group of its own.
    """
    together: dict[str, list[int]] = {}
    flat = [_settings(run.folder) for run in runs]
    for number, settings in enumerate(flat):
        key = json.dumps([pair for pair in sorted(settings.items()) if pair[0] not in OWN]) if settings else str(number)
        together.setdefault(key, []).append(number)
    return [
        _experiment([runs[n] for n in numbers], [flat[n] for n in numbers], numbers) for numbers in together.values()
    ]


def settings_that_differ(runs: Sequence[Run]) -> dict[str, list[str | None]]:
    """Every setting that differs between ``runs``, with its value in each; None where it is not set."""
    flat = [_settings(run.folder) for run in runs]
    names = dict.fromkeys(name for settings in flat for name in settings)
    found = {name: [settings.get(name) for settings in flat] for name in names}
    return {name: values for name, values in found.items() if len(set(values)) > 1}


def _experiment(runs: Sequence[Run], settings: Sequence[dict[str, str]], numbers: Sequence[int]) -> dict[str, object]:
    splits = dict.fromkeys(split for run in runs for split in run.splits())
    success = {split: [one for run in runs if (one := run.last(split))] for split in splits}
    return {
        "name": _name([run.name for run in runs]),
        "runs": list(numbers),
        "environment": settings[0].get("environment.id", "") or " + ".join(runs[0].envs),
        "seeds": [one.get("seed", "") for one in settings],
        "success": {split: _interval(ends).record() for split, ends in success.items()},
    }


def _interval(ends: Sequence[Evaluation]) -> Interval:
    if len(ends) == 1:
        return ends[0].result.success
    return mean_over_seeds([one.result.success.value for one in ends])


def _name(names: Sequence[str]) -> str:
    """The common beginning of the names, without a seed: ``walk-seed1`` and ``walk-seed2`` are ``walk``."""
    if len(names) == 1:
        return names[0]
    alike = itertools.takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    return re.sub(r"[-_.]*(seed|s)?[-_.]*$", "", "".join(letters[0] for letters in alike)) or names[0]


def _settings(folder: Path) -> dict[str, str]:
    """The settings of a run by dotted name, as short texts without secrets; empty without a file."""
    try:
        settings = shown_settings(folder / "config.yaml")
    except BadResult:
        return {}
    pairs = _flat(settings, "", 0) if isinstance(settings, dict) else iter(())
    return {name: text for (name, text), _ in zip(pairs, range(MOST), strict=False)}


def _flat(value: object, name: str, depth: int) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value and depth < DEEPEST:
        for key, inner in value.items():
            yield from _flat(inner, f"{name}.{key}" if name else str(key), depth + 1)
    else:
        yield name, _text(value)


def _text(value: object) -> str:
    if isinstance(value, str):
        return value[:LONGEST]
    try:
        return json.dumps(value, default=str)[:LONGEST]
    except (ValueError, RecursionError, TypeError):
        return HIDDEN
