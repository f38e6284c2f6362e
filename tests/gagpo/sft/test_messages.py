"""Demonstrations from files: conversations in the messages form, and episodes."""

import json

import numpy as np
import pytest
import torch

from gagpo.agents.episodes import Episode, Turn, write_episodes
from gagpo.agents.model import load_model, load_tokenizer
from gagpo.base.errors import InvalidArgument
from gagpo.settings import SettingsError, load
from gagpo.settings.derived import RECIPE
from gagpo.sft.messages import read_messages
from gagpo.sft.rows import RESPONSE, labelled_rows
from gagpo.sft.run import prepare, sft

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
        path.write_text("".join(json.dumps({"messages": one, **more}) + "\n\n" for one in conversations))
        return path

    return store


def test_a_conversation_is_one_row_and_its_answers_are_imitated(stored, tiny):
    _, tokenizer = tiny
    (episode,) = read_messages(stored(TALK), tokenizer, 10)
    (row,) = labelled_rows(episode)
    whole = tokenizer.apply_chat_template(TALK, tokenize=False)
    assert tokenizer.decode(row.ids) == whole.removesuffix("\n")
    imitated = tokenizer.decode(row.ids[row.kind_L == RESPONSE])
    assert imitated == 2 * f"right{tokenizer.eos_token}"
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|eot|>"]})
    tokenizer.chat_template = tokenizer.chat_template.replace("<|end|>", "<|eot|>\n")
    (row,) = labelled_rows(*read_messages(stored(TALK), tokenizer, 10))
    assert tokenizer.decode(row.ids[row.kind_L == RESPONSE]) == 2 * "right<|eot|>"


def test_tool_calls_are_written_as_the_template_writes_them(stored, tiny):
    _, tokenizer = tiny
    (episode,) = read_messages(stored(CALLS), tokenizer, 10)
    call, said = (tokenizer.decode(turn.response_ids) for turn in episode.turns)
    assert json.loads(call.split("<tool_call>")[1].split("</tool_call>")[0]) == {
        "name": "add",
        "arguments": {"a": 2, "b": 3},
    }
    assert said == f"It is 5.{tokenizer.eos_token}" and len(labelled_rows(episode)) == 1


def test_a_template_that_drops_earlier_messages_gives_every_answer_a_row(stored, tiny):
    _, tokenizer = tiny
    kept, tokenizer.chat_template = (
        tokenizer.chat_template,
        "{{ messages[-1].content if messages[-1].role == 'user' else messages[-2].content + '!' + messages[-1].content "
        "+ eos_token }}{{ '!' if add_generation_prompt }}",
    )
    try:
        (episode,) = read_messages(stored(TALK), tokenizer, 10)
    finally:
        tokenizer.chat_template = kept
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


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 2: not JSON"),
        ("[]", "line 2: must be an object"),
        ('{"messages": []}', "line 2: messages must be a list"),
        ('{"messages": [{"role": "robot", "content": "x"}]}', r"messages\[0\]\.role must be one of"),
        ('{"messages": [{"role": "user", "content": 5}]}', r"messages\[0\]\.content must be a text"),
        ('{"messages": [{"role": "user", "content": "x"}]}', "nothing to imitate"),
        ('{"messages": [{"role": "assistant", "content": "x"}]}', r"messages\[0\] must be of the role"),
        (
            '{"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": ""}]}',
            r"messages\[1\]\.content is empty",
        ),
        (
            '{"messages": [{"role": "user", "content": "x", "tool_calls": []}]}',
            r"messages\[0\]\.tool_calls: only an assistant",
        ),
        (
            '{"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [{"name": "f"}]}]}',
            "function.name",
        ),
        ('{"messages": [{"role": "user", "content": "x"}], "tools": "add"}', "tools must be a list"),
    ],
)
def test_the_first_wrong_row_is_named_with_its_line_and_key(stored, tiny, line, said):
    path = stored(TALK)
    path.write_text(path.read_text().strip() + "\n" + line + "\n")
    with pytest.raises(InvalidArgument, match=f"talk.jsonl, .*{said}"):
        read_messages(path, tiny[1], 10)


def test_a_template_that_raises_names_the_row(stored, tiny):
    _, tokenizer = tiny
    kept, tokenizer.chat_template = tokenizer.chat_template, "{{ raise_exception('roles must alternate') }}"
    try:
        with pytest.raises(InvalidArgument, match=r"line 1: .*refuses it: roles must alternate"):
            read_messages(stored(TALK), tokenizer, 10)
    finally:
        tokenizer.chat_template = kept


def test_conversations_train_a_pretrained_model_and_the_best_one_is_kept(corridor, warm_model, stored, tmp_path):
    path = stored(*[TALK] * 8)
    changes = [f"model={tmp_path / 'm'}", f"sft.data={path}", "sft.steps=4", "sft.every=2", "sft.batch=4"]
    with pytest.raises(InvalidArgument, match=r"requires a pretrained model: set sft\.base"):
        sft(load(corridor(), changes), quiet=True)
    said = []
    folder = sft(load(corridor(), [*changes, f"sft.base={warm_model}"]), quiet=True, say=said.append)
    record = json.loads((folder / RECIPE).read_text())
    assert [one["step"] for one in record["measured"]] == [2, 4]
    assert any(line.startswith("step 2: wins") and "demonstrations" not in line for line in said)
    kept = max(record["measured"], key=lambda one: one["success"])["step"]
    assert (f"the model of step {kept} is kept" in said) == (kept != 4)
    trained = load_model(str(folder)).state_dict()
    assert not all(torch.equal(value, trained[name]) for name, value in load_model(warm_model).state_dict().items())


def test_successful_episodes_of_a_file_are_imitated(corridor, warm_model, tmp_path):
    def played(task, success, valid=True):
        turn = Turn("cell 2 of 5", "right", "right", invalid="" if valid else "refused")
        return Episode(task, turns=[turn], success=success, outcome="terminated")

    write_episodes(tmp_path / "e.jsonl", [played("a", True), played("b", False), played("c", True, valid=False)])
    settings = load(
        corridor(), [f"model={tmp_path / 'm'}", f"sft.data={tmp_path / 'e.jsonl'}", f"sft.base={warm_model}"]
    )
    _, tokenizer, rows = prepare(settings, tmp_path / "work", {}, quiet=True)
    (row,) = rows  # the third episode has no valid turn, so nothing in it is imitated
    assert tokenizer.decode(row.ids[row.kind_L == RESPONSE]) == f"right{tokenizer.eos_token}"
    write_episodes(tmp_path / "e.jsonl", [played("b", False)])
    with pytest.raises(InvalidArgument, match=r"e\.jsonl holds no successful episode"):
        prepare(settings, tmp_path / "other", {}, quiet=True)


def test_an_adapter_is_trained_and_merged(corridor, warm_model, tmp_path):
    pytest.importorskip("peft")
    changes = [f"model={tmp_path / 'm'}", "sft.steps=3", "sft.batch=4", "sft.episodes=16", "sft.lora=2"]
    with pytest.raises(SettingsError, match=r"lora: a new model has nothing to adapt"):
        load(corridor(), changes)
    folder = sft(load(corridor(), [*changes, f"sft.base={warm_model}"]), quiet=True)
    before, after = load_model(warm_model).state_dict(), load_model(str(folder)).state_dict()
    changed = {name for name, value in before.items() if not torch.equal(value, after[name])}
    assert changed and all(name.endswith("proj.weight") for name in changed)
    rank = np.linalg.matrix_rank((after[min(changed)] - before[min(changed)]).numpy(), tol=1e-5)
    assert rank <= 2 and load_tokenizer(str(folder)).chat_template == load_tokenizer(warm_model).chat_template
