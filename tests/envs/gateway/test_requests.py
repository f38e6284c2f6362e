"""Requests as the protocols write them: what is read, and what is rejected with a reason."""

import copy
import json
import random

import openai.types.chat.completion_create_params as chat_params
import openai.types.responses.response_create_params as responses_params
import pytest
from openai.types.responses import Response

from gagpo.envs.gateway import anthropic, openai, responses
from gagpo.envs.gateway.conversations import Conversations
from gagpo.envs.gateway.messages import MAX_MESSAGES, MAX_TOOLS, Completion, GatewayError
from gagpo.envs.gateway.parameters import CHAT, MESSAGES, RESPONSES
from gagpo.envs.gateway.server import _prepare

USER = {"role": "user", "content": "one"}
SAID = {"messages": [USER]}
ITEMS = {"input": "one"}
FUNCTION = {"name": "price", "parameters": {"type": "object"}}
CALL = {"id": "abc000001", "type": "function", "function": {"name": "price", "arguments": {"item": None}}}

ANTHROPICS = {
    "billing_policy", "compaction", "diagnostics", "fallback_credit_token", "fallbacks", "thread", "user_profile_id",
    "workspace_id",
    "max_tokens", "messages", "model", "cache_control", "container", "context_management", "inference_geo",
    "mcp_servers", "metadata", "output_config", "output_format", "service_tier", "speed", "stop_sequences",
    "stream", "system", "temperature", "thinking", "tool_choice", "tools", "top_k", "top_p"
}  # fmt: skip
"""The parameters in Anthropic's reference of messages; its client is not a dependency of the tests."""


def says(*roles):
    return [{"role": role, "content": f"{role} {number}"} for number, role in enumerate(roles)]


@pytest.mark.parametrize(
    ("roles", "shown"),
    [
        (("system", "developer", "user"), ["system", "user"]),
        (("user", "assistant", "system"), ["user", "assistant", "user"]),
        (("system", "user", "assistant", "developer", "user"), ["system", "user", "assistant", "user"]),
        (("user", "assistant", "user", "system", "user"), ["user", "assistant", "user"]),
        (("user", "assistant", "tool", "system"), ["user", "assistant", "tool", "user"]),
        (("user", "assistant", "user", "user"), ["user", "assistant", "user", "user"]),  # as the program wrote it
        (("system",), ["system"]),
    ],
)
def test_a_later_system_message_is_the_users(roles, shown):
    messages = says(*roles)
    conversation = openai.read({"messages": messages}).conversation
    assert [message["role"] for message in conversation] == shown
    assert "\n\n".join(message["content"] for message in conversation) == "\n\n".join(m["content"] for m in messages)


def test_a_conversation_with_a_reminder_is_extended():
    talk, messages = Conversations(), says("user")
    for count in range(3):
        request = talk.add_request(openai.read({"messages": messages}))
        assert request["extends"] == (count - 1 if count else None)
        assert request["messages"][0]["role"] == "user" and len(request["messages"]) == 1
        talk.add_answer(Completion(f"answer {count}"))
        messages += [{"role": "assistant", "content": f"answer {count}"}, {"role": "system", "content": "be brief"}]
        messages += says("user") if count else []
    assert talk.rewritten == 0


NULLS = [{"item": None}, {"item": {"size": None}}, {"items": [None, 1]}]


@pytest.mark.parametrize("arguments", NULLS)
def test_null_arguments_extend_the_turn_that_made_them(arguments):
    call = {**CALL, "function": {"name": "price", "arguments": arguments}}
    talk, tool = Conversations(), {"name": "price", "input_schema": {"type": "object"}}
    body = {"messages": [USER], "tools": [tool]}
    talk.add_request(anthropic.read(body))
    completion = Completion("", [call], "tool_calls")
    talk.add_answer(completion)
    (block,) = anthropic.answer(anthropic.read(body), [completion], "x")["content"]
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": block["id"], "content": "5"}]}
    messages = [USER, {"role": "assistant", "content": [block]}, result]
    request = talk.add_request(anthropic.read({**body, "messages": messages}))
    assert block["input"] == arguments and (request["extends"], talk.rewritten) == (0, 0)


def test_null_stays_in_a_tools_schema():
    schema = {"type": "object", "properties": {"item": {"enum": ["a", None], "default": None}}}
    tools = [{"type": "function", "function": {"name": "price", "description": None, "parameters": schema}}]
    (function,) = openai.read({**SAID, "tools": tools}).functions
    assert function["function"] == {"name": "price", "description": "", "parameters": schema}


def test_a_call_with_an_id_of_the_program_gets_the_sampled_one():
    talk = Conversations()
    talk.add_request(openai.read(SAID))
    talk.add_answer(Completion("", [CALL], "tool_calls"))
    sent = {**CALL, "id": "call_own"}
    messages = [USER, {"role": "assistant", "tool_calls": [sent]}]
    messages.append({"role": "tool", "content": "5", "tool_call_id": "call_own"})
    request = talk.add_request(openai.read({"messages": messages}))
    assert request["extends"] == 0 and request["messages"][0]["tool_call_id"] == CALL["id"]


def test_a_withdrawn_request_leaves_no_trace():
    talk = Conversations()
    talk.add_request(openai.read(SAID))
    talk.add_answer(Completion("a"))
    talk.add_request(openai.read({"messages": [USER, {"role": "assistant", "content": "b"}, USER]}))
    assert talk.rewritten == 1
    talk.withdraw_request()
    assert (talk.rewritten, len(talk.turns)) == (0, 1)


@pytest.mark.parametrize(
    ("completion", "reason", "sequence"),
    [
        (Completion("abc END def").cut(["END"]), "stop_sequence", "END"),
        (Completion("abc END def").cut(["def", "END"]), "stop_sequence", "END"),
        (Completion("abc").cut(["END"]), "end_turn", None),
        (Completion("abc", finish="length"), "max_tokens", None),
        (Completion("", [CALL], "tool_calls"), "tool_use", None),
    ],
)
def test_anthropics_stop_reason(completion, reason, sequence):
    request = anthropic.read({**SAID, "stop_sequences": ["END"]})
    answer = anthropic.answer(request, [completion], "x")
    assert (answer["stop_reason"], answer["stop_sequence"]) == (reason, sequence)
    assert answer["content"][0].get("text", "abc").strip() == "abc"
    assert f'"stop_reason": "{reason}"' in anthropic.stream(request, [completion], "x").split("message_delta")[-1]


@pytest.mark.parametrize(
    ("options", "completion"),
    [
        ({}, Completion("hi", usage=(5, 2))),
        ({"tools": [{"type": "function", **FUNCTION}], "tool_choice": "none"}, Completion("hi")),
        ({"tools": [{"type": "function", **FUNCTION}]}, Completion("", [CALL], "tool_calls")),
        ({"instructions": "Be brief.", "metadata": {"a": "b"}, "max_output_tokens": 9}, Completion("h", [], "length")),
    ],
)
def test_an_answer_is_a_valid_response(options, completion):
    request = responses.read({"model": "any", **ITEMS, **options})
    Response.model_validate(responses.answer(request, [completion], "x"), strict=True)


# What is rejected -----------------------------------------------------------------------------------------------------


def fields(module, name):
    return set(getattr(module, name).__annotations__) | {"stream"}


@pytest.mark.parametrize(
    ("parameters", "public"),
    [
        (CHAT, fields(chat_params, "CompletionCreateParamsBase")),
        (RESPONSES, fields(responses_params, "ResponseCreateParamsBase")),
        (MESSAGES, ANTHROPICS),
    ],
    ids=["chat", "responses", "messages"],
)
def test_every_public_parameter_is_decided(parameters, public):
    groups = [parameters.followed, parameters.harmless, parameters.decided]
    listed = set().union(*groups, parameters.default, parameters.rejected)
    assert public <= listed
    assert sum(map(len, groups)) == len(set().union(*groups)) and not set().union(*groups) & set(parameters.default)


@pytest.mark.parametrize(
    ("protocol", "body", "reason"),
    [
        (openai, {"messages": []}, "messages: must hold at least one message"),
        (openai, {"messages": says("user", "assistant")}, "messages: the last must come from"),
        (openai, {"messages": [{"role": "system", "content": ""}]}, "messages: the last must come from"),
        (openai, {"messages": [*says("user", "assistant"), {"role": "system", "content": ""}]}, "messages: the last"),
        (openai, {"messages": [USER, 5]}, "messages must be a list of objects"),
        (openai, {"messages": [USER] * (MAX_MESSAGES + 1)}, "messages must have at most 5000 items (got 5001)"),
        (openai, {**SAID, "tools": [{}] * (MAX_TOOLS + 1)}, "tools must have at most 512 items (got 513)"),
        (openai, {"messages": [{"role": "judge"}] * 50}, "messages.0.role must be"),
        (openai, {**SAID, "max_tokens": 0}, "max_tokens must be at least 1 (got 0)"),
        (openai, {**SAID, "max_completion_tokens": -1}, "max_completion_tokens must be at least 1 (got -1)"),
        (openai, {**SAID, "parallel_tool_calls": False}, "parallel_tool_calls=False is not supported"),
        (openai, {**SAID, "functions": [FUNCTION]}, "is not supported: it is deprecated; use tools"),
        (openai, {**SAID, "reasoning_effort": "low"}, "reasoning_effort='low' is not supported"),
        (openai, {**SAID, "max_tokens": True}, "max_tokens must be "),
        (openai, {**SAID, "max_tokens": "5"}, "max_tokens must be "),
        (openai, {**SAID, "max_token": 5}, "unknown parameter 'max_token'; nearest: max_tokens"),
        (openai, {**SAID, "tool_choice": {"type": "function", "function": FUNCTION}}, "tool_choice"),
        (openai, {"messages": [{"role": "assistant", "function_call": {}}, USER]}, "function_call is not supported"),
        (openai, {"messages": [{"role": "user", "content": [{"type": "image_url", "text": "x"}]}]}, "only text"),
        (responses, {"input": []}, "input must have at least 1 message"),
        (responses, {"input": [{"type": "reasoning"}]}, "input must have at least 1 message"),
        (responses, {"input": [{"type": "web_search_call"}]}, "input.0: items of type 'web_search_call'"),
        (responses, {"input": [USER, {"role": "judge"}]}, "input.1.role must be"),
        (responses, {**ITEMS, "max_output_tokens": 0}, "max_output_tokens must be at least 1 (got 0)"),
        (responses, {**ITEMS, "tools": [{"type": "web_search"}]}, "tools.0.type must be 'function' (got 'web_search')"),
        (responses, {**ITEMS, "background": True}, "background=True is not supported"),
        (responses, {**ITEMS, "truncation": "auto"}, "truncation='auto' is not supported"),
        (responses, {**ITEMS, "text": {"format": {"type": "json_object"}}}, "text.format is not supported"),
        (responses, {**ITEMS, "tools": [[]]}, "tools must be a list of objects"),
        (responses, {**ITEMS, "include": 5}, "include must be a list"),
        (responses, {**ITEMS, "reasoning": {"effort": "low"}}, "reasoning.effort is not supported"),
        (responses, {**ITEMS, "include": ["message.output_text.logprobs"]}, "include must be a list without logprobs"),
        (anthropic, {"system": "s", "messages": []}, "messages must have at least 1 item"),
        (anthropic, {**SAID, "max_tokens": 0}, "max_tokens must be at least 1 (got 0)"),
        (anthropic, {**SAID, "stop_sequences": [5]}, "stop_sequences.0 must be text"),
        (anthropic, {**SAID, "tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools.0.type must be 'custom'"),
        (anthropic, {**SAID, "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}, "tool_choice"),
        (anthropic, {**SAID, "tool_choice": {"type": "tool", "name": "price"}}, "choose auto or none"),
        (anthropic, {**SAID, "output_config": {"effort": "low"}}, "output_config is not supported"),
        (anthropic, {**SAID, "thinking": {"type": "adaptive"}}, "thinking is not supported"),
        (anthropic, {"messages": [USER, {"role": "user", "content": [{"type": "image"}]}]}, "messages.1.content"),
    ],
)
def test_a_request_without_effect_is_rejected(protocol, body, reason):
    with pytest.raises(GatewayError) as error:
        protocol.read(body)
    assert reason in str(error.value) and error.value.status == 400 and str(error.value).isprintable()
    if reason.endswith(")"):
        assert str(error.value) == reason  # and no more


@pytest.mark.parametrize(
    ("protocol", "body"),
    [
        (openai, {**SAID, "tool_choice": "required", "temperature": 0.5, "seed": 3, "user": "u", "n": None}),
        (openai, {**SAID, "parallel_tool_calls": True, "top_p": 1.0, "logit_bias": {}, "response_format": None}),
        (responses, {**ITEMS, "store": True, "include": ["reasoning.encrypted_content"], "truncation": "disabled"}),
        (responses, {**ITEMS, "text": {"format": {"type": "text"}}, "reasoning": {"effort": None}}),
        (anthropic, {**SAID, "thinking": {"type": "disabled"}, "tool_choice": {"type": "any"}, "metadata": {}}),
    ],
)
def test_what_clients_send_by_themselves_is_accepted(protocol, body):
    assert protocol.read(body).conversation == [USER]


@pytest.mark.parametrize("depth", [60, 66, 700, 100_000])
def test_the_depth_of_arguments_is_limited(depth):
    arguments = '{"a": ' + "[" * (depth - 1) + "]" * (depth - 1) + "}"
    call = {**CALL, "function": {"name": "price", "arguments": arguments}}
    body = {"messages": [USER, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": "5"}]}
    if depth > 64:
        with pytest.raises(GatewayError, match=r"messages.1.tool_calls.0.function.arguments: .* nested levels"):
            openai.read(body)
    else:
        assert openai.read(body).digests


def test_arguments_that_are_not_json_stay_text():
    for text in ("{broken", "[1]", "null"):
        call = {**CALL, "function": {"name": "price", "arguments": text}}
        messages = [USER, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": "5"}]
        output = openai.read({"messages": messages}).conversation[1]["tool_calls"][0]
        assert output["function"]["arguments"] == {"arguments": text}


# Any request ----------------------------------------------------------------------------------------------------------

TEXT = [{"type": "text", "text": "one"}]
CALLING = {"role": "assistant", "tool_calls": [{**CALL, "function": {"name": "f", "arguments": "{}"}}]}
USING = {"role": "assistant", "content": [*TEXT, {"type": "tool_use", "name": "f", "input": {}}]}
WHOLE = {
    openai: {
        "messages": [USER, CALLING, {"role": "tool", "content": TEXT, "tool_call_id": "abc000001"}],
        "tools": [{"type": "function", "function": FUNCTION}],
        "tool_choice": "auto",
        "stop": ["x"],
        "n": 2,
        "max_tokens": 5,
        "stream_options": {"include_usage": True},
        "logit_bias": {},
    },
    responses: {
        "input": [
            USER,
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "5"},
            {"type": "reasoning", "summary": []},
        ],
        "instructions": "i",
        "tools": [{"type": "function", **FUNCTION}],
        "text": {"format": {"type": "text"}},
        "reasoning": {"effort": None},
        "include": [],
        "metadata": {"a": "b"},
    },
    anthropic: {
        "system": TEXT,
        "messages": [
            USER,
            USING,
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": TEXT}]},
        ],
        "tools": [{"name": "f", "input_schema": {"type": "object"}}],
        "stop_sequences": ["x"],
        "thinking": {"type": "disabled"},
        "tool_choice": {"type": "auto"},
        "output_config": {},
    },
}
ODD = [
    None,
    True,
    -1,
    10**18,
    1e300,
    "",
    "\x1b[2J",
    "{}",
    [],
    [[]],
    [None],
    {},
    {"type": "text", "text": 5},
    {"type": [1]},
]
ODD += [{"a": {"b": [1]}}, "none", "system", "assistant", [{"type": "tool_use"}], {"type": "function_call"}]


def places(value, path=()):
    """The path of every value within JSON."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, segment in entries:
        yield (*path, name)
        yield from places(segment, (*path, name))


@pytest.mark.parametrize("protocol", WHOLE, ids=["chat", "responses", "messages"])
def test_any_change_of_a_request_is_read_or_refused(protocol):
    draws, read = random.Random(0), 0
    for _ in range(800):
        body = copy.deepcopy(WHOLE[protocol])
        for _ in range(draws.choice([1, 1, 2])):
            *path, last = draws.choice(list(places(body)))
            full = body
            for name in path:
                full = full[name]
            full[last] = copy.deepcopy(draws.choice(ODD))
        try:
            request = _prepare(protocol, bytearray(json.dumps(body).encode()))
        except GatewayError as error:
            assert error.status == 400 and str(error).isprintable()
            continue
        Conversations().add_request(request)
        for completion in (Completion("hi"), Completion("", [CALL], "tool_calls")):
            json.dumps(protocol.answer(request, [completion], "x"))
            protocol.stream(request, [completion], "x")
        read += 1
    assert 50 < read < 600
