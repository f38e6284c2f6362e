"""Tool calls as a person types them."""

import pytest

from gagpo.envs.tools import CallError, Tool
from gagpo.envs.tools.storeroom import TOOLS
from gagpo.envs.tools.typed import read_typed, usage

MIXED = Tool(
    "mixed",
    "",
    {"type": "object", "properties": {"number": {"type": "number"}, "flags": {"type": "array"}, "note": {}, "more": 1}},
)


@pytest.mark.parametrize(
    ("line", "name", "arguments"),
    [
        ("price lamp", "price", {"item": "lamp"}),
        ("price item=lamp", "price", {"item": "lamp"}),
        ("price 'red lamp'", "price", {"item": "red lamp"}),
        ("price red lamp", "price", {"item": "red lamp"}),
        ("price 12", "price", {"item": "12"}),
        ("price a=b", "price", {"item": "a=b"}),
        ("price", "price", {}),
        ("add 3 5", "add", {"a": 3, "b": 5}),
        ("add b=5 3", "add", {"b": 5, "a": 3}),
        ("add 3 x", "add", {"a": 3, "b": "x"}),
        ('{"name": "add", "arguments": {"a": 3, "b": 5}}', "add", {"a": 3, "b": 5}),
        ("mixed 1.5 [true] text null", "mixed", {"number": 1.5, "flags": [True], "note": "text", "more": None}),
    ],
)
def test_lines_are_calls(line, name, arguments):
    call = read_typed(line, (*TOOLS, MIXED))
    assert (call.name, call.arguments) == (name, arguments)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("prise lamp", "there is no tool 'prise'; there is price"),
        ("add 1 2 3", "too many arguments; type add A B: The sum."),
        ("price 'lamp", "No closing quotation: close the quote"),
        ("''", "there is no tool ''"),
        (" ", "type the name of a tool"),
        ("{1}", "the call is no JSON"),
        ("mixed " + "[" * 100_000, None),
    ],
)
def test_errors_say_what_to_type(line, said):
    if said is None:
        assert read_typed(line, [MIXED]).arguments["number"] == line.removeprefix("mixed ")
        return
    with pytest.raises(CallError, match=said.replace("(", r"\(")):
        read_typed(line, TOOLS)


def test_the_usage_of_a_tool_without_a_schema_is_its_name():
    assert usage(Tool("look", "", {"type": "object", "properties": []})) == "look"
