"""What all commands share: names in their help, output without escapes, and the line after Ctrl-C."""

from __future__ import annotations

import os
import shlex
import sys
from typing import TYPE_CHECKING, Any

from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from gagpo.base.terminal import cleaned
from gagpo.cli.options import say

if TYPE_CHECKING:
    from typer._click.core import Context, Parameter


class ContinuedCommand(TyperCommand):
    """A command whose help names an argument ENV and gives a flag no type, and that says how to continue it."""

    def invoke(self, ctx: Context) -> Any:
        try:
            with cleaned():
                return super().invoke(ctx)
        except KeyboardInterrupt as error:
            from gagpo.base.errors import Interrupted

            if not isinstance(error, Interrupted) and speaks():
                say(f"interrupted; continue with: {shlex.join(['gagpo', *sys.argv[1:]])}")
            raise

    def get_params(self, ctx: Context) -> list[Parameter]:
        return _named(ctx, super().get_params(ctx))

    def collect_usage_pieces(self, ctx: Context) -> list[str]:
        return [option.replace("{", "").replace("}", "") for option in super().collect_usage_pieces(ctx)]


class Program(TyperGroup):
    """The same for the program itself."""

    def get_params(self, ctx: Context) -> list[Parameter]:
        return _named(ctx, super().get_params(ctx))


def speaks() -> bool:
    """Whether this process speaks for its command: alone, or as the first rank. A child leaves that to its parent."""
    from gagpo.base.rank import RANK
    from gagpo.distributed.environment import PARENT

    rank = os.environ.get(RANK)
    return PARENT not in os.environ if rank is None else rank == "0"


def _named(ctx: Context, parameters: list[Parameter]) -> list[Parameter]:
    for parameter in parameters:
        if isinstance(parameter, TyperOption) and parameter.is_flag:
            parameter.metavar = ""
        elif isinstance(parameter, TyperOption) and parameter.metavar is None:
            # With ranges the names of options are cut at 80 columns. The type checks them, and its error names them.
            parameter.metavar = (parameter.display_type(ctx) or "").replace(" range", "")
            if parameter.max is None and parameter.min in (0, 1):
                parameter.min = None  # of the help alone
        elif isinstance(parameter, TyperArgument) and parameter.metavar is None:
            parameter.metavar = parameter.name.upper()
    return parameters
