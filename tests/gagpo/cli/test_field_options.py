"""Options of a command generated from the fields of a request."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from pydantic import Field
from typer.testing import CliRunner

from gagpo.base.options import Flag, Options
from gagpo.cli.field_options import field_options, request_values, with_field_options
from gagpo.eval.request import EvaluationRequest


@dataclass
class Server:
    name: str = "no option"
    limit: Annotated[float, Flag("--max-cost"), Field(description="Stop at this cost.", ge=0)] = 5.0


class Request(Options):
    model: Annotated[str, Flag()] = Field(description="The model.")
    tasks: Annotated[int | None, Flag()] = Field(None, ge=1, description="Number of tasks.")
    kwargs: Annotated[Mapping[str, object] | None, Flag("--kwargs", "-k")] = Field(None, description="Arguments.")
    quiet: Annotated[bool, Flag("--quiet", "-q")] = Field(False, description="No bars.")
    server: Annotated[Server | None, Flag(panel="A server")] = Field(None, description="no option itself")
    hidden: int = 3


def run(*words):
    """The fields and the command's own option of a command line, or the text of its error."""
    app, received = typer.Typer(), []

    @app.command()
    @with_field_options(Request)
    def command(*, out: str = "", **options: object) -> None:
        received.append((request_values(Request, options), out))

    result = CliRunner().invoke(app, words)
    return received[0] if received else result.output


def test_an_option_that_was_typed_is_the_value_of_its_field():
    assert run("m") == ({"model": "m", "quiet": False}, "")
    tokens = ("m", "--tasks", "3", "-k", "a=1", "-k", "b=[x]", "-q", "--max-cost", "2", "--out", "f")
    fields = {"model": "m", "tasks": 3, "kwargs": {"a": 1, "b": ["x"]}, "quiet": True, "server": {"limit": 2.0}}
    assert run(*tokens) == (fields, "f")


@pytest.mark.parametrize("words", [("m", "--tasks", "0"), ("m", "--max-cost", "-1"), ("m", "--hidden", "1"), ()])
def test_ranges_types_and_required_fields_hold_on_the_command_line(words):
    assert isinstance(run(*words), str)


def test_help_text_and_title_come_from_the_fields():
    help_text = " ".join(run("--help").split())
    assert "Number of tasks." in help_text and "Stop at this cost." in help_text and "A server" in help_text


def test_a_name_that_is_used_twice_is_an_error():
    with pytest.raises(ValueError, match="tasks"):

        @with_field_options(Request)
        def command(*, tasks: int = 1, **options: object) -> None: ...


def test_every_option_of_the_evaluation_has_a_help_text():
    options = field_options(EvaluationRequest)
    assert len(options) > 25
    for option in options:
        (info,) = [segment for segment in option.parameter.annotation.__metadata__ if hasattr(segment, "help")]
        assert info.help and info.help.endswith((".", "...")), option.path
    assert [option.flag for option in options if option.parameter.default is inspect.Parameter.empty] == ["--model"]
