"""The entry point of the command line: its commands, and how errors are reported."""

from __future__ import annotations

import errno
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from gagpo.base import once
from gagpo.base.signals import NUMBERS, Signals
from gagpo.base.terminal import cleaned, fill_streams
from gagpo.cli import (
    chat,
    compare,
    environments,
    evaluate,
    examples,
    listing,
    models,
    planning,
    play,
    prompts,
    servers,
    train,
    view,
)
from gagpo.cli.command import ContinuedCommand, Program
from gagpo.cli.invocation import typed

READ_ONLY = (errno.EACCES, errno.EPERM, errno.EROFS)
REPORT = "\ngagpo: this is a bug in gagpo. CONTRIBUTING.md says where to report it; send the lines above."

app = typer.Typer(
    name="gagpo",
    help="Train language-model agents that act over many turns, evaluate them, and add environments.",
    cls=Program,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(requested: bool) -> None:
    if requested:
        import gagpo

        print(f"gagpo {gagpo.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Train language-model agents that act over many turns, evaluate them, and add environments."""


for commands in (train, evaluate, compare, view, environments, play, chat, planning, models, prompts, listing):
    commands.add_to(app)
examples.add_to(app)
for command in app.registered_commands:
    command.cls = ContinuedCommand


def main() -> None:
    """Run one command.

    An error that the user can correct (a :class:`gagpo.GagpoError` or an OSError) is one line on standard error, with
    status 2. Any other error is a bug: it prints a traceback and where to report it, with status 1.
    """
    fill_streams()
    for name in ("HF_HUB_DISABLE_TELEMETRY", "TRANSFORMERS_NO_ADVISORY_WARNINGS", "HF_HUB_DISABLE_PROGRESS_BARS"):
        os.environ.setdefault(name, "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    # Threads that wait must sleep: spinning threads take CPU time from the environments and from each other.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # A program that a shell starts in the background ignores Ctrl-C.
    numbers = [number for number in NUMBERS if signal.getsignal(number) is not signal.SIG_IGN]
    once.forget()
    once.show("gagpo.envs")
    try:
        with Signals().watching(numbers):
            status = app(standalone_mode=False)  # typer returns a status for help and Ctrl-C
        sys.exit(status if isinstance(status, int) else 0)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except Exception as error:
        with cleaned():
            status = _complain(error)
        sys.exit(status)


def _complain(error: Exception) -> int:
    """Print the error; return the exit status."""
    from gagpo.base.errors import GagpoError  # imports gymnasium, which `--help` does not need

    if isinstance(error, typer.Abort):
        return 130
    if hasattr(error, "exit_code"):  # typer's own: wrong arguments, or a requested exit
        if hasattr(error, "show"):
            from gagpo.base.options import in_words

            error.message = in_words(error.message)  # type: ignore[attr-defined]  # as click's errors have one
            error.show(file=sys.stderr)
            context = getattr(error, "ctx", None)
            _hint(getattr(error, "option_name", ""), context.command.params if context else ())
        return int(error.exit_code)
    if isinstance(error, GagpoError) and error.reported:  # by another process of the same run
        return int(getattr(error, "status", 2))
    if isinstance(error, GagpoError | OSError) and not os.environ.get("GAGPO_DEBUG"):
        print(typed(f"gagpo: {' '.join(str(error).split())}{_advice(error)}"), file=sys.stderr)
        return 2
    traceback.print_exception(error)
    if not isinstance(error, GagpoError | OSError):
        print(REPORT, file=sys.stderr)
    return 1


def _advice(error: Exception) -> str:
    """What to set when a folder cannot be written to."""
    if not isinstance(error, OSError) or error.errno not in READ_ONLY or error.filename is None:
        return ""
    from gagpo.base.folders import data_folder

    command = sys.argv[1:2]
    if command == ["sft"]:
        return "; set model=... and GAGPO_DATA to folders that you can write to"
    if Path(os.fsdecode(error.filename)).absolute().is_relative_to(data_folder().absolute()):
        return "; set GAGPO_DATA to a folder that you can write to"
    return "; choose a folder that you can write to with --runs" if command == ["train"] else ""


def _hint(option: str, parameters: Sequence[Any]) -> None:
    """Suggest a setting for an unknown ``option`` of a command that takes overrides, or the option's new name."""
    from gagpo.base.renamed import KEYS, OPTIONS

    if sys.argv[1:2] == ["serve"] and any(map(chat.ENVIRONMENT.fullmatch, sys.argv)):
        text = "; ".join(filter(None, ("gagpo: gagpo serve is for models, not environments", servers.advice("ENV"))))
        print(text, file=sys.stderr)
        return
    if option in OPTIONS:
        print(f"gagpo: {option} is renamed to {OPTIONS[option]}", file=sys.stderr)
        return
    if not option or not any(parameter.name == "overrides" for parameter in parameters):
        return
    from gagpo.settings import RunSettings
    from gagpo.settings.keys import nearest_key

    name, _, value = option.lstrip("-").replace("-", "_").partition("=")
    for word, after in zip(sys.argv, [*sys.argv[1:], ""], strict=True):  # written as --name=value or --name value
        if word.partition("=")[0] == option:
            value = word.partition("=")[2] or after
    new_keys = [new for old, new in KEYS.items() if name in (old, old.rpartition(".")[2])]
    if key := new_keys[0] if new_keys else nearest_key(RunSettings, name, cutoff=0.7):
        print(f"gagpo: settings are given without dashes: {key}={value or '...'}", file=sys.stderr)


if __name__ == "__main__":
    main()
