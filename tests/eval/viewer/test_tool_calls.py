"""Tool calls on the page of an episode: what was asked, what was wrong with it, and what it was answered; programs."""

import json

from gagpo.eval.viewer.export import export
from tests.eval.viewer.test_pages import Pages


def test_a_tool_call_and_its_answer_can_be_read(tmp_path, make_groups, browser):
    run = make_groups(tmp_path / "run", iterations=1)
    path = run / "episodes" / "train-0001.jsonl"
    first, *remaining = (json.loads(line) for line in path.read_text().splitlines())
    call = '{"name": "search", "arguments": {"words": ["<b>mug", "red"], "most": 3}}'
    first["turns"][0] |= {"action": call, "calls": [{"action": call, "id": "call00000"}]}
    two = [
        {"action": "left", "answer": "A door <i>.</i>"},
        {"error": "Error: there is no tool 'fly'.", "answer": "No."},
    ]
    first["turns"][1] |= {"action": "left", "calls": two, "valid": False, "invalid": "not parsed"}
    remaining[0]["info"] = {"rewritten": 1, "unread": 0}
    remaining[0]["turns"][0]["action"] = f"I look.\n{call}"
    path.write_text("".join(json.dumps(item) + "\n" for item in (first, *remaining)))
    pages = Pages(browser, export([run], tmp_path / "out").as_uri())
    of_task = "return viewer.data.groups.task.findIndex((task, g) => viewer.data.tasks[task] === 'task 0' && "
    group = pages.js(of_task + "viewer.group(g).source.label === 'train-0001')")
    pages.go(pages.js("return viewer.episodeLink(arguments[0], 0)", group))
    cards = pages.js("return [...document.querySelectorAll('.turn-card')].map((one) => one.innerText)")
    assert 'call search(words: ["<b>mug","red"], most: 3)' in cards[0]
    assert all(
        tokens in cards[1] for tokens in ("call 1 of 2", "left", "A door <i>.</i>", "there is no tool 'fly'.", "No.")
    )
    assert "action wait" in cards[2]
    pages.go(pages.js("return viewer.episodeLink(arguments[0], 1)", group))
    assert "1 answer sent back altered" in pages.text and "program" in pages.text and "environment" not in pages.text
    assert 'action I look. search(words: ["<b>mug","red"], most: 3)' in pages.text
    pages.go(pages.js("return viewer.groupLink(arguments[0])", group))
    assert 'search(words: ["<b>mug","red"]' in pages.text and pages.errors() == []
