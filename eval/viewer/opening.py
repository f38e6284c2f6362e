"""Find what ``gagpo view`` shows: run folders, folders of runs, and single files of episodes or results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gagpo.eval.episode_files import format_of
from gagpo.eval.results import EvalResult
from gagpo.eval.runs import Evaluation, Run, load_run, read_label
from gagpo.runs.reading import BadResult


@dataclass(frozen=True)
class Opened:
    """A run folder or a file.

    run: the metrics and evaluations; of a file only the evaluation in it.
    files: with episodes.
    folder: of the run to which they belong.
    """

    run: Run
    files: list[Path]
    folder: Path


def open_path(path: Path) -> Opened:
    """Read a run folder or a file; :class:`BadResult` if it cannot be used."""
    if not path.is_file():
        run = load_run(path)
        return Opened(run, sorted((path / "episodes").glob("*.jsonl")), path)
    folder = path.absolute().parent.parent
    evaluations: tuple[Evaluation, ...] = ()
    files = [path]
    if format_of(path) == "evaluation":
        stage, split, iteration = read_label(path.stem)
        result = EvalResult.load(path)
        evaluations = (Evaluation(path.stem, stage or "after", split or result.panel.split, iteration, result),)
        played = folder / "episodes" / f"{path.stem}.jsonl"  # of the same evaluation, in a run folder
        files = [played] if played.is_file() else files
    return Opened(Run(path, (), 0, evaluations), files, folder)


def runs_in(paths: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """The files and run folders among ``paths`` or directly inside them, and errors of runs that cannot be read.

    Raises:
        BadResult: a path does not exist, or a folder neither is a run nor holds one.
    """
    found: list[Path] = []
    problems: list[str] = []
    for folder in paths:
        if not folder.exists():
            raise BadResult(f"{folder}: no such run folder or file")
        if folder.is_file() or is_run(folder):
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
    """Whether a folder has metrics or an evaluation."""
    return (folder / "metrics.jsonl").exists() or any((folder / "evals").glob("*.json"))
