"""Perturbed copies: other rows under the same constraints, the same in every process, and nothing of a file is run."""

import hashlib
import sqlite3
from collections import Counter
from contextlib import closing
from itertools import pairwise

import pytest

from gagpo.envs.sql.database import BadDatabase
from gagpo.envs.sql.perturb import NUMBERS, VERSION, perturb
from gagpo.envs.sql.structure import SAMPLED_ROWS, read_sample
from tests.envs.sql.files import make, make_shop
from tests.rejections import rejects

GOLD = "SELECT name FROM singer WHERE age > 37 AND sex = 'F' AND country = 2 AND strftime('%Y', born) = '1971'"
TABLES = ("country", "singer", "boss", "plays", "tour", "planned", "doubled")


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    return make_shop(tmp_path_factory.mktemp("perturb") / "shop.sqlite")


@pytest.fixture(scope="module")
def sample(shop):
    return read_sample(str(shop))


@pytest.fixture(scope="module")
def copies(sample):
    opened = [perturb(sample, GOLD, number).connection for number in range(NUMBERS)]
    yield opened
    for connection in opened:
        connection.close()


def rows(connection, table):
    return connection.execute(f"SELECT * FROM {table}").fetchall()


def test_constraints_hold_in_every_copy(copies):
    for copy in copies:
        assert copy.execute("PRAGMA foreign_key_check").fetchall() == []
        assert copy.execute("PRAGMA integrity_check").fetchall() == [("ok",)]  # NOT NULL, UNIQUE, CHECK
        assert all(rows(copy, table) for table in TABLES)


def test_rows_differ_between_copies_and_from_the_file(copies, shop):
    """A table of four countries may by chance be the same."""
    with closing(sqlite3.connect(shop)) as original:
        for first, second in pairwise([original, *copies]):
            same = [table for table in TABLES if rows(first, table) == rows(second, table)]
            assert len(same) <= 1 and "singer" not in same, same


def test_values_are_of_the_column_or_near(copies, shop):
    with closing(sqlite3.connect(shop)) as original:
        ages = {age for (age,) in original.execute("SELECT age FROM singer WHERE age")}
    for copy in copies:
        for age, born, area in copy.execute("SELECT age, born, area FROM singer JOIN country ON country = country.id"):
            assert age is None or 18 <= age <= max(ages) + 25
            assert area == round(area, 2) and area > 0
            assert len(born) == 10 and born[4] == born[7] == "-" and copy.execute("SELECT date(?)", (born,)).fetchone()


def test_what_holds_for_all_rows_of_the_file_holds_in_copies(copies):
    """Right queries may rely on it, although no constraint is declared: names of singers, and no day is missing."""
    for copy in copies:
        names = [name for (name,) in copy.execute("SELECT name FROM singer")]
        assert len(set(names)) == len(names)
        assert copy.execute("SELECT COUNT(*) FROM singer WHERE born IS NULL").fetchone() == (0,)


def test_the_literals_of_the_gold_query_are_drawn(copies):
    counted = Counter()
    for copy in copies:
        counted["age"] += copy.execute("SELECT COUNT(*) FROM singer WHERE age BETWEEN 36 AND 38").fetchone()[0]
        counted["year"] += copy.execute("SELECT COUNT(*) FROM singer WHERE born LIKE '1971-%'").fetchone()[0]
        counted["gold"] += bool(copy.execute(GOLD).fetchall())
    assert counted["age"] > 30 and counted["year"] > 30 and counted["gold"] >= NUMBERS // 2


def test_copies_depend_on_the_content_the_gold_query_and_the_number_alone(tmp_path, sample):
    again = read_sample(str(make_shop(tmp_path / "elsewhere.sqlite")))
    assert again.digest == sample.digest

    def drawn(source, gold, number):
        with closing(perturb(source, gold, number).connection) as connection:
            return [rows(connection, table) for table in TABLES]

    assert drawn(sample, GOLD, 3) == drawn(again, GOLD, 3)
    assert drawn(sample, GOLD, 3) != drawn(sample, GOLD + " ", 3)


def test_copies_belong_to_their_version(copies):
    """Whoever changes how copies are drawn gives them another version, so that the hash of a split says so."""
    drawn = repr([rows(copy, table) for copy in copies for table in TABLES])
    assert (VERSION, hashlib.sha256(drawn.encode()).hexdigest()[:16]) == (1, "ecabd907e1176ac7")


def test_a_large_table_is_sampled_at_random(tmp_path):
    script = """
        CREATE TABLE sale (id INTEGER PRIMARY KEY, day TEXT, amount REAL);
        WITH RECURSIVE t(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM t WHERE n < 20000)
        INSERT INTO sale SELECT n * 3, date(2458849.5 + n % 700), n * 7919 % 1000 / 8.0 FROM t;
        CREATE TABLE code (id TEXT PRIMARY KEY, n INTEGER) WITHOUT ROWID;
        INSERT INTO code SELECT 'c' || id, id FROM sale LIMIT 2000;
        """
    sale, code = read_sample(str(make(tmp_path / "large.sqlite", script))).tables
    assert len(sale.rows) == len(set(sale.rows)) == len(code.rows) == SAMPLED_ROWS
    assert min(row[0] for row in sale.rows) < 5_000 and max(row[0] for row in sale.rows) > 55_000


ODD = {
    "a trigger": "CREATE TRIGGER x AFTER INSERT ON t BEGIN INSERT INTO t VALUES (666, 'x'); END;",
    "a virtual table": "CREATE VIRTUAL TABLE f USING fts5(a); INSERT INTO f VALUES ('x');",
    "a view of another file": "CREATE VIEW w AS SELECT load_extension('/tmp/x.so') AS a, readfile('/etc/passwd') AS b;",
    "an endless view": "CREATE VIEW w AS WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n FROM r) SELECT n FROM r;",
    "names with quotes": """CREATE TABLE "a""b]`'; DROP TABLE t; --" ("c""d" INT, rowid, _rowid_, oid);
        INSERT INTO "a""b]`'; DROP TABLE t; --" VALUES (1, 2, 3, 4);""",
    "strict": "CREATE TABLE s (a INTEGER, b ANY, c BLOB) STRICT; INSERT INTO s VALUES (1, 'x', x'00ff');",
    "a circle": """CREATE TABLE p (id INTEGER PRIMARY KEY, q INT NOT NULL REFERENCES q);
        CREATE TABLE q (id INTEGER PRIMARY KEY, p INT NOT NULL REFERENCES p);
        INSERT INTO p VALUES (1, 1), (2, 2); INSERT INTO q VALUES (1, 1), (2, 2);""",
    "a key to nowhere": "CREATE TABLE k (a REFERENCES nowhere, b REFERENCES t (c)); INSERT INTO k DEFAULT VALUES;",
    "not text": "CREATE TABLE u (a TEXT); INSERT INTO u VALUES (CAST(x'ff00fe' AS TEXT)), (x'00'), (9e999), (NULL);",
    "extremes": """CREATE TABLE e (a INT UNIQUE, b);
        INSERT INTO e VALUES (9223372036854775807, 1e308), (-9223372036854775808, -1e308);""",
    "a forbidden function": "CREATE TABLE h (a CHECK (random() > a)); INSERT INTO h VALUES (-9223372036854775808);",
    "a long value": "CREATE TABLE l (a TEXT, b BLOB); INSERT INTO l VALUES (hex(zeroblob(900000)), zeroblob(3000000));",
    "an index on a function": "CREATE INDEX i ON t (replace(b, 'x', b || b)); CREATE INDEX j ON t (a) WHERE a > 1;",
    "a check with a clock": "CREATE TABLE d (a TEXT CHECK (a <= CURRENT_DATE)); INSERT INTO d VALUES ('2020-01-01');",
    "autoincrement": "CREATE TABLE n (id INTEGER PRIMARY KEY AUTOINCREMENT, a); INSERT INTO n (a) VALUES (1), (2);",
}


@pytest.mark.parametrize("script", ODD.values(), ids=ODD)
def test_odd_and_hostile_files_are_copied_as_far_as_they_can_be(tmp_path, script):
    plain = "CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT); INSERT INTO t VALUES (1, 'x'), (2, 'y'), (3, 'z');"
    path = make(tmp_path / "odd.sqlite", plain + script)
    before = path.read_bytes()
    sample = read_sample(str(path))
    for number in (0, 4, NUMBERS - 1):
        with closing(perturb(sample, "SELECT b FROM t", number).connection) as copy:
            copied = rows(copy, "t")
            assert copied and 666 not in [row[0] for row in copied]
            assert copy.execute("SELECT COUNT(*) FROM sqlite_master WHERE type = 'trigger'").fetchone() == (0,)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "definition",
    [
        "ATTACH DATABASE '{}' AS other",
        "CREATE TABLE t (a); ATTACH '{}' AS b",
        "CREATE VIRTUAL TABLE t USING fts5(a)",
        "CREATE TABLE t AS SELECT load_extension('{}')",
        "PRAGMA journal_mode = WAL",
        "DROP TABLE t",
    ],
)
def test_definitions_of_a_forged_schema_are_not_run(tmp_path, definition):
    """SQLite reads a schema that is no definition of a table as damaged, or it is not copied."""
    other = tmp_path / "other.sqlite"
    path = make(tmp_path / "forged.sqlite", "CREATE TABLE t (a); INSERT INTO t VALUES (1);")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("UPDATE sqlite_master SET sql = ?", (definition.format(other),))
        connection.commit()
    try:
        perturb(read_sample(str(path)), "SELECT a FROM t", 0).connection.close()
    except BadDatabase as error:
        assert "\n" not in str(error)
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_of_very_many_tables_is_not_copied(tmp_path):
    path = make(tmp_path / "wide.sqlite", "BEGIN;" + "".join(f"CREATE TABLE t{n} (a);" for n in range(201)) + "COMMIT;")
    with rejects(BadDatabase, "201 tables", advice="at most 200"):
        read_sample(str(path))
