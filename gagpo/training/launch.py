"""Start, resume and extend runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gagpo.runs.run_folder import RunFolder
from gagpo.settings import RunSettings, SettingsError, load, machine, resolve
from gagpo.settings.derived import derived_values

if TYPE_CHECKING:
    from gagpo.distributed.ranks import Ranks
    from gagpo.eval.runs import Run


def train(
    config: str | Path, *overrides: str, runs: str | Path = "runs", resume: bool = False, quiet: bool = False
) -> Run:
    """Train as ``gagpo train`` does, to the end, and write the report; returns the finished run.

    config: a settings file or the name of a shipped config; with ``resume`` a run folder.
    overrides: ``section.key=value``; with ``resume`` only :data:`gagpo.runs.run_folder.CHANGEABLE`.

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
    from gagpo.distributed import launch
    from gagpo.distributed.environment import started_as_rank

    if resume:
        ours = [override for override in overrides if override.startswith(("processes=", "ranks."))]
        settings = load(RunFolder.open(resume).path / "config.yaml", ours, earlier=True)
    else:
        settings = resolved_settings(config or "", overrides)

    def folder() -> RunFolder:
        return resume_run(resume, overrides) if resume else new_run(config or "", overrides, runs, auto)

    machine.require_machine(settings)
    if launch.starts_ranks(settings.processes):
        from gagpo.collecting.distributed_rollout import require_fitting

        require_fitting(settings, settings.processes)
        found = folder()
        given = {"--auto": auto, "--quiet": quiet, "--json": as_json}
        flags = ["--runs", str(runs), *(option for option, wanted in given.items() if wanted)]
        which = ["--resume", str(resume)] if resume else [str(config)]
        launch.run(settings.processes, ["train", *which, *overrides, *flags])
        yield RunFolder.open(found.path), None
        return
    alone = None if started_as_rank() else folder()  # before torch is imported
    from gagpo.distributed.ranks import joined

    with joined(deadline=settings.ranks.timeout) as ranks:
        if alone is not None:
            yield alone, ranks
            return
        mine: RunFolder | None = None

        def made() -> str:
            nonlocal mine
            mine = folder()
            return str(mine.path)

        path = Path(ranks.of_first(made))
        yield mine or (RunFolder.open(path) if resume else RunFolder(path, settings)), ranks


def resolved_settings(config: str | Path, overrides: Sequence[str]) -> RunSettings:
    """The settings of a new run, with what SFT derived for its model."""
    settings = load(config, overrides)
    return resolve(settings, derived_values(settings))


def new_run(config: str | Path, overrides: Sequence[str], runs: Path, auto: bool = False) -> RunFolder:
    """A new run, not yet on disk.

    auto: resume an unfinished run with this name and these settings; if it is finished, add a number to the name.
    """
    settings = resolved_settings(config, overrides)
    require_model(settings)
    path = runs / settings.name
    number, place = 1, path
    while auto and (place / "config.yaml").exists():
        folder = RunFolder.open(place)
        if folder.settings == settings and not folder.finished:
            return folder
        number += 1
        place = path.with_name(f"{path.name}-{number}")
    return RunFolder.new(place, settings)


def resume_run(path: Path, overrides: Sequence[str] = ()) -> RunFolder:
    """The run to resume; ``overrides`` may extend it (``training.iterations=40``)."""
    folder = RunFolder.open(path)
    if overrides:
        with folder.locked():
            folder.change(overrides)
    return folder


def require_model(settings: RunSettings) -> None:
    """Raise SettingsError if the model does not exist or SFT has yet to make it."""
    made = settings.sft is not None and not settings.model.startswith("starter:")
    if made and not Path(settings.model).exists():
        raise SettingsError(f"there is no model folder {settings.model}; make it with `gagpo sft CONFIG`")
    machine.require_model(settings.model)
