"""Prompts extend earlier tokens under the chat templates of public model families."""

from itertools import pairwise

import numpy as np
import pytest

from gagpo.agents.context import Context
from gagpo.agents.engines.base import stop_tokens
from gagpo.agents.prompts import find_prompt
from gagpo.base.errors import InvalidArgument
from gagpo.data import Turn
from tests.agents.template_families import FAMILIES
from tests.rejections import rejects

SYSTEM = "You walk in a corridor."
SEEN = ["You stand at 3.\nGo to door 1.", "You stand at 2.", "Nothing happens.", "You stand at 1: that is it."]
SAID = ["left", "right <b>", "go left 2"]
NAMES = [family.name for family in FAMILIES]


@pytest.fixture(params=FAMILIES, ids=NAMES)
def family(request):
    return request.param


@pytest.fixture
def tokenizer(tiny, family):
    _, result = tiny
    result.add_special_tokens({"additional_special_tokens": list(family.special)})
    result.eos_token = family.end
    if family.bos:
        result.bos_token = family.bos
    result.chat_template = family.template
    return result


def context_of(tokenizer, family, system):
    prompt = find_prompt("plain").model_copy(update={"system": SYSTEM if system else ""})
    return Context(tokenizer, prompt, template=family.variables)


def conversation(context, family, thinking, cut=()):
    """Turns of an engine; those in ``cut`` have no end token."""
    turns = []
    for number, (observed, messages) in enumerate(zip(SEEN, SAID, strict=False)):
        prompt_ids = context.prompt(turns, observed)
        text = answer(family, messages, thinking) + family.end
        response_ids = np.asarray(context.tokenizer.encode(text, add_special_tokens=False), np.int32)
        if number in cut:
            response_ids = response_ids[:-1]
        turns.append(Turn(observed, messages, messages, prompt_ids=prompt_ids, response_ids=response_ids))
    return turns


def answer(family, said, thinking):
    if family.name == "gpt-oss":
        thought = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant" if thinking else ""
        return f"{thought}<|channel|>final<|message|>{said}"
    if family.name == "Mistral 7B":
        said = f" {said}"  # its template writes the space that the model says
    if not thinking:
        return said
    if family.name == "DeepSeek-R1":
        return f"hm</think>\n\n{said}"
    return f"{' ' * said.startswith(' ')}<think>\nhm\n</think>\n\n{said.lstrip()}"


def kept(tokenizer, family, response):
    """The part of a response that stays in the history: without the end token of gpt-oss."""
    ended = tokenizer.convert_tokens_to_ids(family.end)
    return response[:-1] if family.name == "gpt-oss" and response[-1] == ended else response


def rendered(tokenizer, context, chat):
    return tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True, **context._variables)


@pytest.mark.parametrize("system", [False, True], ids=["plain", "system"])
@pytest.mark.parametrize("thinking", [False, True], ids=["bare", "thinking"])
@pytest.mark.parametrize("cut", [(), (0, 2)], ids=["ended", "cut"])
def test_prompts_extend_what_was_read_and_written_and_are_what_the_template_renders(
    tokenizer, family, system, thinking, cut
):
    """Every prompt begins with the earlier tokens, and reads as the template renders it, except for kept thoughts."""
    context = context_of(tokenizer, family, system)
    turns = conversation(context, family, thinking, cut)
    last = Turn(SEEN[3], "", "", prompt_ids=context.prompt(turns, SEEN[3]))
    for before, after in pairwise([*turns, last]):
        row = np.concatenate([before.prompt_ids, kept(tokenizer, family, before.response_ids)])
        assert after.prompt_ids[: len(row)].tolist() == row.tolist()
    reported = kept(tokenizer, family, turns[-1].response_ids)
    new = tokenizer.decode(last.prompt_ids[len(turns[-1].prompt_ids) + len(reported) :])
    assert new.count(SEEN[3]) == 1 and SYSTEM not in new and tokenizer.decode(last.prompt_ids).count(SYSTEM) == system

    text = tokenizer.decode(last.prompt_ids)
    if family.strips:  # thoughts stay in the prompt, since what was written is what is trained on
        assert not thinking or all(answer(family, messages, thinking) in text for messages in SAID)
    chat = [{"role": "user", "content": SEEN[0]}]
    for messages, observed in zip(SAID, SEEN[1:], strict=True):
        full = answer(family, messages, thinking)
        if family.strips:
            text = text.replace(full, messages)
        requests = rendered(tokenizer, context, [{"role": "user", "content": "?"}])
        if family.name in ("DeepSeek-R1", "Qwen3 without thinking"):  # their prompts open, or close, the thought
            opened = "<think>" + requests.rpartition("<think>")[2]
            text = text.replace(opened + messages, messages)
        content = messages if family.strips else full.removeprefix(" ") if family.name == "Mistral 7B" else full
        chat += [{"role": "assistant", "content": content}, {"role": "user", "content": observed}]
    if family.name == "gpt-oss":  # its template writes the channel of what it strips
        text = text.replace("assistantleft", "assistant<|channel|>final<|message|>left")
        for messages in SAID:
            text = text.replace(
                f"<|start|>assistant{messages}", f"<|start|>assistant<|channel|>final<|message|>{messages}"
            )
    if system and family.system == "kept":
        chat = [{"role": "system", "content": SYSTEM}, *chat]
    elif system:  # the first words of all, which a template that puts them last would have moved with every turn
        chat[0]["content"] = f"{SYSTEM}\n\n{chat[0]['content']}"
    assert text == rendered(tokenizer, context, chat)


BROKEN = {
    "raises": ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
    "is not Jinja": ("{% for m in messages %}{{ m.content }", "unexpected '}'"),
    "is undefined": ("{{ foo.bar }}", "'foo' is undefined"),
    "adds types": ("{{ messages + 1 }}", "concatenate list"),
    "recurs": ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion depth"),
    "is empty": ("", "user's message"),
    "shows no answer": ("{{ messages[-1].content }}<|assistant|>", "every message"),
    "takes one turn": ("{% if messages|length > 1 %}{{ 1/0 }}{% endif %}{{ messages[0].content }}", "division"),
}


@pytest.mark.parametrize(("template", "name"), BROKEN.values(), ids=BROKEN)
def test_a_template_that_fails_is_one_line_that_names_the_model(tiny, template, name):
    tiny[1].chat_template, tiny[1].name_or_path = template, "models/mine"
    with rejects(InvalidArgument, name, where="models/mine", advice="chat_template.jinja"):
        Context(tiny[1], find_prompt("plain"))


def test_an_answer_ends_where_the_template_ends_it(tokenizer, family):
    stops = stop_tokens(tokenizer)
    assert tokenizer.convert_tokens_to_ids(family.end) in stops
    if family.name == "gpt-oss":
        assert tokenizer.convert_tokens_to_ids("<|end|>") not in stops
