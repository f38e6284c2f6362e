"""Options and printing shared by the commands."""

from __future__ import annotations

import itertools
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gagpo.cli.invocation import typed

if TYPE_CHECKING:
    from gagpo.base.tables import Table

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bars.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")]
Config = Annotated[str, typer.Argument(help="A settings file, or the name of a shipped config.")]
Overrides = Annotated[list[str] | None, typer.Argument(help="section.key=value, as for train.")]
TrustRemoteCode = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run code that comes with the model or run; read it first.")
]
Kwargs = Annotated[
    list[str] | None, typer.Option("--kwargs", "-k", help="Environment argument, name=value (YAML); repeat for more.")
]


def values(pairs: list[str] | None) -> dict[str, object]:
    """``name=value`` pairs as a mapping; the values are YAML."""
    from gagpo.base.core_schema import NotYaml, parse_yaml
    from gagpo.base.errors import InvalidArgument

    arguments = {}
    for pair in pairs or []:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise InvalidArgument(f"an argument must be name=value, got {pair!r}", key="-k")
        try:
            arguments[name] = parse_yaml(text)
        except NotYaml as error:
            raise InvalidArgument(
                f"the value is not YAML ({error})", where=f"argument {pair!r:.80}", advice="quote it"
            ) from None
    return arguments


def say(*lines: str) -> None:
    """Print for people, with commands as they can be typed in this shell."""
    print(typed("\n".join(lines)), flush=True)


def first_comment(path: Path) -> str:
    """The first sentence of the comment at the top of a YAML file, '' without one."""
    lines = path.read_text(encoding="utf-8").splitlines()
    comment = [line.removeprefix("#").strip() for line in itertools.takewhile(lambda line: line.startswith("#"), lines)]
    text = " ".join(comment)
    sentence = re.match(r".+?\.(?=\s+[A-Z`])", text)  # not at the point of a number or of a file's name
    return sentence[0] if sentence else text


def print_json(record: object) -> None:
    """Print for programs: one line."""
    print(json.dumps(record, default=str), flush=True)


def print_table(table: Table) -> None:
    """Print a table, fitted to the terminal or 120 columns wide in a pipe."""
    from rich.console import Console

    from gagpo.base.terminal import is_terminal, raw

    Console(file=raw(sys.stdout), width=None if is_terminal(sys.stdout) else 120).print(table)
