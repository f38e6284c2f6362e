"""Conversations of clients become the prompts of training, in this process and by the template of an exported model."""

import copy

import numpy as np
import pytest

from gagpo.agents.context import Context, Interface
from gagpo.agents.engines.base import Response
from gagpo.agents.exported_template import exported_template
from gagpo.agents.program_context import ProgramContext
from gagpo.agents.prompts import find_prompt, prompt_of, shipped_prompts
from gagpo.agents.trained_chat import ServedContext
from gagpo.data.turn import NO_LOGPROBS
from gagpo.envs.gateway.conversations import Conversations
from gagpo.envs.gateway.messages import ChatRequest, Completion
from gagpo.envs.tools import Tool
from tests.agents.template_families import FAMILIES
from tests.agents.test_described_tools import dressed

OBSERVATIONS = ("You are in a 'hall'.\nA bell {{ is }} here.", "It rings. <think>", "Done? Yes \\n.")
PRICE = Tool("price", "What it costs, if any.", {"type": "object", "properties": {"item": {"type": "string"}}})
WITH_TOOLS = (
    "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for call in m.tool_calls or [] %}<tool_call>\n"
    "{{ call.function | tojson }}\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
FAMILY = {family.name: family for family in FAMILIES}


class Conversation:
    """A client and the served model, which shows its requests by ``context``."""

    def __init__(self, context):
        self.context, self.conversations, self.turns, self.messages = context, Conversations(), [], []

    def ask(self, *messages):
        self.messages += messages
        request = ChatRequest.of({"messages": self.messages})
        add_request = self.conversations.add_request(
            request,
            self.context.complete(request.conversation),
            self.context.tools_for(request.conversation, request.functions),
        )
        self.asked = self.context.ask(self.turns, "", {"request": add_request})
        return self.asked.prompt_ids

    def answer(self, ids):
        turn = self.asked.read(Response(ids, np.zeros(len(ids), np.float32), True))
        self.turns.append(turn)
        completion = Completion.of(turn.completion)
        self.conversations.add_answer(completion)
        self.messages.append(completion.message)


def trained_context(tokenizer, prompt, history="full", template=None, tools=()):
    interface = Interface("Ring the <bell>. It's {{ easy }}.", tools)
    prompt = find_prompt(prompt) if isinstance(prompt, str) else prompt
    return Context(tokenizer, prompt, interface, history, template=template)


def prompts_of_training(context, answers):
    """The prompts of three turns, and the responses after the first two."""
    turns, prompts = [], []
    for observation, answer in zip(OBSERVATIONS, [*answers, ""], strict=True):
        prompts.append(context.prompt(turns, observation))
        ids = context.response(answer)
        turn = context.turn(ids).with_observation(observation, None)
        turns.append(turn._with(prompt_ids=prompts[-1], response_ids=ids, logprobs=NO_LOGPROBS))
    return prompts, [turn.response_ids for turn in turns[:2]]


@pytest.mark.parametrize("history", ["full", 0, 1], ids=str)
@pytest.mark.parametrize("prompt", sorted(shipped_prompts().keys() - {"tools"}))
@pytest.mark.parametrize("family", ["Qwen2.5", "Qwen3"])
def test_a_client_gets_the_prompts_of_training(tiny, family, prompt, history):
    tokenizer = dressed(tiny[1], FAMILY[family])
    context = trained_context(tokenizer, prompt, history)
    prompts, responses = prompts_of_training(context, ["<action>ring bell</action>", "<action>go</action>"])
    client = Conversation(ServedContext(tokenizer, context))
    for observation, expected, ids in zip(OBSERVATIONS, prompts, [*responses, None], strict=True):
        answer = client.ask({"role": "user", "content": observation})
        assert tokenizer.decode(answer) == tokenizer.decode(expected)
        assert answer.tolist() == expected.tolist()
        assert client.asked.stop == context.stop
        if ids is not None:
            client.answer(ids)


def test_a_client_gets_the_tools_of_training_unless_it_words_the_prompt(tiny):
    tokenizer = dressed(tiny[1], FAMILY["Qwen2.5"])
    tokenizer.chat_template = WITH_TOOLS
    context = trained_context(tokenizer, "tools", tools=[PRICE])
    served = ServedContext(tokenizer, context)
    client = Conversation(served)
    question = {"role": "user", "content": OBSERVATIONS[0]}
    assert client.ask(question).tolist() == context.prompt([], OBSERVATIONS[0]).tolist()
    call = '<tool_call>\n{"name": "price", "arguments": {"item": "bell"}}\n</tool_call>'
    client.answer(context.response(call))
    answered = client.messages[-1]["tool_calls"][0]
    assert answered["function"] == {"name": "price", "arguments": {"item": "bell"}}
    turn = context.turn(context.response(call)).with_observation(OBSERVATIONS[0], None).with_answer("5")
    turn = turn._with(prompt_ids=context.prompt([], OBSERVATIONS[0]), response_ids=context.response(call))
    answer = client.ask({"role": "tool", "content": "5", "tool_call_id": answered["id"]})
    assert answer.tolist() == context.prompt([turn], "5").tolist()
    system = {"role": "system", "content": "You sell things."}
    as_sent = Conversation(served)
    text = tokenizer.decode(as_sent.ask(system, question))
    assert "price" not in text and "Ring the" not in text and "You sell things." in text


def test_a_context_of_programs_words_nothing(tiny):
    tokenizer = dressed(tiny[1], FAMILY["Qwen2.5"])
    program = ProgramContext(tokenizer, find_prompt("plain"))
    messages = [{"role": "user", "content": "Hello."}]
    assert ServedContext(tokenizer, program).complete(messages) == messages


def rendered(tokenizer, template, messages, **variables):
    """What another server renders."""
    tokenizer = copy.copy(tokenizer)
    tokenizer.chat_template = template
    return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **variables)


def conversation(*answers):
    messages = []
    for observation, answer in zip(OBSERVATIONS, [*answers, ""], strict=False):
        messages.append({"role": "user", "content": observation})
        messages.append({"role": "assistant", "content": answer})
    return messages[:-1]


@pytest.mark.parametrize("prompt", ["action", "plain", "tags", "whole"])
def test_another_server_renders_the_prompt_of_training(tiny, prompt):
    tokenizer = dressed(tiny[1], FAMILY["Qwen2.5"])
    context = trained_context(tokenizer, prompt)
    template, missing = exported_template(context)
    assert not missing and (template is None) == (prompt == "plain")
    answers = ["<action>ring bell</action>", "<action>go</action>"]
    prompts, _ = prompts_of_training(context, answers)
    for count, expected in enumerate(prompts):
        output = rendered(tokenizer, template or tokenizer.chat_template, conversation(*answers[:count]))
        assert output == tokenizer.decode(expected)


def test_the_template_has_system_message_examples_tools_and_variables(tiny):
    tokenizer = dressed(tiny[1], FAMILY["Qwen2.5"])
    tokenizer.chat_template = WITH_TOOLS + "{% if loud is true %}!{% endif %}"
    values = {"system": "Ring bells; {{ instructions }}", "examples": [], "action": "tools", "name": "mine"}
    context = trained_context(tokenizer, prompt_of(values, "mine"), template={"loud": True}, tools=[PRICE])
    template, missing = exported_template(context)
    expected = tokenizer.decode(context.prompt([], OBSERVATIONS[0]))
    assert not missing and "What it costs, if any." in expected and expected.endswith("!")
    (question,) = conversation()
    assert rendered(tokenizer, template, [question]) == expected
    assert not rendered(tokenizer, template, [question], loud=False).endswith("!")
    reference = [{"role": "system", "content": "You sell."}, question]
    assert rendered(tokenizer, template, reference) == rendered(
        tokenizer, tokenizer.chat_template, reference, loud=True
    )
    tokenizer.chat_template = template
    again = trained_context(tokenizer, prompt_of(values, "mine"), template={"loud": True}, tools=[PRICE])
    assert tokenizer.decode(again.prompt([], OBSERVATIONS[0])) == expected, "gagpo adds the prompt once"
    served = Conversation(ServedContext(tokenizer))
    assert tokenizer.decode(served.ask(question)) == expected


@pytest.mark.parametrize(
    ("prompt", "history", "reason"),
    [("plain", 2, "context.history"), ("think-act", "full", "turns before"), ("tools", "full", "describe the tools")],
)
def test_what_a_template_cannot_show_is_named(tiny, prompt, history, reason):
    tokenizer = dressed(tiny[1], FAMILY["Qwen2.5"])
    template, missing = exported_template(trained_context(tokenizer, prompt, history))
    assert template is None and reason in missing
