"""The help of every command names arguments in capitals and gives flags no type."""

import pytest

from gagpo.cli.examples import EXAMPLES


@pytest.mark.parametrize("command", ["", *EXAMPLES])
def test_a_flag_has_no_type_and_an_argument_no_braces(inside, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "100")
    stdout = inside(*command.split(), "--help").stdout
    assert "--help" in stdout and "bool>" not in stdout
    assert "{" not in stdout and "}" not in stdout


@pytest.mark.parametrize("command", EXAMPLES)
def test_names_of_options_are_whole_at_80_columns(inside, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "80")
    stdout = inside(*command.split(), "--help").stdout
    assert "--help" in stdout and "…" not in stdout and " range>" not in stdout


def test_an_argument_is_called_in_usage_and_errors_as_in_the_list_of_arguments(inside):
    stdout = inside("check", "--help").stdout
    assert "check [OPTIONS] ENV" in stdout and "│ *    ENV " in stdout
    assert "Missing argument 'ENV'" in inside("check").stderr
