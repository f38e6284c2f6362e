"""A folder of SQLite files with a table of questions: columns, databases, splits and errors."""

import csv
import json

import pytest

from gagpo.base.errors import InvalidArgument
from gagpo.envs.sql import question_tables, sources
from gagpo.envs.sql.env import SQLEnv
from gagpo.envs.sql.golds import BadSource
from tests.envs.sql.files import make
from tests.rejections import rejects

ITEMS = "CREATE TABLE item (name TEXT, price INTEGER); " + "".join(
    f"INSERT INTO item VALUES ('thing{n}', {n * 3}); " for n in range(10)
)
ROWS = [
    {"Frage": f"Price of thing{n}?", "SQL": f"SELECT price FROM item WHERE name = 'thing{n}'", "DB": "shop"}
    for n in range(10)
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("GAGPO_DATA", str(tmp_path / "data"))
    monkeypatch.delenv("SQL_DATA", raising=False)
    sources.load_questions.cache_clear()
    question_tables.read.cache_clear()
    make(tmp_path / "own" / "shop.db", ITEMS)
    return tmp_path / "own"


def store(folder, rows, name="questions.csv"):
    with (folder / name).open("w", newline="", encoding="utf-8-sig") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return folder / name


def test_a_csv_of_questions_next_to_databases_is_enough(folder):
    store(folder, ROWS)
    env = SQLEnv(data=folder, columns={"question": "Frage"}, expert=True, hidden=1)
    sizes = {split: len(env.tasks(split)) for split in env.splits}
    assert sizes["unseen"] == 0 and sum(sizes.values()) == 10 and min(sizes[s] for s in ("train", "test")) >= 1
    assert env.default_split() == "test"
    text, info = env.reset(seed=0, options={"split": "test"})
    assert text.startswith("Price of thing") and info["task_type"] == "shop"
    assert env.step("columns item")[0] == "item: name TEXT, price INTEGER"
    assert env.step(info["expert_action"])[4]["success"]
    env.close()


def test_a_single_database_needs_no_column_and_a_file_can_be_named(folder):
    rows = [{"question": row["Frage"], "query": row["SQL"], "split": "dev"} for row in ROWS]
    (folder / "more.jsonl").write_text("not read")
    env = SQLEnv(data=store(folder, rows), hidden=0)
    assert [len(env.tasks(split)) for split in env.splits] == [0, 10, 0, 0]
    assert env.default_split() == "validation" and env.tasks("validation").ids[0] == "validation-000001"


def test_files_named_for_splits_keep_them(folder):
    store(folder, ROWS[:7], "train.csv")
    store(folder, ROWS[7:], "test.csv")
    env = SQLEnv(data=folder, columns={"question": "Frage"}, hidden=0)
    assert [len(env.tasks(split)) for split in env.splits] == [7, 0, 3, 0]


def test_columns_apply_to_the_published_layouts_too(folder):
    make(folder / "database" / "shop" / "shop.sqlite", ITEMS)
    (folder / "train_spider.json").write_text(json.dumps(ROWS[:2]))
    columns = {"question": "Frage", "database": "DB", "query": "SQL"}
    assert len(SQLEnv(data=folder, columns=columns, hidden=0).tasks("train")) == 2


@pytest.mark.parametrize(
    ("change", "columns", "key", "names"),
    [
        ({}, {}, None, ("questions.csv, row 1", "'question'", "'Frage', 'SQL', 'DB'; name it")),
        ({}, {"question": "Frgae"}, None, ("row 1", "'Frgae'", "'Frage', 'SQL', 'DB'")),
        ({"DB": "shpo"}, {"question": "Frage"}, None, ("row 2", "'shpo'", "one of shop")),
        ({"DB": "../shop"}, {"question": "Frage"}, None, ("row 2", "../shop")),
        ({"SQL": ""}, {"question": "Frage"}, "SQL", ("row 2",)),
        ({"SQL": "SELECT nme FROM item"}, {"question": "Frage"}, None, ("row 2", "gold query", "nme")),
    ],
)
def test_a_wrong_row_names_file_row_and_column(folder, change, columns, key, names):
    store(folder, [ROWS[0], {**ROWS[1], **change}])
    env = SQLEnv(data=folder, columns=columns, hidden=0)
    with rejects(BadSource, *names, key=key) as error:
        for split in env.splits:
            env.tasks(split)
    assert "\n" not in str(error.value)


def test_folders_that_cannot_be_used_are_one_line(folder, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "questions").mkdir()
    store(tmp_path / "questions", ROWS)
    make(folder / "copy" / "shop.sqlite", ITEMS)
    store(folder, ROWS)
    for location, name, advice in (
        (tmp_path / "none", tmp_path / "none", "name one with SQLite files"),
        (tmp_path / "empty", "neither Spider nor BIRD", "write a table"),
        (tmp_path / "questions", "no database", ".sqlite"),
        (folder, "two databases 'shop'", None),
    ):
        with rejects(BadSource, name, advice=advice):
            SQLEnv(data=location).tasks("train")
    with rejects(InvalidArgument, key="columns"):
        SQLEnv(data=folder, columns={"sql": "SQL"})
    with rejects(InvalidArgument, key="columns"):
        SQLEnv(columns={"query": "SQL"})
