"""Commands that pages print: they exist, with the options they are given; and the reader of pages itself."""

import pytest
import typer.main

from gagpo.cli.main import app
from gagpo.settings import load
from tests.commands.pages import MARKS, PLACEHOLDER, ROOT, Block, blocks, gagpo_commands, pages
from tests.commands.run import run_page, told
from tests.folders import complete

COMMAND = typer.main.get_command(app)
PAGES = pages()
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def refused(words):
    """Why the command line would not take these words; None where it would."""
    command, name = COMMAND, "gagpo"
    while hasattr(command, "commands") and words:  # a group of them
        if words[0] in ("--help", "COMMAND"):
            return None
        name, *words = words
        command = command.commands.get(name)
        if command is None:
            return f"no command {name}"
    if "--help" in words:
        return None
    context = command.make_context(name, [], resilient_parsing=True)
    context.resilient_parsing = False
    try:
        command.make_parser(context).parse_args(list(words))
    except Exception as error:  # typer has a click of its own, whose errors have no public name
        # A sentence may name an option without the value that it takes.
        return None if "requires an argument" in str(error) else str(error)
    return None


def test_what_does_not_exist_is_found():
    assert refused(["train", "x", "a.b=1"]) is None and refused(["check", "x", "--episodes", "4"]) is None
    assert "no command" in refused(["tarin", "x"]) and "--trys" in refused(["eval", "x", "--trys", "4"])


@complete
@every_page
def test_every_command_and_option_that_a_page_prints_exists(page):
    assert {
        " ".join(gagpo_command): why for gagpo_command in gagpo_commands(page) if (why := refused(gagpo_command))
    } == {}


@every_page
def test_what_a_page_shows_can_be_typed_or_says_why_not(page):
    for block in blocks(page):
        assert set(block.marks) <= set(MARKS), f"{block.name}: {block.marks}"
        assert all(block.marks.values()), f"{block.name}: a mark without a reason"
        if "skip" not in block.marks and not block.file:
            match = PLACEHOLDER.search("\n".join(block.lines()))
            assert match is None, f"{block.name} prints {match[0]!r}: mark it, or make it ```text"


@every_page
def test_the_settings_that_a_page_prints_are_settings(page, tmp_path):
    for block in blocks(page):
        if block.file.endswith(".yaml") and "skip" not in block.marks:
            (tmp_path / block.file).write_text(block.text)
            assert load(tmp_path / block.file)


def test_blocks_are_read_with_their_marks(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.commands.pages.ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(
        "# A\n\n```\ngagpo/  a room\n```\n\n```yaml\n# a.yaml\nname: a\n```\n\n"
        "<!-- run: train + training.iterations=2; train b + seed=1; eval x + --tasks 6 -->\n<!-- stop: 3 -->\n\n"
        "```sh\nA=1 gagpo train a.yaml \\\n    b=2   # why\n# nothing\ngagpo eval x '#1' && gagpo play x\n```\n"
    )
    file, block = blocks(page)
    assert (file.file, file.line) == ("a.yaml", 7)
    assert block.lines() == ["A=1 gagpo train a.yaml b=2", "gagpo eval x '#1' && gagpo play x"]
    assert block.script().splitlines() == [
        "A=1 gagpo train a.yaml b=2 training.iterations=2",
        "timeout -s INT -k 20 3 gagpo eval x '#1' && gagpo play x --tasks 6 || [ $? -eq 124 ]",
    ]
    assert next(gagpo_commands(page)) == ["train", "a.yaml", "b=2"]


def test_a_page_is_run_in_order_and_what_fails_is_told(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("tests.commands.pages.ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(
        "```python\n# a.py\nprint(5)\n```\n\n```\nexport B=7\npython a.py > out.txt\n```\n\n"
        "<!-- skip: no such machine -->\n```\npython -c 'raise SystemExit(9)'\n```\n\n"
        '```\npython -c \'import os; open("b.txt", "w").write(os.environ["B"])\'\n```\n\n'
        "<!-- status: 3 -->\n```\npython -c 'raise SystemExit(3)'\n```\n\n"
        "```\npython -c 'print(8); raise SystemExit(1)' | cat\n```\n"
    )
    outcomes = list(run_page(page, tmp_path, None))
    assert [outcome.status for outcome in outcomes] == [0, None, 0, 3, 1]
    assert (tmp_path / "out.txt").read_text() == "5\n" and (tmp_path / "b.txt").read_text() == "7"
    assert told(outcomes) == 1
    printed = capsys.readouterr().out
    assert "no such machine" in printed and printed.count("FAILED") == 1 and "    8" in printed


def test_a_command_that_goes_on_is_stopped(tmp_path, monkeypatch):
    (tmp_path / "gagpo").write_text("#!/bin/sh\ntest $1 = play && sleep 60\nexit 4\n")
    (tmp_path / "gagpo").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr("tests.commands.pages.ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("<!-- stop: 1 -->\n```\ngagpo play\n```\n\n<!-- stop: 5 -->\n```\ngagpo fail\n```\n")
    assert [item.status for item in run_page(page, tmp_path, None)] == [0, 1]
    assert Block("a", 1, "gagpo x", marks={"stop": "1"}).name == "a:1"
    assert ROOT in PAGES[0].parents
