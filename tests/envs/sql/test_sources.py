"""Spider and BIRD: formats, checks of gold queries, and bounds of queries."""

import json
import sqlite3
from dataclasses import replace

import pytest

from gagpo.base.errors import InvalidArgument
from gagpo.envs.sql import golds, sources
from gagpo.envs.sql.database import STORED
from gagpo.envs.sql.env import SQLEnv
from gagpo.envs.sql.process import QueryProcess
from gagpo.envs.sql.sources import BadSource
from gagpo.envs.tasks import EmptySplit
from tests.rejections import rejects


@pytest.fixture(autouse=True)
def data(tmp_path, monkeypatch):
    monkeypatch.setenv("GAGPO_DATA", str(tmp_path / "data"))
    monkeypatch.delenv("SQL_DATA", raising=False)
    sources.load_questions.cache_clear()


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
    item = {"db_id": "concert", "question": "Names by age?", "query": "SELECT name FROM singer ORDER BY age DESC"}
    (root / "train_spider.json").write_text(json.dumps([item, item, {**item, "question": "Names, oldest first?"}]))
    dev = [{**item, "question": "How many?", "query": "SELECT count(*) FROM singer"}]
    (root / "dev.json").write_text(json.dumps(dev))
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
    with rejects(EmptySplit, "test", key="split"):
        env.tasks("test").require()


def test_bird(tmp_path, monkeypatch):
    root = tmp_path / "bird"
    database(root / "dev_databases" / "concert" / "concert.sqlite")
    item = {"question_id": 7, "db_id": "concert", "question": "Who is old?", "evidence": "old means age > 35"}
    item |= {"SQL": "SELECT name FROM singer WHERE age > 35", "difficulty": "simple"}
    (root / "dev.json").write_text(json.dumps([item]))
    monkeypatch.setenv("SQL_DATA", str(root))
    env = SQLEnv(split="validation", expert=True)
    text, info = env.reset(seed=0)
    assert text == "Who is old?\nHint: old means age > 35" and info["task_type"] == "simple"
    assert env.step(info["expert_action"])[4]["success"]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("{", "JSON"),
        ("{}", "list"),
        ("[1]", "row 0: not an object"),
        ('[{"db_id": "concert", "query": "SELECT 1"}]', "'question'"),
        ('[{"db_id": "../../etc", "question": "q", "query": "SELECT 1"}]', "folder name"),
        ('[{"db_id": "gone", "question": "q", "query": "SELECT 1"}]', "there is no database"),
    ],
)
def test_bad_files_are_named(spider, text, name):
    (spider / "train_spider.json").write_text(text)
    with rejects(BadSource, name):
        SQLEnv(data=spider).tasks("train")


def test_a_folder_of_neither(tmp_path):
    with rejects(BadSource, "Spider", "BIRD"):
        SQLEnv(data=tmp_path).tasks("train")


# Gold queries ---------------------------------------------------------------------------------------------------------


def ask(root, *golds, **more):
    """The training split of Spider's format with these gold queries."""
    rows = [{"db_id": "concert", "question": f"Question {i}?", "query": gold} for i, gold in enumerate(golds)]
    (root / "train_spider.json").write_text(json.dumps(rows))
    sources.load_questions.cache_clear()
    return SQLEnv(data=root, expert=True, **more)


def verdict(env, number=0, answer=None):
    env.reset(seed=0, options={"task": env.tasks("train").ids[number]})
    return env.step(f"answer: {answer or env.question.gold}")[4]["verdict"]


@pytest.mark.parametrize(
    ("gold", "name"),
    [
        ("SELECT nmae FROM singer", "no such column: nmae"),
        ("SELECT name FROM singer WHERE age > strftime('%Y', 'now')", "clock"),
        ("DELETE FROM singer", "only SELECT"),
        ("SELECT random()", "function random"),
        ("WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) SELECT n FROM t", "too large"),
    ],
)
def test_a_bad_gold_query_is_reported_with_its_row(spider, gold, name, monkeypatch):
    monkeypatch.setattr(golds, "GOLD", replace(golds.GOLD, size=1_000_000))
    env = ask(spider, "SELECT name FROM singer", gold)
    with rejects(BadSource, name, where="train_spider.json, row 1"):
        env.tasks("train")
    answer = ask(spider, "SELECT name FROM singer", gold, on_bad_row="skip")
    assert answer.tasks("train").ids == ["train-000000"] and verdict(answer) == "right"


def test_bad_rows_of_every_kind_can_be_skipped(spider, caplog):
    item = {"db_id": "concert", "question": "Who?", "query": "SELECT name FROM singer"}
    bad = [1, {**item, "db_id": "../x"}, {**item, "db_id": "gone"}, {**item, "question": 7}]
    (spider / "train_spider.json").write_text(json.dumps([*bad, item]))
    with rejects(BadSource, "object", where="train_spider.json, row 0"):
        SQLEnv(data=spider).tasks("train")
    assert SQLEnv(data=spider, on_bad_row="skip").tasks("train").ids == ["train-000004"]
    assert "skipped 4 bad rows; the first: " in caplog.text
    with pytest.raises(InvalidArgument):
        SQLEnv(data=spider, on_bad_row="drop")


def test_a_file_that_is_no_database_is_named_with_its_row(spider):
    (spider / "database" / "concert" / "concert.sqlite").write_text("no database " * 100)
    with rejects(BadSource, "concert.sqlite", "not an SQLite", where="train_spider.json, row 0"):
        ask(spider, "SELECT 1").tasks("train")


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A table of a million rows, as BIRD has them."""
    root = tmp_path_factory.mktemp("large")
    (root / "database" / "concert").mkdir(parents=True)
    connection = sqlite3.connect(root / "database" / "concert" / "concert.sqlite")
    connection.execute("CREATE TABLE sale (id INTEGER PRIMARY KEY, day TEXT, amount INTEGER)")
    connection.execute(
        "WITH RECURSIVE t(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM t WHERE n < 999999) "
        "INSERT INTO sale SELECT n, date(2458849.5 + n % 700), n * 7919 % 1000 FROM t"
    )
    connection.commit()
    connection.close()
    return root


@pytest.mark.slow
def test_a_gold_query_over_a_million_rows_always_pays(large):
    """It takes more than any bound that holds for all, so its own cost sets those of its task."""
    grouped = "SELECT day, COUNT(*), SUM(amount), MIN(id), MAX(id) FROM sale GROUP BY day, amount"
    full = "SELECT id, amount FROM sale WHERE amount < 400"
    env = ask(large, grouped, full)
    for number in range(2):
        assert verdict(env, number) == "right"
        assert env.question.bounds.steps > STORED.steps
    assert verdict(env, 0, grouped + " HAVING day > '2020-01-01'") == "wrong"
    assert verdict(env, 1, "SELECT a.id, b.amount FROM sale a, sale b WHERE a.amount < b.amount") == "failed"
    small = ask(large, "SELECT COUNT(*) FROM sale WHERE id < 3")
    assert verdict(small, 0, f"SELECT COUNT(*) FROM ({grouped})") == "failed"  # other tasks keep the bounds of all
    env.close()
    small.close()


def test_the_rows_beyond_ten_thousand_count_too(large):
    env = ask(large, "SELECT id FROM sale WHERE id < 20000")
    assert verdict(env, 0, "SELECT id FROM sale WHERE id < 20000 ORDER BY id DESC") == "right"
    assert verdict(env, 0, "SELECT id FROM sale WHERE id < 19999") == "wrong"
    env.close()


def test_a_gold_query_is_run_once_and_its_cost_stored(spider, monkeypatch):
    requests = []
    cost = QueryProcess.cost
    monkeypatch.setattr(QueryProcess, "cost", lambda *arguments: requests.append(arguments[2]) or cost(*arguments))
    queries = ["SELECT name FROM singer", "SELECT age FROM singer"]
    hashes = {ask(spider, *queries).tasks("train").hash for _ in range(3)}
    assert requests == queries and len(hashes) == 1
    costs = golds._GoldCosts()
    assert len(costs.values) == 2
    costs._path.write_text("[1\n{}\n" + costs._path.read_text()[:-20] + '\n["x", ["y", 1, 2]]\n')
    ask(spider, *queries).tasks("train")
    assert requests == [*queries, queries[1]]  # a broken line is asked again
    connection = sqlite3.connect(spider / "database" / "concert" / "concert.sqlite")
    connection.execute("ALTER TABLE singer RENAME COLUMN age TO years")
    connection.commit()
    connection.close()
    with rejects(BadSource, "no such column: age", where="train_spider.json, row 1"):
        ask(spider, *queries).tasks("train")  # another database, and not what is remembered of the first


@pytest.mark.parametrize(
    "comparison, right",
    [("exact", []), ("bird", ["order", "repeated"]), ("spider", ["columns"])],
)
def test_comparisons_by_name(spider, comparison, right):
    answers = {
        "order": "SELECT name, age FROM singer ORDER BY age DESC",
        "repeated": "SELECT a.name, a.age FROM singer a, singer b ORDER BY a.age",
        "columns": "SELECT age, name FROM singer ORDER BY age",
    }
    env = ask(spider, "SELECT name, age FROM singer ORDER BY age", comparison=comparison)
    assert [name for name, sql in answers.items() if verdict(env, 0, sql) == "right"] == right
    assert verdict(env) == "right"
    env.close()


def test_the_order_of_a_subquery_is_free_and_large_integers_are_exact(spider):
    subquery = "SELECT name FROM singer WHERE age IN (SELECT age FROM singer ORDER BY abs(age), id)"
    env = ask(spider, subquery, "SELECT 9223372036854775807")
    assert verdict(env, 0, "SELECT name FROM singer ORDER BY age DESC") == "right"
    assert verdict(env, 1, "SELECT 9223372036854775807 - 500") == "wrong"
    assert verdict(env, 1, "SELECT 9223372036854775806 + 1") == "right"
    env.close()


@pytest.mark.parametrize("key", ["question", "query", "evidence", "difficulty", "hardness", "db_id"])
@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_number_that_is_not_finite_is_reported_with_its_row_and_key(spider, key, number):
    rows = json.loads((spider / "train_spider.json").read_text())
    rows[1][key] = number
    (spider / "train_spider.json").write_text(json.dumps(rows))
    with rejects(BadSource, key, where="train_spider.json, row 1"):
        SQLEnv(data=spider).tasks("train")


@pytest.mark.parametrize("key", ["question", "query", "evidence", "difficulty", "db_id"])
def test_a_lone_surrogate_is_reported_with_its_row_and_key(spider, key):
    rows = json.loads((spider / "train_spider.json").read_text())
    rows[1][key] = "SELECT '\ud800' FROM singer"
    (spider / "train_spider.json").write_text(json.dumps(rows))
    with rejects(BadSource, key, where="train_spider.json, row 1"):
        SQLEnv(data=spider).tasks("train")
    assert len(SQLEnv(data=spider, on_bad_row="skip").tasks("train")) == 2
