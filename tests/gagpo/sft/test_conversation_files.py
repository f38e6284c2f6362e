"""Conversations of other trainers become messages, whatever file they are in."""

import csv
import json

import pytest

from gagpo.base.errors import InvalidArgument
from gagpo.settings import load
from gagpo.settings.sft import SftSettings
from gagpo.sft.conversation_files import conversation_of, conversations, holds_conversations
from gagpo.sft.messages import read_messages
from gagpo.sft.run import demonstrations_in
from tests.rejections import rejects

USER = {"role": "user", "content": "2 + 3?"}
ASSISTANT = {"role": "assistant", "content": "5"}

FORMS = [
    {"messages": [USER, ASSISTANT]},
    {"messages": json.dumps([USER, ASSISTANT])},
    {"messages": [{**USER, "tool_calls": None}, {**ASSISTANT, "weight": None}]},
    {"prompt": "2 + 3?", "completion": "5"},
    {"prompt": [USER], "completion": [ASSISTANT]},
    {"prompt": json.dumps([USER]), "completion": json.dumps([ASSISTANT])},
    {"prompt": "2 + 3?", "completion": "5", "system": None},
    {"prompt": "2 + 3?", "response": "5"},
    {"question": "2 + 3?", "answer": "5", "id": 1},
    {"instruction": "2 + 3?", "input": "", "output": "5"},
    {"conversations": [{"from": "human", "value": "2 + 3?"}, {"from": "gpt", "value": "5"}]},
]


def test_a_text_that_only_looks_like_a_list_stays_a_text():
    for text in ("[1, 2]", "[", '[{"a": 1}]', "[]", '["role"]'):
        assert conversation_of({"prompt": "Which?", "completion": text})["messages"][1]["content"] == text


@pytest.mark.parametrize("row", FORMS)
def test_every_form_becomes_the_same_messages(row):
    assert conversation_of(row) == {"messages": [USER, ASSISTANT]}


def test_system_input_and_tools_are_part_of_it():
    tools = [{"type": "function", "function": {"name": "add"}}]
    row = {"instruction": "Add.", "input": "2, 3", "output": "5", "system": "Be short.", "tools": json.dumps(tools)}
    conversation = conversation_of(row)
    assert conversation["tools"] == tools
    assert [message["content"] for message in conversation["messages"]] == ["Be short.", "Add.\n\n2, 3", "5"]


@pytest.mark.parametrize(
    ("row", "key", "names"),
    [
        (
            {"Q": "?"},
            None,
            ("'Q'", "sft.data={path:"),
        ),
        ({"prompt": "", "completion": "5"}, "prompt", ("got ''",)),
        ({"prompt": "?", "completion": 5}, "completion", ("5",)),
        ({"prompt": "?", "completion": "5", "system": 5}, "system", ("5",)),
        ({"instruction": "?", "input": 5, "output": "5"}, "input", ("5",)),
        ({"conversations": [{"from": "robot", "value": "5"}]}, "conversations[0]", ("'robot'", "human, user")),
        ({"conversations": ["5"]}, "conversations[0]", ("from and value",)),
        ({"conversations": "5"}, "conversations", ("list",)),
    ],
)
def test_a_row_of_no_form_names_what_is_there(row, key, names):
    with rejects(InvalidArgument, *names, key=key):
        conversation_of(row)


@pytest.fixture
def table(tmp_path):
    with (tmp_path / "talk.csv").open("w", newline="", encoding="utf-8-sig") as file:
        writer = csv.DictWriter(file, ["Q", "A"])
        writer.writeheader()
        writer.writerows([{"Q": f"cell {n} of 5", "A": "right"} for n in range(3)])
    return tmp_path / "talk.csv"


def test_a_table_with_other_columns_is_imitated(corridor, warm_model, table, tmp_path):
    data = f"sft.data={{path: {table}, columns: {{prompt: Q, completion: A}}}}"
    settings = load(corridor(), [f"model={tmp_path / 'm'}", data, f"sft.base_model={warm_model}"])
    from gagpo.model.loading import load_tokenizer

    result = demonstrations_in(settings, load_tokenizer(warm_model), quiet=True)
    assert result.tokenized and [episode.turns[0].observation for episode in result.episodes] == [
        f"cell {n} of 5" for n in range(3)
    ]
    assert [episode.task for episode in result.episodes] == ["row 1", "row 2", "row 3"]


def test_errors_name_file_row_and_columns(table, tiny, tmp_path):
    with rejects(InvalidArgument, "'X'", where="talk.csv, row 1", advice="'Q', 'A'"):
        list(conversations(table, {"prompt": "X", "completion": "A"}))
    with rejects(InvalidArgument, "no conversation", "'Q', 'A'", where="talk.csv, row 1"):
        read_messages(table, tiny[1], 10)
    with rejects(InvalidArgument, key="sft.data"):
        list(conversations(tmp_path / "none.csv", {}))
    (tmp_path / "talk.jsonl").write_text('{"question": "?", "answer": "!"}\nnonsense\n')
    with rejects(InvalidArgument, "JSON", where="talk.jsonl, line 2"):
        list(conversations(tmp_path / "talk.jsonl", {}))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"file": "a.csv"}, "unknown key 'file'; choose path or columns"),
        ({"columns": {}}, "path must be the name of a file"),
        ({"path": "a.csv", "columns": {"question": "Q"}}, "unknown field 'question'; choose one of messages, prompt"),
    ],
)
def test_a_wrong_value_of_the_key_says_what_to_type(data, message):
    with pytest.raises(ValueError, match=message):
        SftSettings(data=data)


def test_a_folder_in_the_hubs_layout_is_read_by_its_training_split(tmp_path, tiny):
    (tmp_path / "train.jsonl").write_text(json.dumps({"prompt": "2 + 3?", "completion": "5"}))
    (tmp_path / "test.jsonl").write_text("not read")
    assert holds_conversations(tmp_path, {}) and len(read_messages(tmp_path, tiny[1], 10)) == 1
