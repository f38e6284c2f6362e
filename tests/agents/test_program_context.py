"""Prompts of programs: the messages they send, with sampled tokens where they repeat an answer."""

import json
import re

import numpy as np
import pytest

from gagpo.agents.call_formats import nine_characters
from gagpo.agents.chat_template import TemplateFailed
from gagpo.agents.context import RejectedRequest
from gagpo.agents.engines.base import Response
from gagpo.agents.program_context import ProgramContext
from gagpo.agents.prompts import find_prompt
from gagpo.agents.setup import make_context, make_env
from gagpo.base.errors import InvalidArgument
from gagpo.envs.gateway.conversations import Conversations
from gagpo.envs.gateway.messages import ChatRequest, Completion
from gagpo.envs.tools import ToolCall
from tests.agents.test_conversation import FORMS, dressed, small  # noqa: F401 (a fixture)
from tests.rejections import rejects

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
        info = {"request": self.found.add_request(ChatRequest.of({"messages": list(messages), **more}))}
        return self.context.ask(self.turns, "", info)

    def answer(self, asked, ids, stopped=True):
        turn = asked.read(Response(np.asarray(ids, np.int32), np.zeros(len(ids), np.float32), stopped))
        self.turns.append(turn)
        completion = Completion.of(turn.completion)
        self.found.add_answer(completion)
        return completion


@pytest.fixture
def talk(tiny):
    return Talk(ProgramContext(tiny[1], find_prompt("plain")))


def test_text_that_encodes_in_another_way_keeps_its_sampled_tokens(talk):
    """A model may sample a word letter by letter; the tokenizer would not."""
    tokenizer = talk.context.tokenizer
    ids = [tokenizer.encode(letter, add_special_tokens=False)[0] for letter in "left"] + [tokenizer.eos_token_id]
    assert ids[:-1] != tokenizer.encode("left", add_special_tokens=False)
    first = talk.ask(user("one"))
    answer = talk.answer(first, ids)
    assert answer.content == "left" and answer.finish == "stop" and list(answer.usage) == [len(first.prompt_ids), 5]
    second = talk.ask(user("one"), answer.message, user("two"))
    row = [*first.prompt_ids, *ids]
    assert second.prompt_ids[: len(row)].tolist() == row
    other = talk.ask({"role": "system", "content": "Sum up."}, user("one"), answer.message, user("three"))
    text = other.prompt_ids.tolist()
    assert any(text[i : i + 5] == ids for i in range(len(text))) and text[: len(row)] != row


def test_what_a_program_says_never_becomes_a_control_token(talk):
    ends = talk.context.tokenizer.all_special_ids
    plain, spelled = talk.ask(user("hello")), talk.ask(user(f"hello {talk.context.tokenizer.eos_token}"))
    count = [sum(int(prompt_id) in ends for prompt_id in requests.prompt_ids) for requests in (plain, spelled)]
    assert count[0] == count[1]


def test_a_response_is_cut_at_the_token_that_completes_a_stop_string(talk):
    tokenizer = talk.context.tokenizer
    ids = tokenizer.encode("On the table 1, you see a mug 1", add_special_tokens=False)
    answer = talk.answer(talk.ask(user("look"), stop=["see", "ble 1,"]), ids, stopped=False)
    assert answer.content == "On the ta" and answer.finish == "stop"
    turn = talk.turns[0]
    assert "ble 1," in tokenizer.decode(turn.response_ids) and "ble 1," not in tokenizer.decode(turn.response_ids[:-1])
    assert turn.response_ids.tolist() == ids[: len(turn.logprobs)]
    again = talk.ask(user("look"), answer.message, user("on"))
    row = [*turn.prompt_ids, *turn.response_ids]
    assert again.prompt_ids[: len(row)].tolist() == row


def test_limits_and_log_probabilities_are_the_requests(talk):
    answer = talk.ask(user("look"), max_tokens=9, max_completion_tokens=3, logprobs=True)
    assert answer.max_tokens == 3
    messages = talk.answer(answer, talk.context.tokenizer.encode("left", add_special_tokens=False), stopped=False)
    assert (
        messages.finish == "length" and "".join(text for text, _ in messages.logprobs) == "left" and talk.turns[0].cut
    )


def test_token_ids_are_listed_only_for_a_reward_function_that_names_them(talk):
    for token_ids in (False, True):
        talk.found.token_ids = token_ids
        answer = talk.ask(user("look"))
        assert answer.prompt_ids is not None
        answered = talk.answer(answer, tokens(talk.context.tokenizer, "left"))
        ids = talk.turns[-1].response_ids.tolist()
        assert answered.ids == (ids if token_ids else ())
    assert talk.found.transcript[-1]["ids"] == ids


@pytest.mark.parametrize("family", FORMS)
def test_tools_and_calls_go_through_the_models_template(small, family):  # noqa: F811
    tokenizer = dressed(small[1], family)
    talk = Talk(ProgramContext(tokenizer, find_prompt("plain")))
    first = talk.ask(user("How much?"), tools=[TOOL])
    assert "price" in tokenizer.decode(first.prompt_ids)
    raw = talk.context.call_format.write([ToolCall("price", {"item": "lamp"})])
    answer = talk.answer(first, tokens(tokenizer, raw + tokenizer.eos_token))
    assert answer.finish == "tool_calls" and answer.content == ""
    (call,) = answer.calls
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
    with rejects(InvalidArgument, "programs", advice="leave them out"):
        make_context(tiny[1], env, **context)


def raising(error):
    def raise_it(*args, **options):
        raise error

    return raise_it


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (TemplateFailed("roles must alternate"), 400, "cannot be rendered: roles must alternate"),
        (InvalidArgument("no place for tools"), 400, "cannot be rendered: no place for tools"),
        (RecursionError("maximum recursion depth exceeded"), 400, "maximum recursion depth"),
        (IndexError("list index out of range"), 500, "the gateway failed: IndexError"),
        (UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed"), 500, "UnicodeEncodeError"),
    ],
)
def test_whatever_a_request_causes_rejects_it_alone(talk, monkeypatch, error, status, said):
    monkeypatch.setattr(talk.context.tool_form, "render", raising(error))
    rejection = talk.ask(user("one"))
    assert isinstance(rejection, RejectedRequest) and rejection.status == status and said in rejection.reason
    monkeypatch.undo()
    talk.found.withdraw_request()
    assert len(talk.ask(user("one")).prompt_ids)


def test_tools_of_a_template_with_an_unknown_format_are_rejected(talk):
    talk.context.tokenizer.chat_template = (
        "{{ tools | tojson }}{% for m in messages %}{{ m.content }}{{ m.tool_calls }}{% endfor %}"
    )
    rejection = talk.ask(user("one"), tools=[TOOL])
    assert rejection.status == 400 and "name the format in which the model writes them" in rejection.reason


def test_a_request_of_only_the_system_is_rendered_with_any_template(talk):
    brief = {"role": "system", "content": "left"}
    plain = talk.ask(brief)
    talk.found.withdraw_request()
    talk.context.tokenizer.chat_template = (
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
        "{{ m.role }}: {{ m.content }}{% endfor %}"
    )
    folded = talk.ask(brief)
    assert len(plain.prompt_ids) and talk.context.tokenizer.decode(folded.prompt_ids).replace(" ", "") == "user:left"


def test_a_prompt_that_cannot_fit_is_not_encoded(talk):
    def shown(text, **more):
        return {"request": talk.found.add_request(ChatRequest.of({"messages": [user(text)], **more}))}

    assert not talk.context.exceeds(shown("left " * 10), 512)
    assert talk.context.exceeds(shown("left " * 100_000), 512)
    assert talk.context.exceeds(shown("left", tools=[{"function": {"name": "x" * 500_000}}]), 512)


CALLS = [["call_abc123"], ["toolu_01", "toolu_02"], ["", ""], ["call00001"], ["nine char"]]


@pytest.mark.parametrize("ids", CALLS)
def test_ids_of_calls_become_those_that_a_template_wants(small, ids):  # noqa: F811
    """The stand-in for Mistral's template wants nine characters; the others show what the program sent."""
    function = {"name": "price", "arguments": "{}"}
    calls = [{"id": name, "type": "function", "function": function} for name in ids]
    results = [{"role": "tool", "content": "5", "tool_call_id": name} for name in ids]
    messages = [user("How much?"), {"role": "assistant", "tool_calls": calls}, *results]
    context = ProgramContext(dressed(small[1], "mistral"), find_prompt("plain"))
    output = [Talk(context).ask(*messages, tools=[TOOL]) for _ in range(2)]
    assert output[0].prompt_ids.tolist() == output[1].prompt_ids.tolist()
    text = context.tokenizer.decode(output[0].prompt_ids)
    matches = re.findall(r'"(?:id|call_id)": "(\w{9})"', text)
    assert matches == [nine_characters(name) for name in ids] * 2


def test_the_stop_string_that_ended_a_response_is_named(talk):
    tokenizer = talk.context.tokenizer
    ids = tokenizer.encode("On the table 1, you see a mug 1", add_special_tokens=False)
    answer = talk.answer(talk.ask(user("look"), stop=["see", "ble 1,"]), ids, stopped=False)
    assert (answer.stop, answer.finish) == ("ble 1,", "stop")
    assert talk.answer(talk.ask(user("look"), stop=["nothing"]), ids, stopped=False).stop == ""
