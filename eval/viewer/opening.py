"""Find what ``gagpo view`` shows: run folders, folders of runs, and single files of episodes or results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gagpo.eval.episode_files import episode_files, format_of
from gagpo.eval.results import EvalResult
from gagpo.eval.runs import Evaluation, Run, load_run, read_label
from gagpo.runs.reading import BadResult


def open_path(path: Path) -> tuple[Run, list[Path], list[str]]:
    """A run folder, or a file as a run with the evaluation in it; the files of its episodes; errors of skipped files.

    Raises:
        BadResult: it cannot be used.
    """
    if not path.is_file():
        return load_run(path), *episode_files(path)
    if format_of(path) != "evaluation":
        return Run(path, (), 0, ()), [path], []
    stage, split, iteration = read_label(path.stem)
    result = EvalResult.load(path)
    evaluation = Evaluation(path.stem, stage or "after", split or result.task_set.split, iteration, result)
    episodes = home_of(path) / "episodes" / f"{path.stem}.jsonl"  # of the same evaluation, in a run folder
    has_episodes = episodes.is_file() and not episodes.is_symlink()
    return Run(path, (), 0, (evaluation,)), [episodes if has_episodes else path], []


def home_of(path: Path) -> Path:
    """The run folder itself, or the one to which a file would belong."""
    return path.absolute().parent.parent if path.is_file() else path


def runs_in(paths: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """The files and run folders among ``paths`` or directly inside them, and errors of runs that cannot be read.

    Raises:
        BadResult: a path does not exist, or a folder neither is a run nor contains one.
    """
    readable: list[Path] = []
    problems: list[str] = []
    for folder in paths:
        if not folder.exists():
            raise BadResult("no such run folder or file", where=folder)
        if folder.is_file() or is_run(folder):
            readable.append(folder)
            continue
        inside = sorted(path for path in folder.iterdir() if not path.name.startswith(".") and is_run(path))
        if not inside:
            raise BadResult(
                "neither a run folder nor a folder of runs (no metrics.jsonl, no evals/*.json)", where=folder
            )
        for path in inside:
            try:
                load_run(path)
            except BadResult as error:
                problems.append(str(error))
            else:
                readable.append(path)
    if not readable:
        raise BadResult(f"none of the runs can be read: {problems[0]}")
    return readable, problems


def is_run(folder: Path) -> bool:
    """Whether a folder has metrics or an evaluation."""
    return (folder / "metrics.jsonl").exists() or any((folder / "evals").glob("*.json"))
