"""The path from the example to the loss stays short, and the page shows it as it is."""

import sys

import numpy as np
import pytest

from gagpo.agents.context import Context
from gagpo.agents.prompts import find_prompt
from gagpo.data import Turn
from tests.test_budgets import ROOT, tool

reading_path = tool("reading_path")


def test_the_page_lists_the_path_with_its_lines():
    page = reading_path.PAGE.read_text(encoding="utf-8")
    assert page == reading_path.with_table(page), "run python .ci/reading_path.py"
    assert page.count("<!-- path -->\n| |") == 1


def test_the_path_is_read_in_one_sitting():
    lines = [len((ROOT / file).read_text(encoding="utf-8").splitlines()) for file in reading_path.PATH]
    assert len(lines) <= 12 and sum(lines) <= 2_200


def test_a_turn_enters_few_functions_and_no_file_more_than_twice():
    stops = reading_path.walk()
    files = reading_path.visits(stops)
    assert stops[0] == ("agents/agent.py", "LanguageAgent.decide")
    assert stops[-1] == ("gagpo/objectives/policy.py", "policy_loss")
    assert len(stops) <= 20
    assert {file for file in files if files.count(file) > 2} == set()


def test_only_calls_between_files_of_the_path_are_stops(monkeypatch):
    """Not those within a file, nor what a file off the path calls back."""
    here = "tests/test_reading_path.py"
    monkeypatch.setattr(reading_path, "PATH", {here: "", "gagpo/data/turn.py": ""})
    stops = []
    with reading_path.entered(stops):
        entering()
    assert stops == [(here, "entering"), ("gagpo/data/turn.py", "Turn.of")]


def entering():
    np.vectorize(within, otypes=[str])(["left"])
    Turn.of("left", within("left"))


def within(value):
    return value


@pytest.mark.parametrize("history", ["full", 2])
@pytest.mark.parametrize("turns", [0, 1])
def test_asking_enters_at_most_eight_functions_of_agents(tiny, history, turns):
    """All of them count, on the path and beside it, except inside the sandbox of templates."""
    context = Context(tiny[1], find_prompt("plain"), history=history)
    first = Turn("You stand at 3.", "left", "left", prompt_ids=context.prompt([], "You stand at 3."))
    functions = set()
    sandboxed = "template_sandbox.py"

    def note(frame, event, _):
        file = frame.f_code.co_filename
        if event == "call" and "agents" in file and not file.endswith(sandboxed) and "<" not in frame.f_code.co_name:
            functions.add((file, frame.f_code.co_qualname))

    sys.setprofile(note)
    try:
        context.ask([first] * turns, "You stand at 2.", {})
    finally:
        sys.setprofile(None)
    assert 6 <= len(functions) <= 8, functions
