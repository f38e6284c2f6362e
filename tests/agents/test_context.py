"""Prompts extend earlier tokens by the text of the chat template."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from gagpo.agents.context import Context, Interface
from gagpo.agents.encoding import TextEncoder
from gagpo.agents.prompts import find_prompt
from gagpo.agents.rollout import derive_seed
from gagpo.base.errors import InvalidArgument
from gagpo.data import Turn
from gagpo.sft.conversation_template import ConversationTemplate
from tests.rejections import rejects


@pytest.fixture
def tokenizer(tiny):
    return tiny[1]


def played(context, *pairs):
    """Turns whose responses are as an engine would have written them."""
    turns = []
    for observation, response in pairs:
        prompt_ids, response_ids = context.prompt(turns, observation), context.response(response)
        turns.append(Turn(observation, response, response, prompt_ids=prompt_ids, response_ids=response_ids))
    return turns


def test_a_conversation_is_what_the_template_renders(tokenizer):
    context = Context(tokenizer, find_prompt("plain"))
    turns = played(context, ("You stand at 3.", "left"), ("You stand at 2.", "right"))
    prompt = context.prompt(turns, "You stand at 3.")
    chat = [("user", "You stand at 3."), ("assistant", "left"), ("user", "You stand at 2."), ("assistant", "right")]
    chat.append(("user", "You stand at 3."))
    messages = [{"role": role, "content": content} for role, content in chat]
    assert tokenizer.decode(prompt) == tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True
    )


def test_each_prompt_extends_the_last_prompt_and_response(tokenizer):
    context = Context(tokenizer, find_prompt("tags"), interface=Interface("Walk."), admissible=True)
    turns = played(context, ("You stand at 3.", "hm <action>left</action>"), ("You stand at 2.", "right"))
    for before, after in pairwise(turns):
        row = np.concatenate([before.prompt_ids, before.response_ids])
        assert after.prompt_ids[: len(row)].tolist() == row.tolist()


def test_response_tokens_are_never_encoded_again(tokenizer):
    """Ids that would encode differently (here: single bytes) are never re-encoded."""
    context = Context(tokenizer, find_prompt("plain"))
    turns = played(context, ("You stand at 3.", "left"))
    letters = [tokenizer.convert_tokens_to_ids(letter) for letter in "left"]
    turns[0] = replace(turns[0], response_ids=np.array([*letters, tokenizer.eos_token_id], np.int32))
    prompt = context.prompt(turns, "You stand at 2.")
    start = len(turns[0].prompt_ids)
    assert prompt[start : start + 5].tolist() == turns[0].response_ids.tolist()


def test_a_response_cut_at_its_limit_gets_the_end_token_of_the_template(tokenizer):
    context = Context(tokenizer, find_prompt("plain"))
    turns = played(context, ("You stand at 3.", "left"))
    turns[0] = replace(turns[0], response_ids=turns[0].response_ids[:-1])
    assert "left<|end|><|user|>You stand at 2." in tokenizer.decode(context.prompt(turns, "You stand at 2."))


def test_a_template_that_rewrites_earlier_answers_still_appends(tokenizer):
    """Templates of reasoning models strip thoughts from the history; what the engine wrote must stay."""
    tokenizer.chat_template = (
        "{% for m in messages %}<|{{ m.role }}|>{{ m.content.split('</think>')[-1] }}<|end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    context = Context(tokenizer, find_prompt("plain"))
    turns = played(context, ("You stand at 3.", "so<think>hm</think>left"))
    text = tokenizer.decode(context.prompt(turns, "You stand at 2."))
    assert text.endswith("so<think>hm</think>left<|end|>\n<|user|>You stand at 2.<|end|>\n<|assistant|>")


@pytest.mark.parametrize("special", [True, False])
def test_thoughts_are_no_actions_even_if_their_marks_are_special_tokens(tokenizer, special):
    if special:
        tokenizer.add_special_tokens({"additional_special_tokens": ["<think>", "</think>"]})
    context = Context(tokenizer, find_prompt("tags"))
    for response, action in {
        "<think>I could <action>look</action> but</think> no": "",
        "<action>look</action>? No.</think><action>go</action>": "go",
        "<think>or <action>look</action>": "",
    }.items():
        turn = context.turn(context.response(response))
        assert (turn.action, turn.response) == (action, response)


@pytest.mark.parametrize("width", [0, 1, 2])
def test_a_window_shows_the_last_turns_and_the_task(tokenizer, width):
    context = Context(tokenizer, find_prompt("plain"), history=width)
    turns = played(context, ("Task: door 3.", "left"), ("at 2", "left"), ("at 1", "right"))
    text = tokenizer.decode(context.prompt(turns, "at 2 again"))
    output = ["at 2", "at 1"][2 - width :] if width else []
    assert text.startswith("<|user|>Task: door 3.") and "at 2 again" in text
    assert [word for word in ("at 2\n", "at 1\n") if word in text] == [f"{word}\n" for word in output]


def test_admissible_actions_are_listed_only_when_asked(tokenizer):
    requests, silent = (Context(tokenizer, find_prompt("plain"), admissible=flag) for flag in (True, False))
    assert "left, right" in tokenizer.decode(requests.prompt([], "at 2", ["left", "right"]))
    assert "left, right" not in tokenizer.decode(silent.prompt([], "at 2", ["left", "right"]))


def test_braces_in_observations_are_only_text(tokenizer):
    context = Context(tokenizer, find_prompt("tags"), interface=Interface("Use {x} and {0}."))
    assert "{observation} {}" in tokenizer.decode(context.prompt([], "{observation} {}"))


def test_a_wrong_history_is_refused(tokenizer):
    with rejects(ValueError, "full", key="history"):
        Context(tokenizer, find_prompt("plain"), history="all")


def test_seeds_depend_on_every_part():
    assert derive_seed(1, "a", 2) == derive_seed(1, "a", 2)
    assert len({derive_seed(1, "a", 2), derive_seed(1, "a", 3), derive_seed(2, "a", 2), derive_seed(1, "a2")}) == 4


def test_a_response_cut_after_an_angle_bracket_keeps_the_end_marker_whole(tokenizer):
    """``<`` is a prefix of ``<|end|>``: taking it away from what follows would leave ``|end|>`` as text."""
    context = Context(tokenizer, find_prompt("plain"))
    turns = played(context, ("You stand at 3.", "left"))
    bracket = tokenizer.encode("<", add_special_tokens=False)
    turns[0] = replace(turns[0], response_ids=np.array([*turns[0].response_ids[:-1], *bracket], np.int32))
    prompt = context.prompt(turns, "You stand at 2.")
    first = len(turns[0].prompt_ids) + len(turns[0].response_ids)
    assert prompt[first] == tokenizer.eos_token_id


def test_the_date_is_fixed_and_variables_reach_the_template(tokenizer):
    tokenizer.chat_template = (
        "{{ strftime_now('%Y-%m-%d') }} {{ date_string }} {{ enable_thinking }}"
        "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}<|assistant|>"
    )
    template = {"date": "2031-05-09", "enable_thinking": False}
    text = tokenizer.decode(Context(tokenizer, find_prompt("plain"), template=template).prompt([], "at 2"))
    assert text.startswith("2031-05-09 09 May 2031 False")
    assert "2026-01-01 01 Jan 2026" in tokenizer.decode(Context(tokenizer, find_prompt("plain")).prompt([], "at 2"))
    with rejects(ValueError, key="context.template.date"):
        Context(tokenizer, find_prompt("plain"), template={"date": "today"})


@pytest.mark.parametrize(
    ("template", "name", "advice"),
    [
        ({"enable_thinkng": True}, "'enable_thinkng'", "nearest: enable_thinking"),
        ({"enable_thinking": True, "xyz": 1}, "'xyz'", "remove it"),
        ({"thinking_budget": 5}, "'thinking_budget'", "remove it"),  # only in its text
    ],
)
def test_a_variable_that_the_template_never_uses_is_named(tokenizer, template, name, advice):
    tokenizer.chat_template = "thinking_budget{% if enable_thinking %}think{% endif %}" + tokenizer.chat_template
    assert Context(tokenizer, find_prompt("plain"), template={"enable_thinking": False, "date": "2031-05-09"})
    with rejects(InvalidArgument, name, key="context.template", advice=advice):
        Context(tokenizer, find_prompt("plain"), template=template)
    with rejects(InvalidArgument, name, key="context.template", advice=advice):
        ConversationTemplate(TextEncoder(tokenizer), template, "auto")


def test_a_demonstration_ends_as_the_template_ends_a_message(tokenizer):
    """Gemma's tokenizer ends with ``<eos>``, its template with ``<end_of_turn>``."""
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|eot|>"]})
    tokenizer.chat_template = tokenizer.chat_template.replace("<|end|>", "<|eot|>\n")
    context = Context(tokenizer, find_prompt("plain"))
    (turn,) = played(context, ("You stand at 3.", "left"))
    assert tokenizer.decode(turn.response_ids) == "left<|eot|>"
    assert "left<|eot|>\n" in tokenizer.decode(context.prompt([turn], "You stand at 2."))


def test_stop_tokens_include_the_end_of_turn_of_the_template(tokenizer):
    from gagpo.agents.engines.base import stop_tokens

    tokenizer.add_special_tokens({"additional_special_tokens": ["<|eot|>", "<|return|>"]})
    eot, returned = tokenizer.convert_tokens_to_ids(["<|eot|>", "<|return|>"])
    tokenizer.chat_template = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|eot|>\n{% endfor %}"
    assert stop_tokens(tokenizer) == sorted([tokenizer.eos_token_id, eot])
    # A model with channels ends its thoughts with the token that its template puts after an answer.
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|channel|>"]})
    tokenizer.eos_token = "<|return|>"
    assert stop_tokens(tokenizer) == [returned]
