"""The commands ``train``, ``sft`` and ``export``."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from shlex import quote
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import Field

from gagpo.base.options import Flag, Options
from gagpo.cli.field_options import request_values, with_field_options
from gagpo.cli.missing_model import make_missing_model
from gagpo.cli.options import Json, Kwargs, Quiet, TrustRemoteCode, print_json, say, values

if TYPE_CHECKING:
    from gagpo.distributed.ranks import Ranks
    from gagpo.eval.results import EvalResult
    from gagpo.interop.hub import Repository
    from gagpo.runs.run_folder import RunFolder
    from gagpo.training.events import Event, Report


def add_to(app: typer.Typer) -> None:
    """Add the commands of this file to ``app``."""
    app.command()(train)
    app.command()(sft)
    app.command()(export)


class TrainRequest(Options):
    """What ``gagpo train`` starts. Fields are its options, their descriptions its help."""

    resume: Annotated[Path | None, Flag()] = Field(None, description="Continue the run in this folder.")
    runs: Annotated[Path, Flag()] = Field(Path("runs"), description="Folder for runs.")
    auto: Annotated[bool, Flag()] = Field(
        False, description="Continue an interrupted run of this name; start a numbered one if it is finished."
    )
    jobs: Annotated[int | None, Flag()] = Field(
        None, ge=1, description="Maximum number of runs at once in a sweep; by default as cores and memory allow."
    )
    dry_run: Annotated[bool, Flag("--dry-run")] = Field(False, description="Print the runs, and start none.")

    def require_consistent(self, config: str | None, swept: bool) -> None:
        """Raise SettingsError for options that exclude each other. swept: whether an override has several values."""
        from gagpo.settings import SettingsError

        if self.resume is not None and config is not None:
            raise SettingsError("give a settings file to start a run, or --resume RUN to continue one (not both)")
        if self.resume is None and config is None:
            raise SettingsError("name a settings file or a shipped config (`gagpo list` shows them), or --resume RUN")
        if self.resume is not None and (swept or self.dry_run):
            feature = "--dry-run" if self.dry_run else "several values for an override"
            raise SettingsError(
                f"--resume continues one run and takes no {feature}", advice="a sweep is resumed by its own command"
            )
        if self.jobs is not None and not swept:
            raise SettingsError(
                "--jobs is for a sweep", key="--jobs", advice="list several values in an override, such as seed=1,2,3"
            )


@with_field_options(TrainRequest)
def train(
    *,
    config: Annotated[str | None, typer.Argument(help="A settings file (YAML), or the name of a shipped one.")] = None,
    overrides: Annotated[
        list[str] | None, typer.Argument(help="section.key=value ...; several values make a sweep: seed=1,2,3")
    ] = None,
    kwargs: Kwargs = None,
    quiet: Quiet = False,
    as_json: Json = False,
    **options: object,
) -> None:
    """Train an agent, continue or extend a run, or run a sweep.

    A sweep trains all combinations of several values (seed=1,2,3) and compares the runs; the same command resumes it.
    """
    from gagpo.cli import sweep
    from gagpo.sweeps.grid import is_sweep

    request = TrainRequest(**request_values(TrainRequest, options))
    values(kwargs)  # checks the form name=value
    changes = [*(overrides or []), *(f"environment.kwargs.{pair}" for pair in kwargs or [])]
    if request.resume is not None and config is not None and "=" in config:
        changes = [config, *changes]
        config = None
    swept = is_sweep(changes)
    request.require_consistent(config, swept)
    if config is not None and request.dry_run:
        sweep.list_runs(config, changes, request.runs, as_json)
    elif config is not None and swept:
        sweep.train_sweep(config, changes, request, quiet, as_json)
    else:
        _train_run(request, config, changes, quiet, as_json)


def _train_run(request: TrainRequest, config: str | None, changes: list[str], quiet: bool, as_json: bool) -> None:
    """Train one run, or continue it."""
    from gagpo.training import launch
    from gagpo.training.events import EvaluationFinished, IterationFinished

    if config is not None:
        make_missing_model(config, changes, quiet)
    opened = launch.open_run(config, changes, request.runs, request.resume, request.auto, quiet, as_json)
    with opened as (folder, ranks):
        if ranks is None:  # child processes have trained
            return
        start = time.monotonic()
        first = 0.0
        continued = (folder.path / "metrics.jsonl").exists()
        if request.resume is not None and folder.finished:
            _require_checkpoint(folder)
            if ranks.first:
                say(_extended(folder))

        def report(event: Event) -> None:
            nonlocal first
            if isinstance(event, EvaluationFinished | IterationFinished):
                first = first or time.monotonic() - start
            say(str(event))

        results = _train(folder, ranks, report, quiet)
    if not ranks.first:
        return
    _conclude(folder.path, results)
    seconds = time.monotonic() - start
    say(_times(first, seconds, continued))
    if as_json:
        print_json({split: result.summary() for split, result in results.items()})


def _require_checkpoint(folder: RunFolder) -> None:
    """Raise SettingsError if a finished run has no checkpoint left: it would be trained again and overwritten."""
    from gagpo.runs.checkpoint import latest
    from gagpo.settings import SettingsError

    if latest(folder.path / "checkpoints") is None:
        raise SettingsError(
            "is finished, and its checkpoints are gone, so there is nothing to continue from",
            where=folder.path,
            advice="train again under another name: gagpo train CONFIG name=NAME",
        )


def _extended(folder: RunFolder) -> str:
    """How to extend a finished run."""
    done = folder.settings.training.iterations
    return (
        f"{folder.path} is finished: all {done} iterations are done. "
        f"To extend it: gagpo train --resume {quote(str(folder.path))} training.iterations={2 * max(done, 1)}"
    )


def _conclude(run: Path, results: Mapping[str, EvalResult]) -> None:
    """Write the report of a finished run and print the comparison."""
    from gagpo.base.errors import Interrupted
    from gagpo.eval.report.report import write_report

    try:
        page = write_report(run)
    except KeyboardInterrupt:
        say(f"interrupted; training is finished, write the report with: gagpo report {quote(str(run))}")
        raise Interrupted from None
    for split in results:
        if (run / "evals" / f"before-{split}.json").exists():
            say(_compared(run, split))
    say(f"curves: {run / 'curves.png'}\nreport: {page}\nnext: gagpo view {quote(str(run))}")


def _times(first: float, whole: float, continued: bool) -> str:
    """How long it took, in seconds from the start of this command, to the first event and to the report.

    continued: whether an earlier command began the run, whose time is not part of these.
    """
    if continued:
        return f"report {clock_time(whole)} after the run was resumed (minutes:seconds)"
    return f"first point of the curve after {clock_time(first)}, report after {clock_time(whole)} (minutes:seconds)"


def clock_time(seconds: float) -> str:
    """Minutes and seconds, as 4:05."""
    minutes, remaining = divmod(round(seconds), 60)
    return f"{minutes}:{remaining:02d}"


def _train(folder: RunFolder, ranks: Ranks, report: Report, quiet: bool) -> dict[str, EvalResult]:
    """Train to the end; only the first rank prints."""
    from gagpo.base.errors import Interrupted
    from gagpo.planning.fitting import choose_unsharded
    from gagpo.training import trainer

    chosen = choose_unsharded(folder, ranks)
    if ranks.first:
        if chosen:
            say(chosen)
        say(f"run folder: {folder.path}")
        if "tensorboard" in folder.settings.trackers:
            say(f"TensorBoard: tensorboard --logdir {quote(str(folder.path))}")
    try:
        return trainer.train(folder, report=report, quiet=quiet, ranks=ranks)
    except KeyboardInterrupt:
        if not (folder.path / "config.yaml").exists():
            raise
        if ranks.first:
            say(f"interrupted; continue with: gagpo train --resume {quote(str(folder.path))}")
        raise Interrupted from None


def _compared(run: Path, split: str) -> str:
    """The table of a run after training, and its averaged weights, against the model before."""
    from gagpo.base.tables import text_width
    from gagpo.eval.compare import compare_results
    from gagpo.eval.report.report import STAGES
    from gagpo.eval.results import EvalResult

    files = {stage: run / "evals" / f"{stage}-{split}.json" for stage in STAGES}
    comparison = compare_results({stage: EvalResult.load(path) for stage, path in files.items() if path.exists()})
    return "\n".join(comparison.lines(text_width()))


def sft(
    config: Annotated[str, typer.Argument(help="A settings file with a section sft, or a shipped config.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="section.key=value ...")] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace an existing model folder.")] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Train the model that a config names on demonstrations (supervised fine-tuning)."""
    from gagpo.model.starters import find, is_starter
    from gagpo.settings import SettingsError, load, machine

    settings = load(config, overrides or [])
    folder = Path(settings.model)
    if is_starter(settings.model):
        base = find(settings.model).base
        say(f"{settings.model} comes with the package" + (f", as an adapter on {base}" if base else ""))
        if as_json:
            print_json({"model": settings.model})
        return
    if settings.sft is None:
        raise SettingsError(f"run {settings.name!r} has no section 'sft'", key="sft")
    machine.require_machine(settings)
    from gagpo.settings.derived import recipe_difference
    from gagpo.sft.run import sft as make  # imports torch

    if (folder / "config.json").exists() and not overwrite:
        if difference := recipe_difference(settings):
            raise SettingsError(
                f"was made with other settings ({difference})",
                where=settings.model,
                advice=("replace it with --overwrite, or choose another folder with model=..."),
            )
        say(f"{settings.model} exists; replace it with --overwrite")
    else:
        import torch

        torch.set_num_threads(settings.threads or os.cpu_count() or 1)
        say(f"model folder: {make(settings, quiet, say)}")
    if as_json:
        print_json({"model": str(folder)})


def export(
    source: Annotated[str, typer.Argument(help="A run (RUN, RUN@ITERATION), or a file of episodes or a journal.")],
    out: Annotated[Path | None, typer.Argument(help="Folder to write; with --push not needed.")] = None,
    adapter: Annotated[bool, typer.Option("--adapter", help="Of a run: only the adapter, in peft's format.")] = False,
    licence: Annotated[
        str | None, typer.Option("--license", help="Licence in the model card; by default the base model's.")
    ] = None,
    push: Annotated[
        str | None, typer.Option(metavar="OWNER/NAME", help="Upload the model, or an exported folder, to the hub.")
    ] = None,
    private: Annotated[bool, typer.Option("--private", help="Create a private repository.")] = False,
    trust_remote_code: TrustRemoteCode = False,
    as_json: Json = False,
) -> None:
    """Write a run's model as a Hugging Face folder with a card, or successful episodes as conversations for SFT."""
    from gagpo.base.errors import InvalidArgument
    from gagpo.interop import hub
    from gagpo.interop.export import export as write
    from gagpo.training import export as models

    is_folder = hub.is_exported(Path(source))
    if push is None and (out is None or private):
        raise InvalidArgument(
            "--private is for --push" if private else "name the folder to write, or --push OWNER/NAME", key="--private"
        )
    if push is not None and not models.names_a_run(source):
        raise InvalidArgument(f"--push is for a run or an exported model (got {source!r:.80})", key="--push")
    if not models.names_a_run(source):
        assert out is not None
        count = write(Path(source), out, trust_remote_code)
        say(f"{count} episodes: {out}")
        if as_json:
            print_json({"episodes": count, "path": str(out)})
        return
    repository = None if push is None else hub.open_repository(push, private)
    with ExitStack() as stack:
        folder = Path(source)
        if not (is_folder and repository):
            target = out or Path(stack.enter_context(TemporaryDirectory(prefix="gagpo-export-"))) / "model"
            folder = models.export(source, target, adapter, trust_remote_code, licence)
        if out is not None:
            say(f"{'adapter' if adapter else 'model'} folder: {folder}")
        address = None if repository is None else _pushed(folder, repository, out)
    if as_json:
        print_json({"folder": None if out is None else str(out), "url": address})


def _pushed(folder: Path, repository: Repository, out: Path | None) -> str:
    """Upload the folder, and say where it is; an error names the command that tries again."""
    from gagpo.interop import hub

    try:
        address = hub.push(folder, repository)
    except hub.PushError as error:
        again = "" if out is None else f"; to try again: gagpo export {quote(str(out))} --push {repository.name}"
        raise hub.PushError(f"{error}{again}") from None
    if ignored := hub.model_files(folder)[1]:
        say(f"not uploaded, as no file of a model: {', '.join(ignored)}")
    say(f"uploaded: {address}")
    return address
