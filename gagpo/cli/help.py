"""Names in the help of commands: ENV for an argument, and no type for a flag."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

if TYPE_CHECKING:
    from typer._click.core import Context, Parameter


class Command(TyperCommand):
    """A command with plain names in its help."""

    def get_params(self, ctx: Context) -> list[Parameter]:
        return _named(super().get_params(ctx))

    def collect_usage_pieces(self, ctx: Context) -> list[str]:
        return [piece.replace("{", "").replace("}", "") for piece in super().collect_usage_pieces(ctx)]


class Program(TyperGroup):
    """The same for the program itself."""

    def get_params(self, ctx: Context) -> list[Parameter]:
        return _named(super().get_params(ctx))


def _named(parameters: list[Parameter]) -> list[Parameter]:
    for parameter in parameters:
        if isinstance(parameter, TyperOption) and parameter.is_flag:
            parameter.metavar = ""
        elif isinstance(parameter, TyperArgument) and parameter.metavar is None:
            parameter.metavar = parameter.name.upper()
    return parameters
