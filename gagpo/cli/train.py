"""The commands that make models: ``train`` and ``sft``."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gagpo.cli.options import Json, Kwargs, Quiet, print_json, say, values

if TYPE_CHECKING:
    from gagpo.distributed.ranks import Ranks
    from gagpo.eval.results import EvalResult
    from gagpo.runs.run_folder import RunFolder
    from gagpo.training.events import Event, Report


def add_to(app: typer.Typer) -> None:
    """Hang the commands of this file under ``app``."""
    app.command()(train)
    app.command()(sft)


def train(
    config: Annotated[str | None, typer.Argument(help="A settings file (YAML), or the name of a shipped one.")] = None,
    overrides: Annotated[list[str] | None, typer.Argument(help="section.key=value ...")] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Continue the run in this folder; overrides may extend it.")
    ] = None,
    runs: Annotated[Path, typer.Option(help="Where run folders are made.")] = Path("runs"),
    auto: Annotated[
        bool, typer.Option(help="Continue a run of this name that was interrupted; number the next if it is done.")
    ] = False,
    ray: Annotated[
        str | None, typer.Option(help="Train in the Ray cluster at this address; local: one on this machine.")
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Show the run as `gagpo view --follow` does.")] = False,
    kwargs: Kwargs = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Train an agent, continue a run that was interrupted, or extend one (--resume RUN training.iterations=40)."""
    from gagpo.settings import SettingsError
    from gagpo.training import launch

    values(kwargs)  # refuses what is no name=value
    changes = [*(overrides or []), *(f"environment.kwargs.{pair}" for pair in kwargs or [])]
    if resume is not None:
        if config is not None and "=" in config:
            changes, config = [config, *changes], None
        if config is not None:
            raise SettingsError("give a settings file to start a run, or --resume RUN to continue one (not both)")
    elif config is None:
        raise SettingsError("name a settings file or a shipped config (`gagpo configs` lists them), or --resume RUN")
    if ray is not None:
        resumed = launch.resume_run(resume, changes) if resume is not None else None
        _train_in_cluster(ray, resumed or launch.new_run(config or "", changes, runs, auto), as_json)
        return
    with launch.open_run(config, changes, runs, resume, auto, quiet, _words(watch, as_json)) as (folder, ranks):
        if ranks is None:  # the processes that the settings ask for have done it all
            return
        begun, first = time.monotonic(), 0.0
        if resume is not None and ranks.first and folder.finished:
            say(_extended(folder))

        def report(event: Event) -> None:
            nonlocal first
            first = first or time.monotonic() - begun
            if not watch:
                say(str(event))

        results = _train(folder, ranks, report, watch, quiet)
    if not ranks.first:
        return
    _conclude(folder.path, results)
    whole = time.monotonic() - begun
    say(f"first point of the curve after {clock_time(first)}, report after {clock_time(whole)} (minutes:seconds)")
    if as_json:
        print_json(_records(results))


def _extended(folder: RunFolder) -> str:
    """What a user who continues a finished run may have wanted."""
    done = folder.settings.training.iterations
    return (
        f"{folder.path} is finished: all {done} iterations are done. "
        f"To extend it: gagpo train --resume {folder.path} training.iterations={2 * max(done, 1)}"
    )


def _train_in_cluster(address: str, folder: RunFolder, as_json: bool) -> None:
    """As the rest of ``train``, with the trainer in a Ray cluster, whose words come here."""
    from gagpo.ray.driver import train_on

    say(f"run folder: {folder.path}")
    try:
        results = train_on(address, folder, say)
    except KeyboardInterrupt:
        if (folder.path / "config.yaml").exists():
            say(f"interrupted; continue with: gagpo train --ray {address} --resume {folder.path}")
        raise
    _conclude(folder.path, results)
    if as_json:
        print_json(_records(results))


def _records(results: Mapping[str, EvalResult]) -> dict[str, object]:
    """The final evaluations as JSON-ready values."""
    return {split: result.summary() for split, result in results.items()}


def _conclude(run: Path, results: Mapping[str, EvalResult]) -> None:
    """Write the report of a finished run, and say what came of it."""
    from gagpo.eval.report.report import write_report

    try:
        page = write_report(run)
    except KeyboardInterrupt:
        say(f"interrupted; the run is done, and its report is written by: gagpo report {run}")
        raise
    for split in results:
        if (run / "evals" / f"before-{split}.json").exists():
            say(_compared(run, split))
    say(f"curves: {run / 'curves.png'}\nreport: {page}")


def clock_time(seconds: float) -> str:
    """Minutes and seconds, as 4:05."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"


def _train(folder: RunFolder, ranks: Ranks, report: Report, watch: bool, quiet: bool) -> dict[str, EvalResult]:
    """Train to the end; what is said is said by the first rank."""
    from gagpo.cli.view import watched
    from gagpo.training import trainer

    watch = watch and ranks.first
    if ranks.first:
        say(f"run folder: {folder.path}")
    try:
        with watched(folder.path, watch):
            return trainer.train(folder, report=report, quiet=quiet or watch, ranks=ranks)
    except KeyboardInterrupt:
        if ranks.first and (folder.path / "config.yaml").exists():
            say(f"interrupted; continue with: gagpo train --resume {folder.path}")
        raise


def _words(watch: bool, as_json: bool) -> list[str]:
    """The options that are passed on to the ranks as they are."""
    return [word for word, given in (("--watch", watch), ("--json", as_json)) if given]


def _compared(run: Path, split: str) -> str:
    """What came of a run, and of the average of its weights, against the model that it began with."""
    from gagpo.base.tables import text_width
    from gagpo.eval.compare import compare_results
    from gagpo.eval.report.report import STAGES
    from gagpo.eval.results import EvalResult

    files = {stage: run / "evals" / f"{stage}-{split}.json" for stage in STAGES}
    compared = compare_results({stage: EvalResult.load(path) for stage, path in files.items() if path.exists()})
    return "\n".join(compared.lines(text_width()))


def sft(
    config: Annotated[str, typer.Argument(help="Settings with a section sft: a file, or a shipped config.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="section.key=value ...")] = None,
    again: Annotated[bool, typer.Option(help="Make it again even if the folder exists.")] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Train the model that a config names on demonstrations (supervised fine-tuning)."""
    from gagpo.agents.starters import is_starter
    from gagpo.settings import SettingsError, load, machine

    settings = load(config, overrides or [])
    folder = Path(settings.model)
    if is_starter(settings.model):
        say(f"{settings.model} comes with the package")
        if as_json:
            print_json({"model": settings.model})
        return
    if settings.sft is None:
        raise SettingsError(f"run {settings.name!r} has no section 'sft'")
    machine.require_machine(settings)
    from gagpo.settings.derived import recipe_difference
    from gagpo.sft.run import sft as make  # imports torch

    if (folder / "config.json").exists() and not again:
        if difference := recipe_difference(settings):
            raise SettingsError(
                f"{settings.model} was made with other settings ({difference}); --again replaces it, or name another "
                "folder with model=..."
            )
        say(f"{settings.model} exists; --again replaces it")
    else:
        _threads(settings.threads)
        say(f"model folder: {make(settings, quiet, say)}")
    if as_json:
        print_json({"model": str(folder)})


def _threads(count: int) -> None:
    import torch

    torch.set_num_threads(count or os.cpu_count() or 1)
