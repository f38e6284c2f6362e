"""Every command's help ends with two examples, and each of them is a command that can be given."""

import shlex

import pytest
import typer

from gagpo.cli.examples import EXAMPLES
from gagpo.cli.main import app

COMMAND = typer.main.get_command(app)


def commands(group, above=()):
    for name, command in group.commands.items():
        yield (*above, name), command
        if hasattr(command, "commands"):
            yield from commands(command, (*above, name))


def test_every_command_has_two_examples_in_its_help():
    results = {" ".join(path): command for path, command in commands(COMMAND)}
    assert results.keys() == EXAMPLES.keys()
    for name, command in results.items():
        assert all(example in command.epilog for example in EXAMPLES[name]), name
        assert len(set(EXAMPLES[name])) == 2


@pytest.mark.parametrize("example", sorted({example for pair in EXAMPLES.values() for example in pair}))
def test_an_example_can_be_given(example):
    program, *tokens = shlex.split(example.partition(" > ")[0])
    assert program == "gagpo"
    command, context = COMMAND, None
    while hasattr(command, "commands") and tokens:
        name, *tokens = tokens
        command = command.commands[name]
        if tokens and not hasattr(command, "commands"):
            context = command.make_context(name, list(tokens), parent=context)
    assert command is not COMMAND
