"""The world of databases: its promises, its judge, and the published formats."""

import json
import sqlite3

import numpy as np
import pytest

from gagpo.envs.check.check import check
from gagpo.envs.errors import InvalidArgument
from gagpo.envs.sql.domains import DOMAINS
from gagpo.envs.sql.env import SQLEnv
from gagpo.envs.sql.generate import TYPES, rows
from gagpo.envs.sql.sources import BadSource
from gagpo.envs.tasks import EmptySplit

SMALL = {"size": 60, "test_size": 30}


@pytest.fixture(autouse=True)
def data(tmp_path, monkeypatch):
    monkeypatch.setenv("GAGPO_DATA", str(tmp_path / "data"))
    monkeypatch.delenv("SQL_DATA", raising=False)


def start(env, kind):
    task = next(task for task in env.tasks("train") if task.type == kind)
    return env.reset(seed=0, options={"task": task.id})


def test_it_keeps_every_promise():
    broken = [finding for finding in check("gagpo/SQL-v0", SMALL, episodes=4) if not finding.ok]
    assert not broken, broken


@pytest.mark.parametrize("kind", TYPES)
def test_the_expert_is_right_and_the_hasty_player_mostly_not(kind):
    wins = {}
    for expert in (True, "hasty"):
        env = SQLEnv(expert=expert, types=kind, size=15, test_size=1)
        wins[expert] = 0
        for task in env.tasks("train"):
            _, info = env.reset(seed=0, options={"task": task.id})
            over = False
            while not over:
                assert info["expert_action"]
                *_, terminated, truncated, info = env.step(info["expert_action"])
                over = terminated or truncated
            wins[expert] += info["success"]
        env.close()
    assert wins[True] == 15 and wins["hasty"] < 8


def test_a_session_by_hand():
    env = SQLEnv(types="join", **SMALL)
    text, info = start(env, "join")
    assert text.startswith("How many ") and info["admissible_actions"] is None
    child, parent = env.question.tables
    tables, *_ = env.step("tables")
    assert tables == "Tables: " + ", ".join(sorted([child, parent]))
    shown, *_ = env.step(f"columns {child.upper()};")
    assert shown.startswith(f"{child}: id INTEGER, name TEXT")
    shown, reward, *_, info = env.step(f"query: SELECT COUNT(*) FROM {child}")
    assert (shown, reward, info["queries"], info["valid"]) == ("COUNT(*)\n12", 0.0, 1, True)
    shown, *_, info = env.step(f"query: DROP TABLE {child}")
    assert shown == "Error: only SELECT is possible." and not info["valid"]
    shown, reward, terminated, _, info = env.step(f"answer: {env.question.gold}")
    assert (shown, reward, terminated, info["success"], info["verdict"]) == ("Right.", 1.0, True, True, "right")


def test_a_constant_that_was_read_off_is_no_answer():
    """The gold query's own result, written as a literal, is right here and wrong on the second database."""
    env, verdicts = SQLEnv(types=["join", "extreme"], size=30, test_size=1), []
    for task in env.tasks("train"):
        env.reset(seed=0, options={"task": task.id})
        _, found = env._database().run(env.question.gold)
        verdicts.append(env.step(f"answer: SELECT {found[0][0]}")[4]["verdict"])
    assert verdicts.count("wrong elsewhere") > 20 and set(verdicts) <= {"wrong elsewhere", "right"}


@pytest.mark.parametrize(
    "said, seen, over",
    [
        ("columns nowhere", "There is no such table.", False),
        ("look", "Say tables", False),
        ("tables please", "Say tables, and nothing else.", False),
        ("query: SELEC", "Error: ", False),
        ("answer: SELEC", "Error: ", True),
        ("ANSWER:\nSELECT 1, 2, 3", "Wrong.", True),
    ],
)
def test_what_is_wrong_is_answered(said, seen, over):
    env = SQLEnv(**SMALL)
    start(env, "count")
    text, reward, terminated, _, info = env.step(said)
    assert text.startswith(seen) and terminated is over and reward == 0.0 and not info["success"]


def test_state_is_what_was_learned_in_whatever_order():
    env = SQLEnv(types="join", **SMALL)
    start(env, "join")
    child, parent = env.question.tables
    keys = []
    for order in ((child, parent), (parent, child)):
        start(env, "join")
        keys.append([env.step(f"columns {table}")[4]["state"] for table in order])
    assert keys[0][0] != keys[1][0] and keys[0][1] == keys[1][1] != keys[0][0]


def test_databases_of_splits_share_no_rows():
    first = rows(DOMAINS["school"], "school-train-00000-0")
    assert first == rows(DOMAINS["school"], "school-train-00000-0")
    assert first != rows(DOMAINS["school"], "school-test-00000-0")
    env = SQLEnv(**SMALL)
    assert {task.id.partition("-")[0] for task in env.tasks("unseen")} == {"clinic"}
    assert not {task.id.partition("-")[0] for task in env.tasks("test")} & {"clinic"}


def test_samples_are_commands():
    env = SQLEnv(**SMALL)
    start(env, "count")
    rng = np.random.default_rng(0)
    said = {env.sample_action(rng).split()[0] for _ in range(60)}
    assert said == {"tables", "columns", "query:", "answer:"}


def test_arguments_that_make_no_sense():
    with pytest.raises(InvalidArgument, match="choose from count"):
        SQLEnv(types="poetry")
    with pytest.raises(InvalidArgument, match="rows >= 1"):
        SQLEnv(rows=0)


# Published formats ----------------------------------------------------------------------------------------------------


def database(path):
    path.parent.mkdir(parents=True)
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE singer (id INTEGER, name TEXT, age INTEGER)")
    connection.executemany("INSERT INTO singer VALUES (?, ?, ?)", [(1, "Ann", 30), (2, "Bo", 40)])
    connection.commit()
    connection.close()


@pytest.fixture
def spider(tmp_path):
    root = tmp_path / "spider"
    database(root / "database" / "concert" / "concert.sqlite")
    one = {"db_id": "concert", "question": "Names by age?", "query": "SELECT name FROM singer ORDER BY age DESC"}
    (root / "train_spider.json").write_text(json.dumps([one, one, {**one, "question": "Names, oldest first?"}]))
    (root / "dev.json").write_text(
        json.dumps([{**one, "question": "How many?", "query": "SELECT count(*) FROM singer"}])
    )
    return root


def test_spider(spider):
    env = SQLEnv(data=spider)
    assert [task.type for task in env.tasks("train")] == ["concert", "concert"]  # the same question twice is one
    assert len(env.tasks("validation")) == 1
    task = env.tasks("train").ids[0]
    assert env.reset(seed=0, options={"task": task})[0] == "Names by age?"
    assert env.step("query: SELECT * FROM singer")[0] == "id | name | age\n1 | Ann | 30\n2 | Bo | 40"
    assert env.step("answer: SELECT name FROM singer ORDER BY age")[4]["verdict"] == "wrong"  # the order counts
    env.reset(seed=0, options={"task": task})
    assert env.step("answer: SELECT name FROM singer ORDER BY -age;")[4]["success"]
    with pytest.raises(EmptySplit, match="test"):
        env.tasks("test").require()


def test_bird(tmp_path, monkeypatch):
    root = tmp_path / "bird"
    database(root / "dev_databases" / "concert" / "concert.sqlite")
    one = {"question_id": 7, "db_id": "concert", "question": "Who is old?", "evidence": "old means age > 35"}
    (root / "dev.json").write_text(
        json.dumps([{**one, "SQL": "SELECT name FROM singer WHERE age > 35", "difficulty": "simple"}])
    )
    monkeypatch.setenv("SQL_DATA", str(root))
    env = SQLEnv(split="validation", expert=True)
    text, info = env.reset(seed=0)
    assert text == "Who is old?\nHint: old means age > 35" and info["task_type"] == "simple"
    assert env.step(info["expert_action"])[4]["success"]


@pytest.mark.parametrize(
    "text, told",
    [
        ("{", "not JSON"),
        ("{}", "must hold a list"),
        ("[1]", "row 0: not an object"),
        ('[{"db_id": "concert", "query": "SELECT 1"}]', "key 'question' must be a text"),
        ('[{"db_id": "../../etc", "question": "q", "query": "SELECT 1"}]', "is no folder's name"),
        ('[{"db_id": "gone", "question": "q", "query": "SELECT 1"}]', "there is no database"),
    ],
)
def test_bad_files_are_named(spider, text, told):
    (spider / "train_spider.json").write_text(text)
    with pytest.raises(BadSource, match=told):
        SQLEnv(data=spider).tasks("train")


def test_a_folder_of_neither(tmp_path):
    with pytest.raises(BadSource, match="neither Spider nor BIRD"):
        SQLEnv(data=tmp_path).tasks("train")
