"""The help of every command names arguments in capitals and gives flags no type."""

import pytest

from gagpo.cli.examples import EXAMPLES


@pytest.mark.parametrize("command", ["", *EXAMPLES])
def test_a_flag_has_no_type_and_an_argument_no_braces(inside, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "100")
    shown = inside(*command.split(), "--help").stdout
    assert "--help" in shown and "bool>" not in shown
    assert "{" not in shown and "}" not in shown


@pytest.mark.parametrize("command", EXAMPLES)
def test_names_of_options_are_whole_at_80_columns(inside, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "80")
    shown = inside(*command.split(), "--help").stdout
    assert "--help" in shown and "…" not in shown and " range>" not in shown


def test_an_argument_is_called_in_usage_and_errors_as_in_the_list_of_arguments(inside):
    shown = inside("check", "--help").stdout
    assert "check [OPTIONS] ENV" in shown and "│ *    ENV " in shown
    assert "Missing argument 'ENV'" in inside("check").stderr
