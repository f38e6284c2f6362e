"""A group with branches in a real browser."""

import pytest

from gagpo.eval.viewer.export import export
from tests.eval.viewer.test_pages import Pages

pytestmark = pytest.mark.browser


def test_a_branch_says_where_it_comes_from_and_its_shared_turns_stand_once(tmp_path, make_branches, browser):
    pages = Pages(browser, export([make_branches(tmp_path / "run")], tmp_path / "out").as_uri())
    pages.go("#/group/0/train-0001/0")
    heads = pages.js("return [...document.querySelectorAll('.matrix thead th')].map((one) => one.innerText)")
    assert "from try 1, turn 3" in heads[3] and "from try 3, turn 5" in heads[4] and "from" not in heads[1]
    assert pages.js("return document.querySelectorAll('.matrix small.shared').length") == 6
    drawn = pages.js("return document.querySelector('svg.graph').textContent")
    assert "1 fork" in drawn and "1 try branching here" in drawn
    edges = pages.js(
        "return viewer.stateGraph(arguments[0]).edges.map((e) => [...e.actions.values()].reduce((a, b) => a + b, 0))",
        [
            {"sample": 0, "success": False, "turns": [{"action": "go"}, {"action": "left"}], "states": [0, 1]},
            {
                "sample": 1,
                "success": True,
                "turns": [{"action": "go"}, {"action": "right"}],
                "states": [0, 1],
                "parent": 0,
                "fork": 1,
            },
            {"sample": 2, "success": False, "turns": [{"action": "stop"}], "states": [0]},
        ],
    )
    assert edges == [1, 1, 1, 1]  # each action was done once, whatever tries share it
    pages.go("#/episode/0/train-0001/0/2")
    assert "branches from try 1, turn 3; 2 turns before it are shared" in pages.text
    assert pages.errors() == []
