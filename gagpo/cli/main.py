"""The command line: train, evaluate, compare, and look after environments."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from gagpo.cli.options import Json, Kwargs, Quiet, say, values
from gagpo.envs.errors import InvalidArgument

app = typer.Typer(
    name="gagpo",
    help="Train language-model agents that act over many turns, evaluate them, and add environments.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.command()
def train(
    config: Annotated[Path | None, typer.Argument(help="Settings of the run (YAML).")] = None,
    overrides: Annotated[list[str] | None, typer.Argument(help="section.key=value ...")] = None,
    resume: Annotated[Path | None, typer.Option(help="Continue the run in this folder instead.")] = None,
    runs: Annotated[Path, typer.Option(help="Where run folders are made.")] = Path("runs"),
    auto: Annotated[
        bool, typer.Option(help="Continue a run of this name that was interrupted; number the next if it is done.")
    ] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Train an agent, or continue a run that was interrupted."""
    from gagpo.eval.report.report import write_report
    from gagpo.settings import SettingsError, load
    from gagpo.training import trainer
    from gagpo.training.run_folder import RunFolder, require_space

    if (config is None) == (resume is None):
        raise SettingsError("give a settings file to start a run, or --resume RUN to continue one (not both)")
    if resume is not None:
        folder = RunFolder.open(resume)
        if overrides:
            raise SettingsError("a resumed run keeps its settings; overrides belong to a new run")
    else:
        assert config is not None
        settings = load(config, overrides or [])
        require_space(runs, 1.0)
        _check_model(settings)
        path = runs / settings.name
        folder = _open_or_number(path, settings) if auto else RunFolder.create(path, settings)
    say(f"run folder: {folder.path}")
    try:
        results = trainer.train(folder, report=lambda metrics: say(trainer.describe(metrics)), quiet=quiet)
    except KeyboardInterrupt:
        say(f"interrupted; continue with: gagpo train --resume {folder.path}")
        raise
    page = write_report(folder.path)
    for split in results if folder.settings.evaluation.before else ():
        say(_before_after(folder.path, split))
    say(f"curves: {folder.path / 'curves.png'}\nreport: {page}")
    if as_json:
        print(json.dumps(trainer.as_record(results)))


@app.command("eval")
def evaluate(
    model: Annotated[str, typer.Argument(help="A run folder, a model folder, a hub name, `random` or `expert`.")],
    env: Annotated[str | None, typer.Option(help="Environment id; a run's own by default.")] = None,
    split: Annotated[str | None, typer.Option(help="Split to play.")] = None,
    kwargs: Kwargs = None,
    tasks: Annotated[int | None, typer.Option(help="Evenly spaced part of the split.")] = None,
    tries: Annotated[int, typer.Option(min=1, help="Episodes of each task.")] = 1,
    temperature: Annotated[float, typer.Option(min=0)] = 0.4,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Most tokens of a response.")] = None,
    style: Annotated[str | None, typer.Option(help="Prompt style: plain, tags, whole.")] = None,
    history: Annotated[str | None, typer.Option(help="full, or the number of turns a window shows.")] = None,
    workers: Annotated[int, typer.Option(min=0, help="Environment processes.")] = 2,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, ...")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the result to this file (JSON).")] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Measure the success rate on a fixed panel: every task exactly as often as asked."""
    from gagpo.eval.tables import result_lines
    from gagpo.measure import measure

    result = measure(
        model,
        environment=env,
        split=split,
        kwargs=values(kwargs),
        tasks=tasks,
        tries=tries,
        temperature=temperature,
        max_tokens=max_tokens,
        style=style,
        history=_history(history),
        workers=workers,
        device=device,
        quiet=quiet,
    )
    if out:
        result.save(out)
    say("\n".join(result_lines(result)))
    if as_json:
        print(json.dumps(result.summary()))


@app.command()
def compare(results: Annotated[list[Path], typer.Argument(help="Two or more files of `gagpo eval --out`.")]) -> None:
    """Compare evaluations on the same panel, task by task, with paired tests."""
    from gagpo.eval.compare import compare_files

    say("\n".join(compare_files(results).lines()))


@app.command()
def report(runs: Annotated[list[Path], typer.Argument(help="Run folders.")]) -> None:
    """Write curves.png and report.html of runs again."""
    from gagpo.eval.report.report import write_report

    for run in runs:
        say(str(write_report(run)))


@app.command("warm-start")
def warm_start(
    config: Annotated[Path, typer.Argument(help="Settings with a warm_start section (YAML).")],
    overrides: Annotated[list[str] | None, typer.Argument(help="section.key=value ...")] = None,
    again: Annotated[bool, typer.Option(help="Make it anew even if the folder exists.")] = False,
    quiet: Quiet = False,
) -> None:
    """Make the model folder a config names: a small model, trained on demonstrations."""
    from gagpo.settings import SettingsError, load
    from gagpo.training.warm_start import made_otherwise
    from gagpo.training.warm_start import warm_start as make

    settings = load(config, overrides or [])
    if (Path(settings.model) / "config.json").exists() and not again:
        if difference := made_otherwise(settings):
            raise SettingsError(
                f"{settings.model} was made with other settings ({difference}); --again makes it anew, or name another "
                "folder with model=..."
            )
        say(f"{settings.model} exists; --again makes it anew")
        return
    _threads(settings.threads)
    say(f"model folder: {make(settings, quiet)}")


def _check_model(settings: Any) -> None:
    """Say at once, before a run folder is made, what is missing of the model."""
    from gagpo.agents.model import ModelError, load_tokenizer

    if settings.warm_start is not None and not Path(settings.model).exists():
        raise ModelError(f"there is no model folder {settings.model}; make it with `gagpo warm-start CONFIG`")
    load_tokenizer(settings.model)


def _open_or_number(path: Path, settings: Any) -> Any:
    """The interrupted run at ``path`` if its settings are these, else a new one under the first free name."""
    from gagpo.training.run_folder import RunFolder

    number, place = 1, path
    while (place / "config.yaml").exists():
        folder = RunFolder.open(place)
        if folder.settings == settings and not folder.finished:
            return folder
        number += 1
        place = path.with_name(f"{path.name}-{number}")
    return RunFolder.create(place, settings)


def _before_after(run: Path, split: str) -> str:
    from gagpo.eval.compare import compare_results
    from gagpo.eval.results import EvalResult

    files = {stage: run / "evals" / f"{stage}-{split}.json" for stage in ("before", "after")}
    return "\n".join(compare_results({stage: EvalResult.load(path) for stage, path in files.items()}).lines())


def _history(text: str | None) -> str | int | None:
    if text is None or text == "full":
        return text
    if not text.isdecimal():
        raise InvalidArgument(f"--history is full or a number of turns, got {text!r}")
    return int(text)


def _threads(count: int) -> None:
    import torch

    torch.set_num_threads(count or os.cpu_count() or 1)


def main() -> None:
    """Entry point: errors of use are one line on standard error, never a traceback (GAGPO_DEBUG=1 shows it)."""
    for name in ("HF_HUB_DISABLE_TELEMETRY", "TRANSFORMERS_NO_ADVISORY_WARNINGS"):
        os.environ.setdefault(name, "1")
    # Threads that wait must sleep: spinning ones take the processor from the environments and from each other.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from transformers.utils import logging

    sys.path.insert(0, os.getcwd())  # environments of the user's own, as in module:Name-v0
    from gagpo.cli import tools

    logging.disable_progress_bar()
    logging.set_verbosity_error()

    tools.add_to(app)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that pools close their workers
    try:
        status = app(standalone_mode=False)  # typer returns the status of what it handled itself: help, Ctrl-C
        sys.exit(status if isinstance(status, int) else 0)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except Exception as error:
        _complain(error)


def _complain(error: Exception) -> None:
    from gagpo.envs.check.fresh_process import FreshProcessFailed

    if isinstance(error, typer.Abort):
        sys.exit(130)
    if hasattr(error, "exit_code"):  # of typer's own: wrong arguments, or an exit that was asked for
        if hasattr(error, "show"):
            error.show()
        sys.exit(error.exit_code)
    expected = (ValueError, OSError, KeyError, FloatingPointError, TimeoutError, ImportError, FreshProcessFailed)
    if os.environ.get("GAGPO_DEBUG") or not isinstance(error, expected):
        raise error
    Console(stderr=True, highlight=False).print(f"gagpo: {error}", markup=False, soft_wrap=True)
    sys.exit(2)


if __name__ == "__main__":
    main()
