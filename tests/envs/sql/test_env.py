"""The SQL environment: its contract, its verdicts, and hostile queries."""

import gc
import sqlite3
import threading
import time
from contextlib import closing

import gymnasium
import numpy as np
import psutil
import pytest

from gagpo.base.errors import InvalidArgument
from gagpo.envs.check.check import check
from gagpo.envs.sql.database import columns_of
from gagpo.envs.sql.domains import DOMAINS, invent_domain
from gagpo.envs.sql.env import SQLEnv
from gagpo.envs.sql.generate import TYPES, generate_questions, rows
from gagpo.envs.sql.suite import suite
from tests.rejections import rejects

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
def test_the_expert_is_right_and_the_imperfect_player_mostly_not(kind):
    wins = {}
    for expert in (True, "imperfect"):
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
    assert wins[True] == 15 and wins["imperfect"] < 8


def test_a_session_by_hand():
    env = SQLEnv(types="join", **SMALL)
    text, info = start(env, "join")
    assert text.startswith("How many ") and info["admissible_actions"] is None
    child, parent = env.question.tables
    tables, *_ = env.step("tables")
    assert tables == "Tables: " + ", ".join(sorted([child, parent]))
    output, *_ = env.step(f"columns {child.upper()};")
    assert output.startswith(f"{child}: id INTEGER, name TEXT")
    output, reward, *_, info = env.step(f"query: SELECT COUNT(*) FROM {child}")
    assert (output, reward, info["queries"], info["valid"]) == ("COUNT(*)\n12", 0.0, 1, True)
    output, *_, info = env.step(f"query: DROP TABLE {child}")
    assert output == "Error: only SELECT is possible." and not info["valid"]
    output, reward, terminated, _, info = env.step(f"answer: {env.question.gold}")
    assert (output, reward, terminated, info["success"], info["verdict"]) == ("Right.", 1.0, True, True, "right")


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
def test_wrong_actions_get_a_message(said, seen, over):
    env = SQLEnv(**SMALL)
    start(env, "count")
    text, reward, terminated, _, info = env.step(said)
    assert text.startswith(seen) and terminated is over and reward == 0.0 and not info["success"]


def test_the_state_is_the_facts_learned_in_any_order():
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


def test_invented_tables_are_only_in_the_training_split():
    invented, listed = SQLEnv(tables="invented", **SMALL), SQLEnv(**SMALL)
    assert {task.id.partition("-")[0] for task in invented.tasks("train")} == {"invented"}
    for split in ("validation", "test", "unseen"):
        assert invented.tasks(split).hash == listed.tasks(split).hash
    output = [set(columns_of(item.database)) for item in invented._source("train")[1].values()]
    assert len(set.union(*output)) == 2 * len(output)  # each question has two tables that no other has


def test_invented_questions_have_hidden_databases_and_an_expert():
    for question in generate_questions("train", 60, TYPES, 5, invent=True)[1].values():
        assert len(suite(question)) >= 3
        env = SQLEnv(tables="invented", size=60, seed=5, expert=True)
        _, info = env.reset(options={"task": question.id})
        while not (info["expert_action"] or "").startswith("answer"):
            *_, info = env.step(info["expert_action"])
        assert env.step(info["expert_action"])[4]["success"]


def test_a_made_up_word_is_not_a_keyword():
    """Every word can be the name of a table and a column."""
    with closing(sqlite3.connect(":memory:")) as database:
        for seed in range(400):
            domain = invent_domain(str(seed))
            for word in (domain.parent, domain.child, domain.category, domain.amount, domain.size, domain.link):
                database.execute(f"CREATE TABLE {word} ({word} INTEGER)")
                database.execute(f"SELECT {word}.{word} FROM {word} ORDER BY {word}")
                database.execute(f"DROP TABLE {word}")
            names = [*domain.parents, *domain.children, *domain.categories]
            assert len(set(names)) == len(names)


def test_samples_are_commands():
    env = SQLEnv(**SMALL)
    start(env, "count")
    rng = np.random.default_rng(0)
    messages = {env.sample_action(rng).split()[0] for _ in range(60)}
    assert messages == {"tables", "columns", "query:", "answer:"}


def test_invalid_arguments():
    with rejects(InvalidArgument, advice="count"):
        SQLEnv(types="poetry")
    with rejects(InvalidArgument, "rows >= 1", key="size"):
        SQLEnv(rows=0)
    with rejects(InvalidArgument, "listed", "invented", "got 'odd'", key="tables"):
        SQLEnv(tables="odd")
    with rejects(InvalidArgument, advice="exact, bird, spider"):
        SQLEnv(comparison="nearly")
    with rejects(InvalidArgument, "refuse", "skip", key="on_bad_row"):
        SQLEnv(on_bad_row="ignore")


# Hostile queries ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sql, told",
    [
        ("SELECT instr(replace(hex(zeroblob(499998)),'0','a'), hex(zeroblob(99998)) || 'b')", "not available"),
        ("SELECT instr(replace(hex(x'00'), '0', printf('%5000000c', 'a')), 'b')", "widths up to 100"),
        ("SELECT length(printf('%.*c', 2000000000, 'a'))", "widths up to 100"),
        ("SELECT 1 WHERE julianday() > 0", "there is no clock here"),
        ("/**/" * 40 + "VACUUM", "only SELECT is possible"),
    ],
)
def test_a_hostile_query_is_a_turn_with_a_message(sql, told):
    env = gymnasium.make("gagpo/SQL-v0", **SMALL)
    env.reset(seed=0)
    text, reward, terminated, _, info = env.step(f"query: {sql}")
    assert text.startswith("Error: ") and told in text
    assert not info["valid"] and not terminated and reward == 0.0
    text, reward, terminated, _, info = env.step(f"answer: {sql}")
    assert told in text and not info["valid"] and terminated and info["verdict"] == "failed"
    env.close()


def test_verdicts_do_not_depend_on_wall_time(monkeypatch):
    """The same queries are right on a machine that is eleven seconds late at every look at the clock."""
    env = SQLEnv(types="join", **SMALL)
    start(env, "join")
    gold, passed = env.question.gold, iter(range(0, 10**6, 11))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(passed)))
    busy = "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t WHERE n < 10000) SELECT MAX(n) FROM t"
    assert env.step(f"query: {busy}")[0] == "MAX(n)\n10000"
    assert env.step(f"answer: {gold}")[4]["success"]
    env.close()


def test_environments_share_one_process_that_ends_with_the_last_of_them():
    def running():
        return [item for item in psutil.Process().children() if "gagpo.envs.sql.worker" in " ".join(item.cmdline())]

    gc.collect()  # environments of other tests that were left open
    envs = [SQLEnv(**SMALL) for _ in range(20)]
    before = len(running())
    for env in envs:
        start(env, "count")
    assert len(running()) == before  # a start asks nothing
    for env in envs:
        env.step("query: SELECT 1")
    assert len(running()) == 1
    for env in envs:
        env.close()
        env.close()
    assert running() == []
    start(envs[0], "count")
    assert envs[0].step("query: SELECT 1")[0] == "1\n1"  # closed ones may be used again
    envs[0].close()


def test_environments_in_threads_do_not_mix_answers():
    wrong = []

    def play(number):
        env = SQLEnv(**SMALL)
        start(env, "count")
        for turn in range(9):
            if env.step(f"query: SELECT {number}, {turn}")[0].splitlines()[1] != f"{number} | {turn}":
                wrong.append((number, turn))
        env.close()

    threads = [threading.Thread(target=play, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
