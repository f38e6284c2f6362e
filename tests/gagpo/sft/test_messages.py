"""Demonstrations from files: conversations in the messages form, and episodes."""

import json
import os
from dataclasses import replace
from operator import attrgetter

import numpy as np
import pytest
import torch

from gagpo.agents.chat_template import render, variables
from gagpo.agents.program_context import ProgramContext
from gagpo.agents.prompts import find_prompt
from gagpo.base.errors import InvalidArgument
from gagpo.data import Episode, Turn, write_episodes
from gagpo.model.loading import load_model, load_tokenizer
from gagpo.settings import SettingsError, load
from gagpo.settings.derived import RECIPE
from gagpo.sft.messages import read_messages
from gagpo.sft.rows import RESPONSE, SKIPPED, labelled_rows
from gagpo.sft.run import prepare, sft
from tests.agents.template_families import FAMILIES, Family
from tests.agents.test_described_tools import CALL, PRICE, WITHOUT_TOOLS, dressed
from tests.agents.test_program_context import Talk, user
from tests.rejections import rejects

TALK = [
    {"role": "user", "content": "cell 2 of 5"},
    {"role": "assistant", "content": "right"},
    {"role": "user", "content": "cell 3 of 5"},
    {"role": "assistant", "content": "right"},
]
CALLS = [
    {"role": "user", "content": "2 + 3?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"type": "function", "function": {"name": "add", "arguments": '{"a": 2, "b": 3}'}}],
    },
    {"role": "tool", "content": "5"},
    {"role": "assistant", "content": "It is 5."},
]


@pytest.fixture
def stored(tmp_path):
    """Write rows of messages; returns the file."""

    def store(*conversations, **more):
        path = tmp_path / "talk.jsonl"
        path.write_text(
            "".join(json.dumps({"messages": conversation, **more}) + "\n\n" for conversation in conversations)
        )
        return path

    return store


def test_a_conversation_is_one_row_and_its_answers_are_imitated(stored, tiny):
    _, tokenizer = tiny
    (episode,) = read_messages(stored(TALK), tokenizer, 10)
    (row,) = labelled_rows(episode)
    apply_chat_template = tokenizer.apply_chat_template(TALK, tokenize=False)
    assert tokenizer.decode(row.ids) == apply_chat_template.removesuffix("\n")
    imitated = tokenizer.decode(row.ids[row.kind_L == RESPONSE])
    assert imitated == 2 * f"right{tokenizer.eos_token}"
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|eot|>"]})
    tokenizer.chat_template = tokenizer.chat_template.replace("<|end|>", "<|eot|>\n")
    (row,) = labelled_rows(*read_messages(stored(TALK), tokenizer, 10))
    assert tokenizer.decode(row.ids[row.kind_L == RESPONSE]) == 2 * "right<|eot|>"


def test_tool_calls_are_written_as_the_template_writes_them(stored, tiny):
    _, tokenizer = tiny
    (episode,) = read_messages(stored(CALLS), tokenizer, 10)
    call, messages = (tokenizer.decode(turn.response_ids) for turn in episode.turns)
    assert json.loads(call.split("<tool_call>")[1].split("</tool_call>")[0]) == {
        "name": "add",
        "arguments": {"a": 2, "b": 3},
    }
    assert messages == f"It is 5.{tokenizer.eos_token}" and len(labelled_rows(episode)) == 1


def test_a_template_that_drops_earlier_messages_gives_every_answer_a_row(stored, tiny):
    _, tokenizer = tiny
    retained, tokenizer.chat_template = (
        tokenizer.chat_template,
        "{{ messages[-1].content if messages[-1].role == 'user' else messages[-2].content + '!' + messages[-1].content "
        "+ eos_token }}{{ '!' if add_generation_prompt }}",
    )
    try:
        (episode,) = read_messages(stored(TALK), tokenizer, 10)
    finally:
        tokenizer.chat_template = retained
    assert [tokenizer.decode(row.ids) for row in labelled_rows(episode)] == [
        f"cell {number} of 5!right{tokenizer.eos_token}" for number in (2, 3)
    ]


def test_text_that_spells_a_control_token_stays_text(stored, tiny):
    _, tokenizer = tiny
    end = tokenizer.eos_token
    hostile = [{"role": "user", "content": f"a{end}b"}, {"role": "assistant", "content": f"c{end}d"}]
    (episode,) = read_messages(stored(hostile), tokenizer, 10)
    (row,) = labelled_rows(episode)
    assert f"a{end}b" in tokenizer.decode(row.ids) and f"c{end}d" in tokenizer.decode(row.ids)
    assert (row.ids == tokenizer.eos_token_id).sum() == 2  # one after each message


TURNED = (  # written after an answer only if another message follows
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% if not loop.last %}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|end|><|assistant|>{% endif %}"
)
PLAIN = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
OPEN_TEMPLATES = [
    Family("no tokens", PLAIN, "</s>", ("</s>",)),
    Family("closed by the next message", TURNED, "<|end|>", ("<|user|>", "<|assistant|>", "<|end|>")),
]
OPENS_A_THOUGHT = ("DeepSeek-R1", "Qwen3 without thinking")
"""Families whose prompts go on with a thought, which an answer without one does not continue."""


@pytest.fixture
def of_family(tiny):
    """Gives the tokenizer a family's template."""

    def of_family(family):
        _, tokenizer = tiny
        tokenizer.add_special_tokens({"additional_special_tokens": list(family.special)})
        tokenizer.eos_token, tokenizer.bos_token = family.end, family.bos
        tokenizer.chat_template = family.template
        return tokenizer

    return of_family


@pytest.mark.parametrize(
    "family",
    [family for family in [*FAMILIES, *OPEN_TEMPLATES] if family.name not in OPENS_A_THOUGHT],
    ids=lambda family: family.name,
)
def test_every_answer_ends_with_the_end_token_of_its_family(stored, of_family, family):
    tokenizer = of_family(family)
    (episode,) = read_messages(stored(TALK), tokenizer, 10)
    ends = [tokenizer.decode(turn.response_ids) for turn in episode.turns]
    expected = f"right\n{family.end}" if family.name == "no tokens" else f"right{family.end}"
    assert all(end.endswith(expected) for end in ends)
    first, second = episode.turns
    text = tokenizer.decode(second.prompt_ids)
    expected_prompt = render(
        tokenizer, TALK[:3], add_generation_prompt=True, **variables({})
    )  # the date of prompts in RL
    if family.name == "no tokens":
        text = text.replace(family.end, "")  # the history omits it, as prompts of RL do
    assert text == expected_prompt
    if family.name != "gpt-oss":  # its history has another token there
        row = np.concatenate([first.prompt_ids, first.response_ids])
        assert second.prompt_ids[: len(row)].tolist() == row.tolist() and len(labelled_rows(episode)) == 1


def test_a_call_ends_with_the_token_of_its_answer(stored, of_family):
    """GLM-4 writes no end after a call: the model ends it with the token that begins the tool's answer."""
    template = (
        "[gMASK]<sop>{% for tool in tools or [] %}{{ tool.function.name }}{% endfor %}"
        "{% for m in messages %}<|{{ 'observation' if m.role == 'tool' else m.role }}|>\n{{ m.content }}"
        "{% for call in m.tool_calls %}{{ call.function.name }}{% endfor %}{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
    )
    special = ("<|user|>", "<|assistant|>", "<|observation|>", "[gMASK]", "<sop>")
    tokenizer = of_family(Family("GLM-4 with tools", template, "<|user|>", special))
    for talk in (CALLS, CALLS[:2]):
        episode, *_ = read_messages(stored(talk), tokenizer, 10)
        ends = [tokenizer.decode(turn.response_ids[-1:]) for turn in episode.turns]
        assert ends == ["<|observation|>", "<|user|>"][: len(ends)]
        assert len(labelled_rows(episode)) == 1


@pytest.mark.parametrize(
    "family", [family for family in WITHOUT_TOOLS if family.name not in OPENS_A_THOUGHT], ids=attrgetter("name")
)
def test_tools_that_a_template_does_not_show_are_described_as_to_a_program(stored, tiny, family):
    tokenizer = dressed(tiny[1], family)
    function = {"name": "price", "arguments": '{"item": "lamp"}'}
    question = [{"role": "system", "content": "You sell things."}, user("How much?")]
    conversation = [
        {"role": "assistant", "content": "Let me see.", "weight": 0},
        user("Well?"),
        {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": function}]},
        {"role": "tool", "content": "5 coins"},
        {"role": "assistant", "content": "Five."},
    ]
    path = stored([*question, *conversation], tools=[PRICE])
    (episode,) = read_messages(path, tokenizer, 10, variables=family.variables)
    talk = Talk(ProgramContext(tokenizer, find_prompt("plain"), family.variables))
    request = talk.ask(*question, tools=[PRICE])
    assert tokenizer.decode(episode.turns[0].prompt_ids) == tokenizer.decode(request.prompt_ids)
    assert [turn.trainable for turn in episode.turns] == [False, True, True]
    call, answer = (tokenizer.decode(turn.response_ids).strip() for turn in episode.turns[1:])
    assert (call, answer) == (f"{CALL}{family.end}", f"Five.{family.end}")
    assert "<tool_response>\n5 coins\n</tool_response>" in tokenizer.decode(episode.turns[2].prompt_ids)


def test_an_answer_that_the_template_does_not_show_is_refused(stored, tiny):
    _, tokenizer = tiny
    tokenizer.chat_template = (
        "{% for m in messages %}<|{{ m.role }}|>{{ m.content if m.role == 'user' }}<|end|>{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    with rejects(InvalidArgument, key="messages[1]", where="talk.jsonl, line 1"):
        read_messages(stored(TALK), tokenizer, 10)


@pytest.mark.parametrize("key", [{"weight": 0}, {"weight": 0.0}, {"train": False}, {"loss": False, "weight": 0}])
def test_a_message_without_weight_is_read_but_not_imitated(stored, tiny, key):
    _, tokenizer = tiny
    talk = [
        {**TALK[0], **dict.fromkeys(key, 0)},
        {**TALK[1], "content": "left", **key},
        TALK[2],
        {**TALK[3], "weight": 1},
    ]
    (episode,) = read_messages(stored(talk), tokenizer, 10)
    (row,) = labelled_rows(episode, SKIPPED)
    assert tokenizer.decode(row.ids[row.kind_L == RESPONSE]) == f"right{tokenizer.eos_token}"
    assert "left" in tokenizer.decode(row.ids[row.kind_L == SKIPPED])
    (plain,) = labelled_rows(
        *read_messages(stored([TALK[0], {**TALK[1], "content": "left"}, *TALK[2:]]), tokenizer, 10)
    )
    assert row.ids.tolist() == plain.ids.tolist()


def test_a_message_without_weight_is_not_predicted_at_all(corridor, warm_model, stored, tmp_path):
    path = stored([TALK[0], {**TALK[1], "weight": 0}, *TALK[2:]])
    changes = [f"model={tmp_path / 'm'}", f"sft.data={path}", f"sft.base_model={warm_model}", "sft.observations=1"]
    _, tokenizer, (row,) = prepare(load(corridor(), changes), tmp_path / "work", {}, quiet=True)
    assert f"right{tokenizer.eos_token}" in tokenizer.decode(row.ids[row.kind_L == SKIPPED])


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["a pipe", "a folder"])
def test_data_that_is_not_a_file_is_refused(corridor, warm_model, tmp_path, make):
    make(tmp_path / "data.jsonl")
    changes = [f"model={tmp_path / 'm'}", f"sft.data={tmp_path / 'data.jsonl'}", f"sft.base_model={warm_model}"]
    with rejects(InvalidArgument, key="sft.data"):
        prepare(load(corridor(), changes), tmp_path / "work", {}, quiet=True)


def test_other_texts_of_a_message_become_no_control_tokens(stored, tiny):
    _, tokenizer = tiny
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.note }}{{ m.content }}{{ eos_token if m.role == 'assistant' }}{% endfor %}"
    )
    talk = [{**TALK[0], "note": f"a{tokenizer.eos_token}b"}, TALK[1]]
    (episode,) = read_messages(stored(talk), tokenizer, 10)
    assert tokenizer.eos_token_id not in episode.turns[0].prompt_ids
    assert f"a{tokenizer.eos_token}b" in tokenizer.decode(episode.turns[0].prompt_ids)


def said_by(**message):
    return json.dumps({"messages": [TALK[0], {**TALK[1], **message}]})


@pytest.mark.parametrize(
    ("line", "key", "names"),
    [
        (
            r'{"messages": [{"role": "user", "content": "a \ud83d"}, {"role": "assistant", "content": "b"}]}',
            None,
            ("half a character", "\\\\ud83d"),
        ),
        (
            r'{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "\udc00b"}]}',
            None,
            ("line 2",),
        ),
        (
            r'{"messages": [{"role": "user", "content": "a"}], "tools": [{"name": "\ud800"}]}',
            None,
            ("line 2",),
        ),
        (
            said_by(tool_calls=[{"function": {"name": "f", "arguments": r'{"a": "\ud83d"}'}}]),
            "tool_calls",
            ("line 2",),
        ),
        (said_by(weight=0), None, ("weight 0",)),
        (said_by(weight=0.5), "messages[1].weight", ("got 0.5",)),
        (said_by(train="no"), "messages[1].train", ("got 'no'",)),
        (said_by(weight=1, loss=False), None, ("messages[1]", "weight and loss")),
        (said_by(loss_mask=0), "messages[1].loss_mask", ("weight: 0",)),
        (
            json.dumps({"messages": [{**TALK[0], "weight": 1}, TALK[1]]}),
            "messages[0].weight",
            (),
        ),
        (json.dumps({"messages": TALK, "weight": 0}), "weight", ("weight = 0",)),
        ("{", None, ("JSON",)),
        ("[]", None, ("an object",)),
        ('{"messages": []}', "messages", ("a list",)),
        ('{"messages": [{"role": "robot", "content": "x"}]}', "messages[0].role", ()),
        ('{"messages": [{"role": "user", "content": 5}]}', "messages[0].content", ("a text",)),
        ('{"messages": [{"role": "user", "content": "x"}]}', None, ("imitate",)),
        ('{"messages": [{"role": "assistant", "content": "x"}]}', "messages[0]", ()),
        (
            '{"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": ""}]}',
            "messages[1].content",
            (),
        ),
        (
            '{"messages": [{"role": "user", "content": "x", "tool_calls": []}]}',
            "messages[0].tool_calls",
            (),
        ),
        (
            '{"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [{"name": "f"}]}]}',
            "messages[1].tool_calls",
            ("function.name",),
        ),
        ('{"messages": [{"role": "user", "content": "x"}], "tools": "add"}', "tools", ("a list",)),
    ],
)
def test_the_first_wrong_row_is_named_with_its_line_and_key(stored, tiny, line, key, names):
    path = stored(TALK)
    path.write_text(path.read_text().strip() + "\n" + line + "\n")
    with rejects(InvalidArgument, *names, key=key, where="talk.jsonl, line 2"):
        read_messages(path, tiny[1], 10)


def test_a_template_that_raises_names_the_row(stored, tiny):
    _, tokenizer = tiny
    retained, tokenizer.chat_template = tokenizer.chat_template, "{{ raise_exception('roles must alternate') }}"
    try:
        with rejects(InvalidArgument, "roles must alternate", where="talk.jsonl, line 1"):
            read_messages(stored(TALK), tokenizer, 10)
    finally:
        tokenizer.chat_template = retained


def test_conversations_train_a_pretrained_model_and_the_best_one_is_kept(corridor, warm_model, stored, tmp_path):
    path = stored(*[TALK] * 8)
    changes = [f"model={tmp_path / 'm'}", f"sft.data={path}", "sft.steps=4", "sft.every=2", "sft.batch=4"]
    with rejects(InvalidArgument, "sft.base_model", key="sft.data"):
        sft(load(corridor(), changes), quiet=True)
    messages = []
    folder = sft(load(corridor(), [*changes, f"sft.base_model={warm_model}"]), quiet=True, say=messages.append)
    record = json.loads((folder / RECIPE).read_text())
    assert [one["step"] for one in record["measured"]] == [2, 4]
    assert any(line.startswith("step 2: wins") and "demonstrations" not in line for line in messages)
    retained = max(record["measured"], key=lambda one: one["success"])["step"]
    assert (f"the model of step {retained} is kept" in messages) == (retained != 4)
    trained = load_model(str(folder)).state_dict()
    assert not all(torch.equal(value, trained[name]) for name, value in load_model(warm_model).state_dict().items())


def test_successful_episodes_of_a_file_are_imitated(corridor, warm_model, tmp_path):
    def played(task, success, valid=True):
        turn = Turn("cell 2 of 5", "right", "right", invalid="" if valid else "refused")
        return Episode(task, turns=[turn], success=success, outcome="terminated")

    write_episodes(tmp_path / "e.jsonl", [played("a", True), played("b", False), played("c", True, valid=False)])
    settings = load(
        corridor(), [f"model={tmp_path / 'm'}", f"sft.data={tmp_path / 'e.jsonl'}", f"sft.base_model={warm_model}"]
    )
    _, tokenizer, rows = prepare(settings, tmp_path / "work", {}, quiet=True)
    (row,) = rows  # the third episode has no valid turn, so nothing in it is imitated
    assert tokenizer.decode(row.ids[row.kind_L == RESPONSE]) == f"right{tokenizer.eos_token}"
    write_episodes(tmp_path / "e.jsonl", [played("b", False)])
    with rejects(InvalidArgument, "successful", where="e.jsonl"):
        prepare(settings, tmp_path / "other", {}, quiet=True)
    half = played("a", True)
    half.turns[0] = replace(half.turns[0], observation="a \ud83d")
    write_episodes(tmp_path / "e.jsonl", [played("b", False), half])
    with rejects(InvalidArgument, "half a character", where="e.jsonl, line 2"):
        prepare(settings, tmp_path / "other", {}, quiet=True)


def test_an_adapter_is_trained_and_merged(corridor, warm_model, tmp_path):
    pytest.importorskip("peft")
    changes = [f"model={tmp_path / 'm'}", "sft.steps=3", "sft.batch=4", "sft.episodes=16", "sft.lora=2"]
    with rejects(SettingsError, key="sft.lora"):
        load(corridor(), changes)
    folder = sft(load(corridor(), [*changes, f"sft.base_model={warm_model}"]), quiet=True)
    before, after = load_model(warm_model).state_dict(), load_model(str(folder)).state_dict()
    changed = {name for name, value in before.items() if not torch.equal(value, after[name])}
    assert changed and all(name.endswith("proj.weight") for name in changed)
    rank = np.linalg.matrix_rank((after[min(changed)] - before[min(changed)]).numpy(), tol=1e-5)
    assert rank <= 2 and load_tokenizer(str(folder)).chat_template == load_tokenizer(warm_model).chat_template
