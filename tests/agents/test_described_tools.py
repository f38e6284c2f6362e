"""Tools in plain messages, for chat templates that have no place for them."""

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from gagpo.agents.call_formats import FORMATS
from gagpo.agents.context import Context, Interface
from gagpo.agents.described_tools import DescribedTools
from gagpo.agents.program_context import ProgramContext
from gagpo.agents.prompts import find_prompt
from gagpo.envs.tools import ToolCall
from tests.agents.template_families import FAMILIES
from tests.agents.test_conversation import seen as outcomes
from tests.agents.test_conversation import small, walk  # noqa: F401 (a fixture)
from tests.agents.test_program_context import TOOL, Talk, user

ITEM = {"type": "object", "properties": {"item": {"type": "string"}}}
PRICE = {"type": "function", "function": {"name": "price", "description": "Costs.", "parameters": ITEM}}
CALL = FORMATS["hermes"].write([ToolCall("price", {"item": "lamp"})])
# Its answers begin in a channel, so a call would be searched in another place.
WITHOUT_TOOLS = [family for family in FAMILIES if family.name != "gpt-oss"]


def dressed(tokenizer, family):
    tokenizer.add_special_tokens({"additional_special_tokens": list(family.special)})
    tokenizer.eos_token = family.end
    if family.bos:
        tokenizer.bos_token = family.bos
    tokenizer.chat_template = family.template
    return tokenizer


@pytest.fixture(params=WITHOUT_TOOLS, ids=[family.name for family in WITHOUT_TOOLS])
def family(request):
    return request.param


def test_messages_are_those_of_the_documented_format():
    described = DescribedTools(FORMATS["hermes"])
    requests = [{"role": "system", "content": "Be brief."}, user("What does the lamp cost?")]
    system, question = described.with_tools(requests, [PRICE])
    head, _, tools = system["content"].partition("<tools>\n")
    assert head.startswith("Be brief.\n\nYou can call these tools.") and question == requests[1]
    assert json.loads(tools.partition("\n</tools>")[0]) == PRICE["function"]
    assert FORMATS["hermes"].example in tools and "<tool_response>" in tools
    assert described.with_tools(requests[1:], [PRICE])[0]["content"].startswith("You can call these tools.")
    call = {"id": "a", "type": "function", "function": {"name": "price", "arguments": {"item": "lamp"}}}
    chat = [
        user("What do they cost?"),
        {"role": "assistant", "content": "Let me see.", "tool_calls": [call, call]},
        {"role": "tool", "content": "5", "tool_call_id": "a"},
        {"role": "tool", "content": "6", "tool_call_id": "b"},
        user("Quick!"),
        user("Please."),
        {"role": "assistant", "content": "", "tool_calls": [call]},
    ]
    assert described.plain(chat) == [
        chat[0],
        {"role": "assistant", "content": f"Let me see.\n{CALL}\n{CALL}"},
        user("<tool_response>\n5\n</tool_response>\n<tool_response>\n6\n</tool_response>\nQuick!"),
        user("Please."),
        {"role": "assistant", "content": CALL},
    ]


def test_a_program_calls_tools_and_its_prompts_extend(tiny, family):
    tokenizer = dressed(tiny[1], family)
    talk = Talk(ProgramContext(tokenizer, find_prompt("plain"), family.variables))
    system = {"role": "system", "content": "You sell things."}
    first = talk.ask(system, user("How much?"), tools=[PRICE])
    text = tokenizer.decode(first.prompt_ids)
    assert '{"name": "price", "description": "Costs."' in text and "You sell things." in text
    ids = tokenizer.encode(f"Let me see.\n{CALL}{family.end}", add_special_tokens=False)
    answer = talk.answer(first, ids)
    assert (answer.finish, answer.content) == ("tool_calls", "Let me see.\n")
    assert answer.calls[0]["function"] == {"name": "price", "arguments": {"item": "lamp"}}
    back = [answer.message, {"role": "tool", "content": "5 coins", "tool_call_id": answer.calls[0]["id"]}]
    second = talk.ask(system, user("How much?"), *back, tools=[PRICE])
    row = [*first.prompt_ids, *ids]
    assert second.prompt_ids[: len(row)].tolist() == row and talk.found.rewritten == 0
    added = tokenizer.decode(second.prompt_ids[len(row) :])
    assert "<tool_response>\n5 coins\n</tool_response>" in added and "<tools>" not in added
    damaged = talk.answer(second, tokenizer.encode(CALL.replace('"name"', '"nome"'), add_special_tokens=False))
    assert damaged.finish == "stop" and not damaged.calls and '"nome"' in damaged.content


def test_calls_that_the_model_did_not_sample_are_written_in_the_format(tiny):
    talk = Talk(ProgramContext(dressed(tiny[1], WITHOUT_TOOLS[0]), find_prompt("plain")))
    function = {"name": "price", "arguments": '{"item": "lamp"}'}
    example = {"role": "assistant", "tool_calls": [{"id": "call_1", "function": function}]}
    answer = {"role": "tool", "content": "5", "tool_call_id": "call_1"}
    for options in ({"tools": [TOOL]}, {}, {"tools": [TOOL], "tool_choice": "none"}):
        text = tiny[1].decode(talk.ask(user("How much?"), example, answer, **options).prompt_ids)
        assert CALL in text and "<tool_response>\n5\n</tool_response>" in text
        assert ("<tools>" in text) == (options == {"tools": [TOOL]})
        talk.found.withdraw_request()


def test_descriptions_and_answers_never_become_control_tokens(tiny):
    tokenizer = dressed(tiny[1], WITHOUT_TOOLS[0])
    ends = tokenizer.all_special_ids

    def controls(text):
        talk = Talk(ProgramContext(tokenizer, find_prompt("plain")))
        tool = {"type": "function", "function": {**TOOL["function"], "description": text}}
        call = {"id": "a", "function": {"name": "price", "arguments": json.dumps({"item": text})}}
        messages = [user("?"), {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": text}]
        return sum(int(token) in ends for token in talk.ask(*messages, tools=[tool]).prompt_ids)

    assert controls("hello") == controls(f"hello {tokenizer.eos_token}")


def test_another_format_can_be_chosen_and_conditions_name_it(tiny):
    tokenizer = dressed(tiny[1], WITHOUT_TOOLS[0])
    context = Context(tokenizer, find_prompt("tools"))
    assert context.conditions["calls"] == "hermes, described in the system message"
    chosen = Context(tokenizer, find_prompt("tools"), calls="llama")
    assert chosen.conditions["calls"] == "llama, described in the system message"
    text = tokenizer.decode(chosen.prompt([], "You stand at 3."))
    assert '{"name": "...", "parameters": {...}}' in text and "<tool_call>" not in text
    assert chosen.turn(chosen.response('{"name": "act", "parameters": {"command": "left"}}')).action == "left"


def test_prompts_of_an_environment_extend(tiny, family):
    tokenizer = dressed(tiny[1], family)
    context = Context(tokenizer, find_prompt("tools"), Interface("Walk."), template=family.variables)
    turns = []
    for commands, answers in ([["left"], ["You stand at 2."]], [["left", "left"], ["You stand at 1.", "There."]]):
        prompt_ids = context.prompt(turns, turns[-1].observation if turns else "You stand at 3.")
        response_ids = context.response(context.toolbox.write(commands))
        turn = replace(context.turn(response_ids), prompt_ids=prompt_ids, response_ids=response_ids)
        assert [call.action for call in turn.calls] == commands
        for answer in answers:
            turn = turn.with_answer(answer)
        turns.append(turn.with_observation(turn.answers, None))
    last = context.prompt(turns, turns[-1].observation)
    rows = [np.concatenate([turn.prompt_ids, turn.response_ids]).tolist() for turn in turns]
    for row, prompt in zip(rows, [turns[1].prompt_ids, last], strict=True):
        assert prompt[: len(row)].tolist() == row
    assert tokenizer.decode(last).count("<tool_response>\n") == 3
    for before, after in pairwise([turn.prompt_ids for turn in turns]):
        assert len(after) > len(before)


@pytest.mark.parametrize("name", ["Qwen2.5", "Gemma", "Mistral Nemo"])
def test_an_agent_plays_the_same_with_lines_and_with_described_tools(small, name):  # noqa: F811
    lines = walk(small[1], "plain")
    tokenizer = dressed(small[1], next(family for family in FAMILIES if family.name == name))
    assert outcomes(walk(tokenizer, "tools")) == outcomes(lines)
    assert outcomes(walk(tokenizer, "tools", history=1)) == outcomes(lines)
