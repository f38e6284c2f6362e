"""Responses are parsed into actions; invalid ones give None, never an exception."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gagpo.agents.parsing import MAX_ACTION, PARSERS, parse

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
    ("whole", "so\n42", "so\n42"),
    ("whole", " \n", None),
]


@pytest.mark.parametrize(("parser", "response", "action"), CASES)
def test_actions(parser, response, action):
    assert parse(response, parser) == action


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=300), st.sampled_from(sorted(PARSERS)))
def test_any_text_is_parsed_or_refused(response, parser):
    action = parse(response, parser)
    assert action is None or (action.strip() and action in response)


def test_hostile_repetition_is_read_in_linear_time():
    assert parse("<action>" * 50_000, "tag") is None
