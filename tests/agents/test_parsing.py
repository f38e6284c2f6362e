"""Responses are parsed into actions; invalid ones give None, never an exception."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gagpo.agents.parsing import MAX_ACTION, PARSERS, parse, write
from gagpo.agents.setup import make_context, make_env

CASES = [
    ("line", "go to desk 1", "go to desk 1"),
    ("line", "  go to desk 1 \n", "go to desk 1"),
    ("line", "", None),
    ("line", "two\nlines", None),
    ("line", "x" * (MAX_ACTION + 1), None),
    ("tag", "<action>look</action>", "look"),
    ("tag", "<think>or <action>go</action>?</think>\n<action> look </action>", "look"),
    ("tag", "<ACTION>look</ACTION>", "look"),
    ("tag", "<action>go <action>look</action>", "look"),
    ("tag", "<action></action>", None),
    ("tag", "<action>never closed", None),
    ("tag", "no tag", None),
    ("tag", "<action>two\nlines</action>", None),
    ("line", "<think>left?</think> right", "right"),
    ("line", "<think>left?", None),
    ("line", "left?</think>right<think>or left", "right"),
    ("tag", "<think>I could <action>look</action> but</think> no", None),
    ("tag", "<think>I could <action>look</action>", None),
    ("tag", "I could <action>look</action> but</think><action>go</action>", "go"),
    ("json", '{"action": "go"} or rather {"action": "look"}', "look"),
    ("json", '```json\n{"action": "look", "why": "{"}\n```', "look"),
    ("json", '<think>{"action": "go"}</think>{"act": "look"}', None),
    ("json", '{"action": 3} {"action": ', None),
    ("whole", "so\n42", "so\n42"),
    ("whole", " \n", None),
]


@pytest.mark.parametrize(("parser", "response", "action"), CASES)
def test_actions(parser, response, action):
    assert parse(response, parser) == action


SELECT = "answer: SELECT COUNT(*)\nFROM products"


@pytest.mark.parametrize(
    ("kind", "response"),
    [
        ("line", SELECT),
        ("line", f"<think>count</think>```sql\n{SELECT}\n```"),
        ("tag", f"<action>{SELECT}</action>"),
        ("tag", f"<action>\n```\n{SELECT}\n```\n</action>"),
        ("tag", "<action>answer: ```sql\nSELECT COUNT(*)\nFROM products```</action>"),
        ("json", json.dumps({"action": SELECT})),
    ],
)
def test_an_action_may_have_several_lines_where_the_environment_says_so(kind, response):
    assert parse(response, kind, multiline=True) == SELECT
    assert parse(response, kind) is None


def test_sql_takes_queries_of_several_lines(tiny):
    context = make_context(tiny[1], make_env("gagpo/SQL-v0", {"size": 2, "test_size": 2}), prompt="tags")
    assert context.turn(context.response(f"<action>{SELECT}</action>")).action == SELECT
    walk = make_context(tiny[1], make_env("gagpo.envs.testing:gagpo-test/Corridor-v0"), prompt="tags")
    assert walk.turn(walk.response("<action>left\nright</action>")).invalid == "not parsed"


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=300), st.sampled_from(sorted(PARSERS)))
def test_any_text_is_parsed_or_refused(response, parser):
    action = parse(response, parser)
    assert action is None or (action.strip() and action in response)


def test_hostile_repetition_is_read_in_linear_time():
    assert parse("<action>" * 50_000, "tag") is None
    assert parse("<think>a</think>b" * 100_000, "line") is None
    assert parse('{"action": ' * 50_000, "json") is None


@pytest.mark.parametrize("kind", ["line", "tag", "json", "whole"])
def test_what_is_written_is_read_back(kind):
    assert parse(write('go "north"', kind, "action"), kind) == 'go "north"'
