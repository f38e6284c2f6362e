"""Questions of data files are judged on perturbed copies, on which a constant and a query right by chance fail."""

import json
import sqlite3
from contextlib import closing

import pytest

from gagpo.base.errors import InvalidArgument
from gagpo.envs.sql import golds, sources
from gagpo.envs.sql.database import columns_of, create
from gagpo.envs.sql.env import SQLEnv
from gagpo.envs.sql.generate import TYPES, generate_questions
from gagpo.envs.sql.mutate import mutants
from gagpo.envs.sql.process import QueryProcess
from tests.envs.sql.files import make, make_shop, spider
from tests.rejections import rejects

EQUIVALENTS = {
    "SELECT count(*) FROM singer;;": ["SELECT COUNT(id) FROM singer", "SELECT sum(1) FROM singer WHERE 1 = 1"],
    "SELECT name FROM singer WHERE age > 30": ["SELECT s.name FROM singer AS s WHERE NOT age <= 30 ORDER BY born"],
    "SELECT avg(age) FROM singer WHERE sex = 'F'": ["SELECT sum(age) * 1.0 / count(age) FROM singer WHERE sex != 'M'"],
    "SELECT T1.name, count(*) FROM country AS T1 JOIN singer AS T2 ON T1.id = T2.country GROUP BY T1.id": [
        "SELECT c.name, count(s.id) FROM singer s, country c WHERE s.country = c.id GROUP BY c.name"
    ],
    "SELECT name FROM country ORDER BY area DESC LIMIT 1": [
        "SELECT name FROM country WHERE area = (SELECT max(area) FROM country)",
        "SELECT name FROM country WHERE area >= (SELECT max(area) FROM country) LIMIT 1",
    ],
    "SELECT area FROM country WHERE name = 'France'": ["SELECT max(area) FROM country WHERE name LIKE 'france'"],
    "SELECT DISTINCT sex FROM singer": ["SELECT sex FROM singer GROUP BY sex"],
    "SELECT count(*) > 3 FROM singer": ["SELECT EXISTS (SELECT 1 FROM singer LIMIT 1 OFFSET 3)"],
    "SELECT count(*) FROM singer WHERE age > 90": ["SELECT count(*) FROM singer WHERE age >= 91"],
    "SELECT name FROM singer WHERE strftime('%Y', born) = '1971'": ["SELECT name FROM singer WHERE born LIKE '1971-%'"],
    "SELECT sex, count(*) FROM singer GROUP BY sex HAVING count(*) > 5": [
        "SELECT * FROM (SELECT sex, count(*) AS n FROM singer GROUP BY sex) WHERE n > 5"
    ],
    "SELECT count(*) FROM planned": ["SELECT count(rowid) FROM planned"],
    "SELECT name FROM adult WHERE name LIKE '%Q3'": ["SELECT name FROM singer WHERE age > 20 AND name LIKE '%Q3'"],
    'SELECT name FROM singer WHERE sex = "M" AND country = 2': [
        "SELECT name FROM singer WHERE (sex, country) = ('M', 2)"
    ],
    "SELECT name FROM country WHERE id NOT IN (SELECT country FROM plays WHERE times > 2)": [
        "SELECT name FROM country c WHERE NOT EXISTS (SELECT 1 FROM plays p WHERE p.country = c.id AND times > 2)"
    ],
    "SELECT max(b) FROM doubled": ["SELECT 2 * max(a) FROM doubled"],
    "SELECT sex FROM singer INTERSECT SELECT sex FROM singer WHERE sex = 'F'": [
        "SELECT max(sex) FROM singer WHERE sex = 'F' HAVING count(*) > 0"
    ],
    "SELECT name FROM singer ORDER BY born, id": ["SELECT name FROM singer ORDER BY date(born), id"],
}
BY_CHANCE = {
    "SELECT count(*) FROM singer;;": "SELECT 30",
    "SELECT name FROM singer WHERE age > 30": "SELECT name FROM singer WHERE age >= 31 AND id <= 30",
    "SELECT count(*) FROM planned": "SELECT 0",
    "SELECT count(*) FROM singer WHERE age > 90": "SELECT count(*) FROM singer WHERE age > 95",
    "SELECT name FROM country ORDER BY area DESC LIMIT 1": "SELECT name FROM country WHERE id = 2",
    'SELECT name FROM singer WHERE sex = "M" AND country = 2': "SELECT name FROM singer WHERE country = 2 AND id IN ()",
}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("copies")
    make_shop(folder / "spider" / "database" / "shop" / "shop.sqlite")
    return spider(folder / "spider", *EQUIVALENTS, "SELECT 4", "SELECT name FROM singer WHERE age > 18 AND age < 18")


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.setenv("GAGPO_DATA", str(tmp_path / "data"))
    monkeypatch.delenv("SQL_DATA", raising=False)
    sources.load_questions.cache_clear()


@pytest.fixture(scope="module")
def env(root, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GAGPO_DATA", str(tmp_path_factory.mktemp("data")))
        sources.load_questions.cache_clear()
        opened = SQLEnv(data=root)
        opened.tasks("train")
        yield opened
        opened.close()


def verdict(env, gold, answer):
    (task,) = [question.id for question in env._source("train")[1].values() if question.gold == gold]
    return judged(env, task, answer)


def judged(env, task, answer):
    env.reset(seed=0, options={"task": task})
    return env.step(f"answer: {answer}")[4]["verdict"]


def literal(env, gold):
    """A query with the gold query's result as a constant."""
    with closing(sqlite3.connect(env.folder / "database" / "shop" / "shop.sqlite")) as database:
        rows = database.execute(gold.rstrip(";")).fetchall()
    values = ["(" + ", ".join("NULL" if value is None else repr(value) for value in row) + ")" for row in rows]
    return f"VALUES {', '.join(values)}" if rows else "SELECT 1 WHERE 0"


@pytest.mark.parametrize("gold", EQUIVALENTS)
def test_a_constant_is_wrong_and_every_equivalent_query_right(env, gold):
    for sql in [gold, *EQUIVALENTS[gold]]:
        assert verdict(env, gold, sql) == "right", sql
    assert verdict(env, gold, literal(env, gold)) == "wrong elsewhere"
    assert verdict(env, gold, "SELECT 4") in ("wrong", "wrong elsewhere")


@pytest.mark.parametrize("gold", BY_CHANCE)
def test_a_query_that_is_right_by_chance_is_wrong(env, gold):
    with closing(sqlite3.connect(env.folder / "database" / "shop" / "shop.sqlite")) as database:
        listed = ", ".join(str(key) for (key,) in database.execute("SELECT id FROM singer WHERE sex = 'M'"))
        wrong = BY_CHANCE[gold].replace("()", f"({listed})")
        largest = database.execute("SELECT id FROM country ORDER BY area DESC LIMIT 1").fetchone()[0]
    assert verdict(env, gold, wrong.replace("id = 2", f"id = {largest}")) == "wrong elsewhere"


def test_copies_are_chosen_once_and_the_file_is_not_changed(env, root, monkeypatch):
    chosen = {question.gold: question.copies for question in env._source("train")[1].values()}
    assert all(len(copies) >= 1 for gold, copies in chosen.items() if gold in EQUIVALENTS)
    assert sum(len(copies) == 3 for copies in chosen.values()) >= 12
    before = (root / "database" / "shop" / "shop.sqlite").read_bytes()
    monkeypatch.setattr(QueryProcess, "copies", None)
    sources.load_questions.cache_clear()
    again = SQLEnv(data=root)
    assert {question.gold: question.copies for question in again._source("train")[1].values()} == chosen
    assert (root / "database" / "shop" / "shop.sqlite").read_bytes() == before
    assert [path.name for path in (root / "database" / "shop").iterdir()] == ["shop.sqlite"]


def test_questions_that_no_copy_can_judge_are_named_in_one_warning(data, root, caplog):
    env = SQLEnv(data=root)
    tasks = env.tasks("train")
    (record,) = [record for record in caplog.records if record.levelname == "WARNING"]
    message = record.getMessage()
    assert message.startswith(f"{root / 'train_spider.json'}: no hidden database for 2 questions, so a constant")
    assert f"row {len(EQUIVALENTS)} ('Question {len(EQUIVALENTS)}?')" in message and "\n" not in message
    assert verdict(env, "SELECT 4", "SELECT 4") == "right" and len(tasks) == len(EQUIVALENTS) + 2
    env.close()


@pytest.mark.parametrize("comparison", ["bird", "spider"])
def test_every_comparison_is_made_on_the_copies_unless_switched_off(data, root, comparison):
    gold = "SELECT DISTINCT sex FROM singer"
    strict, published = (SQLEnv(data=root, comparison=comparison, hidden=hidden) for hidden in (3, 0))
    assert verdict(strict, gold, literal(strict, gold)) == "wrong elsewhere"
    assert verdict(published, gold, literal(published, gold)) == "right"
    assert strict.tasks("train").hash == published.tasks("train").hash
    strict.close()
    published.close()


def test_a_rewritten_file_has_other_copies(data, tmp_path):
    path = make_shop(tmp_path / "spider" / "database" / "shop" / "shop.sqlite")
    env = SQLEnv(data=spider(tmp_path / "spider", "SELECT count(*) FROM singer"))
    assert verdict(env, "SELECT count(*) FROM singer", "SELECT count(*) FROM singer") == "right"
    make(path, "DELETE FROM singer WHERE id > 3")
    sources.load_questions.cache_clear()
    assert verdict(env, "SELECT count(*) FROM singer", "SELECT 3") == "wrong elsewhere"
    assert len((tmp_path / "data" / "sql" / "hidden-copies.jsonl").read_text().splitlines()) == 2
    env.close()


def test_stored_numbers_that_are_damaged_are_chosen_again(data, root):
    first = SQLEnv(data=root)._source("train")[1]
    path = golds._CopyNumbers()._path
    lines = path.read_text().splitlines()
    path.write_text("\n".join(['["x", 3]', "[1", json.dumps([1, ["y"]]), *lines[3:], lines[2][:9]]) + "\n")
    sources.load_questions.cache_clear()
    assert SQLEnv(data=root)._source("train")[1] == first
    assert len(golds._CopyNumbers().values) == len(lines)


def test_a_database_that_cannot_be_copied_is_judged_as_it_is(data, tmp_path, caplog):
    tables = "BEGIN;" + "".join(f"CREATE TABLE t{n} (a);" for n in range(201)) + "INSERT INTO t7 VALUES (3); COMMIT;"
    make(tmp_path / "spider" / "database" / "wide" / "wide.sqlite", tables)
    env = SQLEnv(data=spider(tmp_path / "spider", "SELECT a FROM t7", name="wide"))
    assert verdict(env, "SELECT a FROM t7", "SELECT a FROM t7") == "right"
    assert "no hidden database for 1 question, so" in caplog.text
    env.close()


def test_usual_wrong_queries_fail_unless_they_are_right_for_unique_values(data, tmp_path):
    """Generated questions as a data set. In copies, names and amounts stay unique, so DISTINCT changes nothing."""
    questions = list(generate_questions("train", 14, TYPES, 3)[1].values())
    rows = []
    for number, question in enumerate(questions):
        path = make(tmp_path / "spider" / "database" / f"d{number}" / f"d{number}.sqlite", "")
        with closing(create(question.database)) as source, closing(sqlite3.connect(path)) as target:
            source.backup(target)
        rows.append({"db_id": f"d{number}", "question": question.text, "query": question.gold})
    spider(tmp_path / "spider")
    (tmp_path / "spider" / "train_spider.json").write_text(json.dumps(rows))
    env = SQLEnv(data=tmp_path / "spider")
    paid = set()
    for question, task in zip(questions, sorted(env.tasks("train").ids), strict=True):
        schema = {name: [column for column, _ in columns] for name, columns in columns_of(question.database).items()}
        with closing(create(question.database)) as database:
            wrong = list(mutants(question.gold, schema, lambda sql, on=database: on.execute(sql).fetchall()))
        paid |= {type_name for type_name, sql in wrong if judged(env, task, sql) == "right"}
        assert judged(env, task, question.gold) == "right"
    env.close()
    assert paid <= {"DISTINCT added", "LIMIT added", "another aggregate"}


def test_invalid_numbers_of_hidden_databases():
    with rejects(InvalidArgument, key="hidden"):
        SQLEnv(hidden=-1)
