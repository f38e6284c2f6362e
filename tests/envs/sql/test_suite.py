"""The hidden databases of generated questions: right queries pass on all, the usual wrong ones do not."""

import json
import re
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from gagpo.envs.sql.database import columns_of, create
from gagpo.envs.sql.env import SQLEnv
from gagpo.envs.sql.generate import TYPES, generate_questions
from gagpo.envs.sql.mutate import mutants
from gagpo.envs.sql.question import SUITE_VERSION
from gagpo.envs.sql.suite import suite

ROOT = Path(__file__).parents[3]


def questions(size, split="train", seed=0, kinds=TYPES):
    return list(generate_questions(split, size, tuple(kinds), seed)[1].values())


def answer(database, sql):
    """The rows of a result in no order; None where the query does not run."""
    try:
        return Counter(database.execute(sql).fetchall())
    except sqlite3.Error:
        return None


@pytest.fixture
def played():
    env = SQLEnv(size=70, test_size=1)
    yield env
    env.close()


def verdict(env, task, sql):
    env.reset(seed=0, options={"task": task})
    return env.step(f"answer: {sql}")[4]["verdict"]


def test_no_usual_wrong_query_pays(played):
    """By hand for each kind of question, what an agent that misread it would write."""
    for task in played.tasks("train").ids:
        played.reset(seed=0, options={"task": task})
        question = played.question
        gold, child = question.gold, question.tables[0]
        columns = {name: [column for column, _ in results] for name, results in columns_of(question.database).items()}
        category, amount, link = columns[child][2:]
        value = gold.rpartition(" ")[2]
        output = played.step(f"query: {gold}")[0].splitlines()[1]
        wrong = {
            "count": [
                *(gold.replace("COUNT(*)", f"COUNT(DISTINCT {column})") for column in ("name", amount, link)),
                gold.partition(" WHERE ")[0],
                f"SELECT {output}",
            ],
            "join": [
                *(gold.replace("COUNT(*)", f"COUNT(DISTINCT {child}.{column})") for column in ("name", category, link)),
                re.sub(r" ON \S+ = \S+", "", gold),
                f"SELECT {output}",
                *(f"SELECT COUNT(*) FROM {child} WHERE {link} = {key}" for key in range(1, 5)),
            ],
            "extreme": [
                *(
                    re.sub("MAX|MIN|AVG", other, gold)
                    for other in ("MAX", "MIN", "AVG", "SUM", "")
                    if other not in gold
                ),
                gold.replace("AVG(", "AVG(DISTINCT ") if "AVG" in gold else "SELECT 1",
                re.sub(r"\w+\((\w+)\)", r"\1", gold) + " LIMIT 1",
                f"SELECT {output}",
            ],
            "lookup": [
                gold.replace("SELECT ", "SELECT DISTINCT "),
                f"{gold} LIMIT 1",
                gold.replace(amount, f"MAX({amount})"),
                f"SELECT {output}",
                f"SELECT {amount} FROM {child} WHERE id = 1",
            ],
            "top": [
                f"SELECT name FROM {child} LIMIT 1",
                f"SELECT MAX(name) FROM {child}",
                gold.replace("DESC", "ASC") if "DESC" in gold else gold.replace("ASC", "DESC"),
                gold.replace(amount, link),
                f"SELECT '{output}'",
            ],
            "group": [
                gold.replace("COUNT(*)", f"COUNT(DISTINCT {amount})"),
                gold.replace("COUNT(*)", "COUNT(DISTINCT name)"),
                f"SELECT {category}, COUNT(*) FROM {child} GROUP BY {link}",
            ],
            "above": [
                gold.replace("SELECT ", "SELECT DISTINCT "),
                gold.replace(">", ">=").replace("<", "<="),
                *(gold.replace(value, str(int(value) + off)) for off in (-1, 1) if value.isdigit()),
                f"{gold} LIMIT 1",
                f"SELECT name FROM {child} WHERE {link} > {value}",
            ],
        }[question.type]
        for sql in wrong:
            assert verdict(played, task, sql) in ("wrong", "wrong elsewhere"), (gold, sql)


def test_right_queries_that_are_written_otherwise_pay(played):
    for task in played.tasks("train").ids:
        played.reset(seed=0, options={"task": task})
        gold, child = played.question.gold, played.question.tables[0]
        parent = played.question.tables[-1]
        category, amount, link = [column for column, _ in columns_of(played.question.database)[child]][2:]
        _, _, condition = gold.partition(" WHERE ")
        extreme = "MAX" if "DESC" in gold else "MIN"
        opposite = condition.replace(">", "<=") if ">" in condition else condition.replace("<", ">=")
        right = {
            "count": [f"SELECT COUNT(id) FROM {child} WHERE {condition}", f"SELECT SUM({condition}) FROM {child}"],
            "join": [
                f"SELECT COUNT(name) FROM {child} WHERE {link} IN (SELECT id FROM {parent} WHERE {condition})",
                f"SELECT COUNT(*) FROM {child}, {parent} p WHERE p.id = {link} AND {condition.replace(parent, 'p')}",
            ],
            "extreme": [gold.replace(f"FROM {child}", f"FROM (SELECT * FROM {child} ORDER BY id DESC)")],
            "lookup": [f"SELECT s.{amount} FROM {child} AS s WHERE {condition} ORDER BY 1;"],
            "top": [f"SELECT name FROM {child} WHERE {amount} = (SELECT {extreme}({amount}) FROM {child})"],
            "group": [f"SELECT {category}, SUM(1) FROM {child} GROUP BY 1 ORDER BY 2"],
            "above": [f"SELECT name FROM {child} WHERE NOT ({opposite})"],
        }[played.question.type]
        for sql in [gold, *right]:
            assert verdict(played, task, sql) == "right", (gold, sql)


def test_every_mutant_and_a_constant_fail_on_some_database():
    for question in [*questions(150), *questions(60, "unseen", seed=1)]:
        with ExitStack() as opened:
            databases = [opened.enter_context(closing(create(source))) for source in suite(question)]
            gold = [answer(database, question.gold) for database in databases]
            assert len(gold) >= 3 and all(gold) and any(result != gold[0] for result in gold[1:])
            assert all(value not in (0, None) for result in gold for row in result for value in row)
            schema = {
                name: [column for column, _ in results] for name, results in columns_of(question.database).items()
            }
            wrong = list(mutants(question.gold, schema, lambda sql, on=databases[0]: on.execute(sql).fetchall()))
            assert len(wrong) >= 15 and len({sql for _, sql in wrong}) == len(wrong)
            for _, sql in wrong:
                assert any(answer(item, sql) != result for item, result in zip(databases, gold, strict=True)), sql


def test_mutants_are_of_the_usual_kinds():
    schema = {"people": ["id", "name", "age", "town_id"], "towns": ["id", "name", "size"]}
    look = {
        "SELECT COUNT(*) FROM people JOIN towns ON people.town_id = towns.id WHERE towns.name = 'Ely'": [(2,)],
        "SELECT people.id FROM people JOIN towns ON people.town_id = towns.id WHERE towns.name = 'Ely'": [(3,), (4,)],
        "SELECT id FROM towns WHERE towns.name = 'Ely'": [(7,)],
        "SELECT DISTINCT name FROM people": [("O'Neil",)],
        "SELECT name FROM people ORDER BY age DESC LIMIT 1": [("Ann",)],
        "SELECT people.id FROM people ORDER BY age DESC LIMIT 1": [(1,)],
    }
    gold = "SELECT COUNT(*) FROM people JOIN towns ON people.town_id = towns.id WHERE towns.name = 'Ely'"
    joined = dict.fromkeys(mutants(gold, schema, look.__getitem__))
    assert {
        ("join's condition dropped", "SELECT COUNT(*) FROM people JOIN towns WHERE towns.name = 'Ely'"),
        ("condition dropped", "SELECT COUNT(*) FROM people JOIN towns ON people.town_id = towns.id"),
        ("DISTINCT added", gold.replace("*", "DISTINCT people.town_id")),
        ("another aggregate", gold.replace("COUNT(*)", "SUM(people.age)")),
        ("constant", "VALUES (2)"),
        ("keys read off", "SELECT COUNT(*) FROM people WHERE id IN (3, 4)"),
        ("keys read off", "SELECT COUNT(*) FROM people WHERE people.town_id = 7"),
    } <= set(joined)
    assert ("DISTINCT added", gold.replace("*", "DISTINCT people.id")) not in joined  # it is the same
    ordered = dict.fromkeys(mutants("SELECT name FROM people ORDER BY age DESC LIMIT 1", schema, look.__getitem__))
    assert {
        ("order dropped", "SELECT name FROM people LIMIT 1"),
        ("order reversed", "SELECT name FROM people ORDER BY age ASC LIMIT 1"),
        ("LIMIT dropped", "SELECT name FROM people ORDER BY age DESC"),
        ("another column", "SELECT town_id FROM people ORDER BY age DESC LIMIT 1"),
        ("constant", "VALUES ('Ann')"),
    } <= set(ordered)
    distinct = dict.fromkeys(mutants("SELECT DISTINCT name FROM people", schema, look.__getitem__))
    assert ("DISTINCT dropped", "SELECT name FROM people") in distinct and (
        "constant",
        "VALUES ('O''Neil')",
    ) in distinct
    with pytest.raises(ValueError, match="not a query that can be mutated"):
        list(mutants("DELETE FROM people", schema, look.__getitem__))


FINGERPRINT = """
import hashlib
from gagpo.envs.sql.generate import TYPES, generate_questions
from gagpo.envs.sql.suite import suite
asked = [one for split in ("train", "unseen") for one in generate_questions(split, 40, TYPES, 3)[1].values()]
print(hashlib.sha256(repr([(one.text, one.gold, suite(one)) for one in asked]).encode()).hexdigest()[:16])
"""


def test_suites_are_the_same_in_every_process_and_belong_to_their_version():
    """Whoever changes what judges a question gives it another version, so that the hash of a split says so."""
    observed = set()
    for order in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", FINGERPRINT],
            env={"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": order},
            capture_output=True,
            text=True,
            check=True,
        )
        observed.add(done.stdout.strip())
    assert (SUITE_VERSION, observed) == (3, {"24147e99ed5a7a4b"})


def test_the_luck_benchmark_finds_none(tmp_path):
    done = subprocess.run(
        [
            sys.executable,
            str(ROOT / "benchmarks" / "sql_luck.py"),
            "--tasks",
            "8",
            "--json",
            str(tmp_path / "luck.json"),
        ],
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    type_names = json.loads((tmp_path / "luck.json").read_text())["kinds"]
    assert type_names["any"] == {"tasks": 8, "right where seen": 8, "paid": 0} and "any" in done.stdout
