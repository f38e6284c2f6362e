"""Calls are found in every format, and invalid ones get an error."""

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gagpo.agents.call_formats import FORMATS, find_format
from gagpo.agents.toolbox import MOST_CALLS, Toolbox
from gagpo.base.errors import InvalidArgument
from gagpo.data import Turn
from gagpo.envs.tools import ToolCall, read_call
from tests.agents.hostile_calls import TOOLS, hostile_response, sound_call
from tests.rejections import rejects

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=3), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
CALLS = st.builds(ToolCall, st.sampled_from(["act", "search"]), st.dictionaries(st.text("abc", min_size=1), PLAIN))


def told(form, response):
    return [read_call(text) for text in FORMATS[form].find(response)]


@pytest.mark.parametrize("form", FORMATS)
@settings(max_examples=50, deadline=None)
@given(calls=st.lists(CALLS, min_size=1, max_size=3))
def test_written_calls_are_read_back(form, calls):
    response = FORMATS[form].write(calls)
    results = told(form, f'<think>one {"{"} or "two</think>\n{response}')
    assert [(result.name, result.arguments) for result in results] == [
        (result.name, result.arguments) for result in calls
    ]


CASES = [
    ("hermes", 'I go.\n<tool_call>\n{"name": "act", "arguments": {"a": 1}}\n</tool_call>', [("act", {"a": 1})]),
    ("hermes", '<tool_call>{"name": "a"}</tool_call><tool_call>{"name": "b"}', [("a", {}), ("b", {})]),
    ("hermes", '<think><tool_call>{"name": "a"}</tool_call></think>no', []),
    ("hermes", '<think><tool_call>{"name": "a"}</tool_call>', []),
    ("hermes", '{"name": "act", "arguments": {}}', []),
    ("llama", '{"name": "act", "parameters": {"a": "}"}}', [("act", {"a": "}"})]),
    ("llama", '<|python_tag|>{"type": "function", "name": "act", "parameters": {}}', [("act", {})]),
    ("llama", '{"name": "a", "parameters": {}}; {"name": "b", "parameters": {}}', [("a", {}), ("b", {})]),
    ("llama", '[{"name": "a"}, {"name": "b"}]', [("a", {}), ("b", {})]),
    ("llama", 'I call {"name": "a"}', []),
    (
        "mistral",
        '[TOOL_CALLS] [{"name": "a", "arguments": {"x": "[ARG]"}, "id": "abcdefghi"}]',
        [("a", {"x": "[ARG]"})],
    ),
    ("mistral", '[TOOL_CALLS]a[ARGS]{"x": 1}[TOOL_CALLS]b[CALL_ID]123456789[ARGS]{}', [("a", {"x": 1}), ("b", {})]),
    ("mistral", '[{"name": "a"}]', []),
    (
        "hermes",
        '<tool_call>{"name": "w", "arguments": {"t": "a </tool_call> b"}}</tool_call>',
        [("w", {"t": "a </tool_call> b"})],
    ),
    (
        "hermes",
        '<tool_call>{"name": "w", "arguments": {"t": "<tool_call></think>"}}</tool_call>',
        [("w", {"t": "<tool_call></think>"})],
    ),
    ("hermes", '<tool_call>\n{"name": "a"}\n{"name": "b"}\n</tool_call>', [("a", {}), ("b", {})]),
    ("hermes", 'maybe <tool_call>{"name": "a"}</tool_call></think><tool_call>{"name": "b"}</tool_call>', [("b", {})]),
    ("hermes", 'I use <tool_call> here. </think><tool_call>{"name": "b"}</tool_call>', [("b", {})]),
    ("llama", '{"name": "w", "parameters": {"t": "<|python_tag|>"}}', [("w", {"t": "<|python_tag|>"})]),
    ("llama", '{"name": "a"} hm</think>\n{"name": "b", "parameters": {"t": "</think>"}}', [("b", {"t": "</think>"})]),
    ("mistral", '[TOOL_CALLS] [{"name": "w", "arguments": {"t": "[ARGS]"}}]', [("w", {"t": "[ARGS]"})]),
    ("mistral", '[TOOL_CALLS]w[ARGS]{"t": "[TOOL_CALLS] </think>"}', [("w", {"t": "[TOOL_CALLS] </think>"})]),
]


@pytest.mark.parametrize(("form", "response", "calls"), CASES)
def test_calls_of_each_format_are_found(form, response, calls):
    assert [(item.name, item.arguments) for item in told(form, response)] == calls


def test_a_call_keeps_the_id_that_its_format_gives_it():
    box = Toolbox((), FORMATS["mistral"])
    calls = box.read('[TOOL_CALLS] [{"name": "act", "arguments": {"command": "left"}, "id": "abcdefghi"}]')
    assert [(call.action, call.id) for call in calls] == [("left", "abcdefghi")]
    calls = box.read('[TOOL_CALLS]act[CALL_ID]123456789[ARGS]{"command": "left"}')
    assert calls[0].id == "123456789"


WRONG = {
    "go left": "There is no tool call in this",
    "<tool_call>{</tool_call>": "the call is no JSON: Expecting property name",
    "<tool_call>[1]</tool_call>": "a JSON object with a name and arguments, not a list",
    '<tool_call>{"name": 3}</tool_call>': "names no tool",
    '<tool_call>{"name": "fly"}</tool_call>': "there is no tool 'fly'; there is act",
    '<tool_call>{"name": "act"}</tool_call>': "argument 'command' of act: Field required",
    '<tool_call>{"name": "act", "arguments": "left"}</tool_call>': "are a JSON object, not a text",
    '<tool_call>{"name": "act", "arguments": {"command": 3}}</tool_call>': "argument 'command' of act: Input should be",
    '<tool_call>{"name": "act", "arguments": {"command": ""}}</tool_call>': "the command is empty",
    '<tool_call>{"name": "act", "arguments": {"command": "a", "to": 1}}</tool_call>': "Extra inputs are not permitted",
    '<tool_call>{"name": "act", "arguments": {"command": "a", "command": "b"}}</tool_call>': "stands twice",
    '<tool_call>{"name": "act", "arguments": {"command": NaN}}</tool_call>': "NaN is no number",
    '<tool_call>{"name": "act", "arguments": {"command": 1e999}}</tool_call>': "a number is too large",
    '<tool_call>{"name": "act", "arguments": {"command": 99999999999999999999999}}</tool_call>': "more than 64 bits",
    '<tool_call>{"name": "act", "arguments": {"command": "\\ud800"}}</tool_call>': "half of a surrogate pair",
    "<tool_call>" + "[" * 15_000 + "</tool_call>": "nested more than 32 deep",
    "<tool_call>" + "[" * 40 + "]" * 40 + "</tool_call>": "nested more than 32 deep",
    "<tool_call>" + " " * 2_000_000 + "</tool_call>": "at most 20,000 characters",
    "<tool_call>{}</tool_call>" * (MOST_CALLS + 1): "More than 16 tool calls",
    "<tool_call>" * 1_000_000: "More than 16 tool calls",
}


@pytest.mark.parametrize("response", WRONG, ids=range(len(WRONG)))
def test_errors_name_what_is_wrong_with_a_call(response):
    calls = Toolbox((), FORMATS["hermes"]).read(response)
    assert [call.action for call in calls] == [""] and WRONG[response] in calls[0].error
    assert len(calls[0].error) < 500
    turn = Turn.of_calls(response, calls)
    assert turn.invalid == "not parsed" and turn.action == "" and turn.pending_action == ""


def test_each_call_is_judged_by_itself():
    response = FORMATS["llama"].write(
        [ToolCall("act", {"command": "left"}), ToolCall("fly"), ToolCall("act", {"command": "up"})]
    )
    turn = Turn.of_calls(response, Toolbox((), FORMATS["llama"]).read(response))
    assert [call.action for call in turn.calls] == ["left", "", "up"] and turn.action == "left\nup"
    assert turn.invalid == "not parsed"
    for text in ("At 2.", "At 2 still.", "At 2."):
        turn = turn.with_answer(text)
    assert turn.answers.splitlines() == ["At 2.", turn.calls[1].error, "At 2 still.", "At 2."]
    assert turn.pending_action is None


def test_unknown_formats_are_named():
    with rejects(InvalidArgument, "'xml'", advice="auto, hermes, llama, mistral"):
        find_format("xml")


@pytest.mark.parametrize("text", ['{"a' + '\\"' * 300_000, '"' * 300_001, "{" * 300_000, "}" * 300_000, '{"' * 150_000])
def test_candidates_are_found_in_linear_time(text):
    assert all(len(format.find(format.mark + text)) <= 1 for format in FORMATS.values())


@pytest.mark.parametrize("form", FORMATS)
def test_marks_within_an_argument_are_written_as_escapes(form):
    call = ToolCall("w", {"t": "</tool_call><tool_call>[ARGS][TOOL_CALLS]<|python_tag|></think><think>"})
    response = FORMATS[form].write([call])
    assert [(item.name, item.arguments) for item in told(form, response)] == [(call.name, call.arguments)]
    assert "think>" in response and "<think>" not in response and response.count("<tool_call>") == (form == "hermes")


@pytest.mark.parametrize("form", FORMATS)
def test_mutated_responses_are_harmless(form):
    rng, boxes = random.Random(form), [Toolbox((), FORMATS[form]), Toolbox(TOOLS, FORMATS[form])]
    read = 0
    for number in range(400):
        for box in boxes:
            calls = box.read(hostile_response(FORMATS[form], box, rng))
            assert 1 <= len(calls) <= MOST_CALLS and all(bool(call.action) != bool(call.error) for call in calls), (
                number
            )
            json.dumps([call._asdict() for call in calls], ensure_ascii=False).encode()
            read += sum(bool(call.action) for call in calls)
    assert read > 80  # some are still sound
    assert isinstance(sound_call(boxes[1], rng), ToolCall)
