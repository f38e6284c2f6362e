"""Database files for the SQL tests."""

from __future__ import annotations

import json
import random
import sqlite3
from contextlib import closing
from pathlib import Path

SHOP = """
CREATE TABLE country (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, area REAL CHECK (area > 0));
CREATE TABLE singer (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL, age INTEGER CHECK (age BETWEEN 18 AND 99),
    sex TEXT CHECK (sex IN ('M', 'F')), country INTEGER NOT NULL REFERENCES country (id), born TEXT
);
CREATE TABLE boss (id INTEGER PRIMARY KEY, above INTEGER REFERENCES boss, singer INTEGER UNIQUE REFERENCES singer);
CREATE TABLE plays (
    singer INTEGER, country INTEGER, times INTEGER, PRIMARY KEY (singer, country),
    FOREIGN KEY (singer) REFERENCES singer, FOREIGN KEY (country) REFERENCES country
) WITHOUT ROWID;
CREATE TABLE tour (singer INTEGER, country INTEGER, FOREIGN KEY (singer, country) REFERENCES plays (singer, country));
CREATE TABLE planned (singer INTEGER, day TEXT);
CREATE TABLE doubled (a INTEGER, b INTEGER GENERATED ALWAYS AS (a * 2) STORED, c TEXT AS (a || 'x'));
CREATE UNIQUE INDEX one_name ON singer (name, born);
CREATE VIEW adult AS SELECT * FROM singer WHERE age > 20;
"""


def make(path: Path, script: str) -> Path:
    """A database file that a script creates."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(script)
    return path


def make_shop(path: Path) -> Path:
    """A database with every kind of constraint."""
    rng = random.Random(0)
    make(path, SHOP)
    with closing(sqlite3.connect(path)) as connection:

        def insert(table: str, *rows: tuple[object, ...]) -> None:
            marks = ", ".join("?" * len(rows[0]))
            connection.executemany(f"INSERT OR IGNORE INTO {table} VALUES ({marks})", rows)

        names = ("France", "Spain", "Italy", "Peru")
        insert("country", *((i, name, round(rng.uniform(1, 99), 2)) for i, name in enumerate(names, 1)))
        ages = [rng.randint(18, 60) if i % 7 else None for i in range(30)]
        days = [f"19{rng.randint(50, 99)}-0{rng.randint(1, 9)}-11" for _ in range(30)]
        insert(
            "singer",
            *((i + 1, f"P{i} Q{i % 5}", ages[i], rng.choice("MF"), rng.randint(1, 4), days[i]) for i in range(30)),
        )
        insert("boss", *((i + 1, i or None, i + 1) for i in range(6)))
        insert("plays", *((rng.randint(1, 30), rng.randint(1, 4), rng.randint(1, 9)) for _ in range(20)))
        connection.execute("INSERT INTO tour SELECT singer, country FROM plays LIMIT 8")
        connection.executemany("INSERT INTO doubled (a) VALUES (?)", [(i,) for i in range(5)])
        connection.commit()
    return path


def spider(root: Path, *golds: str, name: str = "shop") -> Path:
    """A folder in Spider's layout that asks the golds about the database ``name``."""
    rows = [{"db_id": name, "question": f"Question {i}?", "query": gold} for i, gold in enumerate(golds)]
    root.mkdir(parents=True, exist_ok=True)
    (root / "train_spider.json").write_text(json.dumps(rows))
    return root
