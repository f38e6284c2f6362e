"""Find what ``gagpo view`` shows: run folders, folders of runs, and single files of episodes or results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


def is_run(folder: Path) -> bool:
    """Whether a folder has metrics or an evaluation."""
    return (folder / "metrics.jsonl").exists() or any((folder / "evals").glob("*.json"))


def is_begun(path: Path) -> bool:
    """Whether ``path`` is a file, or a run that may not have finished an iteration yet."""
    return path.is_file() or is_run(path) or (path / "config.yaml").is_file()


def runs_in(paths: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """The files and run folders among ``paths`` or in them, and errors of runs that cannot be read.

    Raises: BadResult; see :func:`folders_in`, or if no run can be read.
    """
    readable: list[Path] = []
    problems: list[str] = []
    for path in folders_in(paths, is_run):
        try:
            if path not in paths:
                load_run(path)
        except BadResult as error:
            problems.append(str(error))
        else:
            readable.append(path)
    if not readable:
        raise BadResult(f"none of the runs can be read: {problems[0]}")
    return readable, problems


def folders_in(paths: Sequence[Path], is_wanted: Callable[[Path], bool]) -> list[Path]:
    """The files and run folders among ``paths`` or directly inside them; of a sweep's folder, those of the sweep.

    is_wanted: which paths are runs.

    Raises:
        BadResult: a path does not exist, or a folder neither is a run nor contains one.
    """
    folders: list[Path] = []
    for folder in paths:
        if not folder.exists():
            raise BadResult("no such run folder or file", where=folder)
        if folder.is_file() or is_wanted(folder):
            folders.append(folder)
            continue
        inside = [path for path in _candidates(folder) if not path.name.startswith(".") and is_wanted(path)]
        if not inside:
            raise BadResult(
                "neither a run folder nor a folder of runs (no metrics.jsonl, no evals/*.json)", where=folder
            )
        folders += inside
    return folders


def _candidates(folder: Path) -> list[Path]:
    """The folders that may be runs of a folder of runs, or of a sweep."""
    logs = sorted((folder / "logs").glob("*.log"))
    return [folder.absolute().parent / log.stem for log in logs] or sorted(folder.iterdir())
