"""The tools that count sizes and write the settings reference."""

import subprocess
import sys
from pathlib import Path

import pytest
import typer
from pydantic import BaseModel

from gagpo.settings import RunSettings
from tests.ci_tools import tool

ROOT = Path(__file__).parents[1]


budgets, settings_page = tool("budgets"), tool("settings_page")


def test_lines_and_words_are_those_of_the_files(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "one.py").write_text("x = 1\n\ny = 2\n")
    (tmp_path / "a" / "two.py").write_text("z = 3")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    (tmp_path / "page.md").write_text("# Two words\n\n| a | 1.5 |\n|---|---|\n")
    (tmp_path / "a" / "link").symlink_to(tmp_path / "a" / "b")
    assert budgets.lines(budgets.python_files(["a"], tmp_path)) == 4
    assert budgets.words([tmp_path / "page.md"]) == 4
    assert budgets.bytes_below(tmp_path / "a") == 18


class Inner(BaseModel):
    a: int = 1
    b: int = 2


class Outer(BaseModel):
    algorithm: Inner = Inner()
    one: Inner | None = None
    rows: list[Inner] = []
    name: str = ""


def test_run_keys_are_the_leaves_and_the_algorithm_is_one():
    assert budgets.run_keys(Outer) == ["algorithm", "one.a", "one.b", "rows.a", "rows.b", "name"]
    keys = budgets.run_keys(RunSettings)
    assert {"algorithm", "engine.options", "rollout.tasks", "sft.model.num_layers", "environments.context"} <= set(keys)
    assert not {"rollout", "sft", "algorithm.credit", "engine.options.urls"} & set(keys)


def test_commands_are_those_that_can_be_typed():
    app, group = typer.Typer(), typer.Typer()
    app.command()(lambda: None)
    app.command("plain")(test_commands_are_those_that_can_be_typed)
    group.command("show_one")(test_commands_are_those_that_can_be_typed)
    app.add_typer(group, name="configs", invoke_without_command=True)
    assert {"plain", "configs", "configs show-one"} <= set(budgets.commands(app))


def test_the_minutes_are_those_of_the_children():
    assert budgets.child_minutes("9m0.000s 0m0.000s\n1m30.000s 0m30.000s\n") == 2.0


def test_a_limit_that_is_exceeded_is_marked():
    rows = [budgets.Budget("many", 3, 2), budgets.Budget("few", 1, 2), budgets.Budget("unknown", None, 2)]
    assert [line.endswith("exceeded") for line in budgets.table(rows).splitlines()[1:]] == [True, False, False]


def test_the_table_is_printed():
    command = [sys.executable, ROOT / ".ci" / "budgets.py", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0 and "run keys" in done.stdout, done.stdout + done.stderr


def test_a_limit_that_binds_fails_the_check_and_cpu_minutes_do_not(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["budgets.py", "--check"])
    for binding in (True, False):
        row = budgets.Budget("many", 3, 2, binding=binding)
        monkeypatch.setattr(budgets, "budgets", lambda times, row=row: [row])
        assert budgets.main() == int(binding)
        assert "exceeded" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("section", "name", "expected"),
    [
        ("", "device", "str"),
        ("rollout", "workers", "auto or int"),
        ("sft", "steps", "int or none, >= 1"),
        ("lora", "targets", "str or list of str"),
        ("optimizer", "betas", "2 x float"),
        ("environment", "kwargs", "mapping"),
    ],
)
def test_the_reference_names_types_in_words(section, name, expected):
    model = dict(settings_page.sections(RunSettings))[section]
    assert settings_page._type(model.model_fields[name]) == expected


def test_no_sentence_of_the_reference_is_cut_off():
    for line in settings_page.page().splitlines():
        assert not line.endswith((", |", ": |")), line
