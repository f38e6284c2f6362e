"""Start, resume and extend runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gagpo.runs.run_folder import RunFolder
from gagpo.settings import RunSettings, SettingsError, load, machine, resolve
from gagpo.settings.derived import derived_values
from gagpo.settings.formats import with_formats_of
from gagpo.settings.naming import with_run_name

if TYPE_CHECKING:
    from gagpo.distributed.ranks import Ranks
    from gagpo.eval.runs import Run


def train(
    config: str | Path, *overrides: str, runs: str | Path = "runs", resume: bool = False, quiet: bool = False
) -> Run:
    """Train as ``gagpo train`` does, to the end, and write the report; returns the finished run.

    config: a settings file or the name of a shipped config; with ``resume`` a run folder.
    overrides: ``section.key=value``; with ``resume`` only :data:`gagpo.settings.keys.CHANGEABLE`.

    Raises:
        gagpo.GagpoError: wrong settings, before anything is written.
    """
    from gagpo.eval.report.report import write_report
    from gagpo.eval.runs import load_run
    from gagpo.training import trainer

    where = Path(config) if resume else None
    with open_run(None if resume else config, overrides, Path(runs), where, quiet=quiet) as (folder, ranks):
        if ranks is not None:
            trainer.train(folder, quiet=quiet, ranks=ranks)
    if ranks is not None and ranks.first:
        write_report(folder.path)
    return load_run(folder.path)


@contextmanager
def open_run(
    config: str | Path | None,
    overrides: Sequence[str],
    runs: Path,
    resume: Path | None = None,
    auto: bool = False,
    quiet: bool = False,
    as_json: bool = False,
) -> Iterator[tuple[RunFolder, Ranks | None]]:
    """A new or resumed run, and the ranks that train it.

    If the settings ask for several processes, they are started here and have finished when the block begins; the ranks
    are None then.

    as_json: they print the results as JSON.
    """
    from gagpo.base.rank import started_as_rank
    from gagpo.distributed import launch

    if resume:
        # Only these decide how the run starts; the others are checked and stored when it is resumed.
        rank_overrides = [override for override in overrides if override.startswith(("processes=", "ranks."))]
        settings = load(RunFolder.open(resume).path / "config.yaml", rank_overrides, earlier=True)
    else:
        settings = resolved_settings(config or "", overrides)

    def make_folder() -> RunFolder:
        return resume_run(resume, overrides) if resume else new_run(config or "", overrides, runs, auto, reported=True)

    machine.require_machine(settings)
    if launch.starts_ranks(settings.processes):
        from gagpo.collecting.distributed_rollout import require_fitting

        require_fitting(settings, settings.processes)
        folder = make_folder()
        options = {"--auto": auto, "--quiet": quiet, "--json": as_json}
        flags = ["--runs", str(runs), *(option for option, is_set in options.items() if is_set)]
        run_argument = ["--resume", str(resume)] if resume else [str(config)]
        launch.run(settings.processes, ["train", *run_argument, *overrides, *flags])
        yield RunFolder.open(folder.path), None
        return
    # A process that trains alone reads the settings before torch is imported, which takes seconds.
    single_folder = None if started_as_rank() else make_folder()
    from gagpo.distributed.ranks import joined

    with joined(deadline=settings.ranks.timeout) as ranks:
        yield single_folder or _folder_of_all(ranks, make_folder, settings), ranks


def _folder_of_all(ranks: Ranks, make_folder: Callable[[], RunFolder], settings: RunSettings) -> RunFolder:
    """The run that the first rank makes or opens with ``make_folder``, on every rank.

    The others are told its path and whether it is new: ``--auto`` may add a number to the name, or resume a run. The
    settings of a resumed run are those on disk on every rank. ``settings`` may still leave a number format open that
    the run has chosen, and a rank that waits to hear of that choice would wait in a gather that the others never join.
    """
    folder: RunFolder | None = None

    def make_and_describe() -> tuple[str, bool]:
        nonlocal folder
        folder = make_folder()
        return str(folder.path), folder.is_new

    path, is_new = ranks.of_first(make_and_describe)
    if folder is not None:
        return folder
    return RunFolder(Path(path), settings) if is_new else RunFolder.open(Path(path))


def resolved_settings(config: str | Path, overrides: Sequence[str]) -> RunSettings:
    """The settings of a new run, with what SFT derived for its model and a name from its overrides."""
    settings = load(config, with_run_name(config, overrides))
    return resolve(settings, derived_values(settings))


def new_run(
    config: str | Path, overrides: Sequence[str], runs: Path, auto: bool = False, reported: bool = False
) -> RunFolder:
    """A new run, not yet on disk.

    auto: resume an unfinished run with this name and these settings; if it is finished, add a number to the name.
    reported: with ``auto``, a finished run without its report is resumed too; it trains nothing again.
    """
    settings = resolved_settings(config, overrides)
    require_model(settings)
    path = runs / settings.name
    number = 1
    numbered_path = path
    while auto and (numbered_path / "config.yaml").exists():
        folder = RunFolder.open(numbered_path)
        is_same = folder.settings == resolve(with_formats_of(settings, folder.settings))
        if is_same and not _is_complete(folder, reported):
            return folder
        number += 1
        numbered_path = path.with_name(f"{path.name}-{number}")
    return RunFolder.new(numbered_path, settings)


def _is_complete(folder: RunFolder, reported: bool) -> bool:
    """Whether a run is finished, and has its report where one is expected."""
    from gagpo.eval.report.report import has_report

    return folder.finished and (not reported or has_report(folder.path))


def resume_run(path: Path, overrides: Sequence[str] = ()) -> RunFolder:
    """The run to resume; ``overrides`` may extend it (``training.iterations=40``)."""
    folder = RunFolder.open(path)
    if overrides:
        with folder.locked():
            folder.change(overrides)
    return folder


def require_model(settings: RunSettings) -> None:
    """Raise SettingsError if the model does not exist or SFT has yet to make it."""
    made_by_sft = settings.sft is not None and not settings.model.startswith("starter:")
    if made_by_sft and not Path(settings.model).exists():
        raise SettingsError(f"there is no model folder {settings.model}", advice="make it with `gagpo sft CONFIG`")
    machine.require_model(settings.model)
