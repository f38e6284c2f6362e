"""Actions that name what they are done to."""

import pytest

from gagpo.envs.tools import CallError
from gagpo.envs.web.actions import Command
from gagpo.envs.web.naming import parse_named, write_named
from gagpo.envs.web.page import Line, WebPage


def page(*lines):
    """A page of (role, name, states) or (role, name, states, depth); all can be used."""
    numbered = [
        Line(number, depth[0] if depth else 0, role, name, None, states, 0)
        for number, (role, name, states, *depth) in enumerate(lines, 1)
    ]
    return WebPage("/", tuple(numbered), (), (False, False), "")


SHOP = page(
    ("input", "search", ()),
    ("button", "Buy Now", ()),
    ("button", "Buy Now", ()),
    ("select", "size", ()),
    ("option", "Large", (), 1),
    ("button", "7", ()),
    ("button", "[x]", ()),
    ("input", "", ()),
    ("button", "Large", ()),
    ("button", "Later", ("disabled",)),
    ("button", "Later", ()),
)


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("click[Buy Now]", Command("click", 2)),
        ("type[search] red shirt", Command("type", 1, "red shirt")),
        ("select[Large]", Command("select", 5)),
        ("click[Large]", Command("click", 9)),
        ("click[7]", Command("click", 7)),
        ("type[8] words", Command("type", 8, "words")),
        ("click[[x]]", Command("click", 7)),
        ("click[Later]", Command("click", 11)),
        ("press[Enter]", Command("press", text="Enter")),
        ("back", Command("back")),
    ],
)
def test_a_name_means_the_first_line_that_has_it_and_can_be_used(text, command):
    assert parse_named(text, SHOP) == command


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (Command("click", 2), "click[Buy Now]"),
        (Command("click", 3), "click[3]"),  # another one has the name, too
        (Command("type", 1, "red"), "type[search] red"),
        (Command("select", 5), "select[Large]"),
        (Command("click", 6), "click[6]"),  # it is called 7
        (Command("click", 7), "click[7]"),
        (Command("type", 8, "red"), "type[8] red"),
        (Command("click", 10), "click[10]"),
        (Command("scroll", text="down"), "scroll[down]"),
    ],
)
def test_what_is_written_leads_back_to_the_same_line(command, text):
    assert write_named(command, SHOP) == text
    assert parse_named(text, SHOP) == command


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(CallError, match=r"nothing to click here is called 'buy now'; nearest: 'Buy Now'"):
        parse_named("click[buy now]", SHOP)
    with pytest.raises(CallError, match="nothing to type here is called"):
        parse_named("type[Buy Now] words", SHOP)


@pytest.mark.parametrize("text", ["", "click[]", "click", "click[" + "x" * 500 + "]", "type[a\nb] c", "buy"])
def test_what_is_no_action_is_told(text):
    with pytest.raises(CallError, match="is not an action; write"):
        parse_named(text, SHOP)
