"""Prompts of programs: the messages they send, with sampled tokens where they repeat an answer."""

import json

import numpy as np
import pytest

from gagpo.agents.engines.base import Response
from gagpo.agents.program_context import ProgramContext
from gagpo.agents.prompts import find_prompt
from gagpo.agents.setup import make_context, make_env
from gagpo.base.errors import InvalidArgument
from gagpo.envs.program.conversations import Conversations
from gagpo.envs.program.messages import ChatRequest, Completion
from gagpo.envs.tools import ToolCall
from tests.agents.test_conversation import FORMS, dressed, small  # noqa: F401 (a fixture)

TOOL = {
    "type": "function",
    "function": {"name": "price", "description": "Costs.", "parameters": {"type": "object", "properties": {}}},
}


def user(text):
    return {"role": "user", "content": text}


def tokens(tokenizer, text):
    return tokenizer.encode(text, add_special_tokens=False)


class Talk:
    """A program and its model: what each sampled, and what the other was told."""

    def __init__(self, context):
        self.context, self.found, self.turns = context, Conversations(), []

    def ask(self, *messages, **more):
        info = {"request": self.found.show(ChatRequest.of({"messages": list(messages), **more}))}
        return self.context.ask(self.turns, "", info)

    def answer(self, asked, ids, stopped=True):
        turn = asked.read(Response(np.asarray(ids, np.int32), np.zeros(len(ids), np.float32), stopped))
        self.turns.append(turn)
        said = Completion.of(turn.completion)
        self.found.said(said)
        return said


@pytest.fixture
def talk(tiny):
    return Talk(ProgramContext(tiny[1], find_prompt("plain")))


def test_text_that_encodes_in_another_way_keeps_its_sampled_tokens(talk):
    """A model may sample a word letter by letter; the tokenizer would not."""
    tokenizer = talk.context.tokenizer
    ids = [tokenizer.encode(letter, add_special_tokens=False)[0] for letter in "left"] + [tokenizer.eos_token_id]
    assert ids[:-1] != tokenizer.encode("left", add_special_tokens=False)
    first = talk.ask(user("one"))
    said = talk.answer(first, ids)
    assert said.content == "left" and said.finish == "stop" and list(said.usage) == [len(first.prompt_ids), 5]
    second = talk.ask(user("one"), said.message, user("two"))
    row = [*first.prompt_ids, *ids]
    assert second.prompt_ids[: len(row)].tolist() == row
    other = talk.ask({"role": "system", "content": "Sum up."}, user("one"), said.message, user("three"))
    text = other.prompt_ids.tolist()
    assert any(text[i : i + 5] == ids for i in range(len(text))) and text[: len(row)] != row


def test_what_a_program_says_never_becomes_a_control_token(talk):
    ends = talk.context.tokenizer.all_special_ids
    plain, spelled = talk.ask(user("hello")), talk.ask(user(f"hello {talk.context.tokenizer.eos_token}"))
    count = [sum(int(one) in ends for one in asked.prompt_ids) for asked in (plain, spelled)]
    assert count[0] == count[1]


def test_a_response_is_cut_at_the_token_that_completes_a_stop_string(talk):
    tokenizer = talk.context.tokenizer
    ids = tokenizer.encode("On the table 1, you see a mug 1", add_special_tokens=False)
    said = talk.answer(talk.ask(user("look"), stop=["see", "ble 1,"]), ids, stopped=False)
    assert said.content == "On the ta" and said.finish == "stop"
    turn = talk.turns[0]
    assert "ble 1," in tokenizer.decode(turn.response_ids) and "ble 1," not in tokenizer.decode(turn.response_ids[:-1])
    assert turn.response_ids.tolist() == ids[: len(turn.logprobs)]
    again = talk.ask(user("look"), said.message, user("on"))
    row = [*turn.prompt_ids, *turn.response_ids]
    assert again.prompt_ids[: len(row)].tolist() == row


def test_limits_and_log_probabilities_are_the_requests(talk):
    asked = talk.ask(user("look"), max_tokens=9, max_completion_tokens=3, logprobs=True)
    assert asked.max_tokens == 3
    said = talk.answer(asked, talk.context.tokenizer.encode("left", add_special_tokens=False), stopped=False)
    assert said.finish == "length" and "".join(text for text, _ in said.logprobs) == "left" and talk.turns[0].cut


@pytest.mark.parametrize("family", FORMS)
def test_tools_and_calls_go_through_the_models_template(small, family):  # noqa: F811
    tokenizer = dressed(small[1], family)
    talk = Talk(ProgramContext(tokenizer, find_prompt("plain")))
    first = talk.ask(user("How much?"), tools=[TOOL])
    assert "price" in tokenizer.decode(first.prompt_ids)
    raw = talk.context._form.write([ToolCall("price", {"item": "lamp"})])
    said = talk.answer(first, tokens(tokenizer, raw + tokenizer.eos_token))
    assert said.finish == "tool_calls" and said.content == ""
    (call,) = said.calls
    assert call["function"] == {"name": "price", "arguments": {"item": "lamp"}} and len(call["id"]) == 9
    sent = {**call, "function": {"name": "price", "arguments": json.dumps({"item": "lamp"})}}
    back = [
        {"role": "assistant", "content": None, "tool_calls": [sent]},
        {"role": "tool", "content": "5", "tool_call_id": call["id"]},
    ]
    second = talk.ask(user("How much?"), *back, tools=[TOOL])
    row = [*first.prompt_ids, *talk.turns[0].response_ids[:-1]]
    assert second.prompt_ids[: len(row)].tolist() == row and talk.found.rewritten == 0
    damaged = talk.answer(second, tokens(tokenizer, raw.replace('"name"', '"nome"')))
    assert damaged.finish == "stop" and not damaged.calls and damaged.content


@pytest.mark.parametrize("context", [{"prompt": "tags"}, {"history": 2}, {"admissible": True}])
def test_settings_of_prompts_are_refused(tiny, tmp_path, context):
    (tmp_path / "tasks.jsonl").write_text('{"id": "a"}')
    env = make_env("gagpo/Program-v0", {"command": "true", "tasks": tmp_path / "tasks.jsonl"})
    with pytest.raises(InvalidArgument, match="have no effect on programs"):
        make_context(tiny[1], env, **context)
