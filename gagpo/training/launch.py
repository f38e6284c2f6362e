"""Starting, continuing and extending runs: from a config's name or path to a run folder that a trainer fills."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gagpo.envs.lookup import find_spec
from gagpo.runs.run_folder import RunFolder, require_space
from gagpo.settings import RunSettings, SettingsError, load, machine
from gagpo.settings.derived import with_derived

if TYPE_CHECKING:
    from gagpo.distributed.ranks import Ranks
    from gagpo.eval.runs import Run


def train(
    config: str | Path, *overrides: str, runs: str | Path = "runs", resume: bool = False, quiet: bool = False
) -> Run:
    """Train as ``gagpo train`` does, to the end, and write the report; returns the finished run.

    config: a settings file or the name of a shipped config; overrides: ``section.key=value``. With ``resume``,
    ``config`` is a run folder, and the overrides are of :data:`gagpo.runs.run_folder.CHANGEABLE`.

    Raises :class:`gagpo.GagpoError` for what the caller can mend, before anything is written.
    """
    from gagpo.eval.report.report import write_report
    from gagpo.eval.runs import load_run
    from gagpo.training import trainer

    where = Path(config) if resume else None
    with opened(None if resume else config, overrides, Path(runs), where, quiet=quiet) as (folder, ranks):
        if ranks is not None:
            trainer.train(folder, quiet=quiet, ranks=ranks)
    if ranks is not None and ranks.first:
        write_report(folder.path)
    return load_run(folder.path)


@contextmanager
def opened(
    config: str | Path | None,
    overrides: Sequence[str],
    runs: Path,
    resume: Path | None = None,
    auto: bool = False,
    quiet: bool = False,
    words: Sequence[str] = (),
) -> Iterator[tuple[RunFolder, Ranks | None]]:
    """The folder of a run, new or continued, and this process's place among those that train it.

    Where the settings ask for several processes and this is none of them, they are started, and have run to their end
    when the block begins: the ranks are None then. words: more options for their command line.
    """
    from gagpo.distributed import launch
    from gagpo.distributed.environment import started_as_rank

    if resume:
        ours = [override for override in overrides if override.startswith(("processes=", "ranks."))]
        settings = load(RunFolder.open(resume).path / "config.yaml", ours)
    else:
        settings = with_derived(load(config or "", overrides))

    def folder() -> RunFolder:
        return continued(resume, overrides) if resume else started(config or "", overrides, runs, auto)

    machine.require_machine(settings)
    for env in settings.all_environments:
        find_spec(env.environment.id)
    if launch.starts_ranks(settings.processes):
        from gagpo.collecting.distributed_rollout import require_fitting

        require_fitting(settings, settings.processes)
        found = folder()
        options = ["--runs", str(runs), *(["--auto"] if auto else []), *(["--quiet"] if quiet else []), *words]
        which = ["--resume", str(resume)] if resume else [str(config)]
        launch.run(settings.processes, ["train", *which, *overrides, *options])
        yield RunFolder.open(found.path), None
        return
    alone = None if started_as_rank() else folder()  # before torch is imported
    from gagpo.distributed.ranks import joined

    with joined(deadline=settings.ranks.deadline) as ranks:
        if alone is not None:
            yield alone, ranks
            return
        mine: RunFolder | None = None

        def made() -> str:
            nonlocal mine
            mine = folder()
            return str(mine.path)

        path = Path(ranks.of_first(made))  # the other ranks read what the first one wrote
        yield mine or (RunFolder.open(path) if resume else RunFolder(path, settings)), ranks


def started(config: str | Path, overrides: Sequence[str], runs: Path, auto: bool = False) -> RunFolder:
    """The folder of a new run, not yet on disk.

    auto: continue a run of that name and those settings that was interrupted; take the first free number if it is done.
    """
    settings = with_derived(load(config, overrides))
    require_space(runs, 1.0)
    require_model(settings)
    path = runs / settings.name
    return _opened_or_numbered(path, settings) if auto else RunFolder.new(path, settings)


def continued(path: Path, overrides: Sequence[str] = ()) -> RunFolder:
    """The folder of a run to resume; ``overrides`` may extend it (``training.iterations=40``)."""
    folder = RunFolder.open(path)
    if overrides:
        with folder.locked():
            folder.change(overrides)
    return folder


def require_model(settings: RunSettings) -> None:
    """Say at once, before anything is imported, that the model is not there, or SFT has yet to make it."""
    made = settings.sft is not None and not settings.model.startswith("starter:")
    if made and not Path(settings.model).exists():
        raise SettingsError(f"there is no model folder {settings.model}; make it with `gagpo sft CONFIG`")
    machine.require_model(settings.model)


def _opened_or_numbered(path: Path, settings: RunSettings) -> RunFolder:
    number, place = 1, path
    while (place / "config.yaml").exists():  # one of another kind, or done: look at the next number
        folder = RunFolder.open(place)
        if folder.settings == settings and not folder.finished:
            return folder
        number += 1
        place = path.with_name(f"{path.name}-{number}")
    return RunFolder.new(place, settings)
