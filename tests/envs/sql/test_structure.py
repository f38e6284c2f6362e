"""The structure of a file: columns, keys and links, declared or implied."""

import pytest

from gagpo.envs.sql.structure import ForeignKey, TableColumn, read_sample
from tests.envs.sql.files import make, make_shop

IMPLIED = """
CREATE TABLE singers (id INTEGER PRIMARY KEY, code TEXT UNIQUE, age INTEGER);
INSERT INTO singers VALUES (1, 'a', 2), (2, 'b', 1), (3, 'c', 1);
CREATE TABLE song (id INTEGER PRIMARY KEY, singer_id INTEGER, Code TEXT, age INTEGER, SINGERS_ID INTEGER);
INSERT INTO song VALUES (1, 1, 'a', 1, 4), (2, 2, 'b', 2, 1);
CREATE TABLE detail (code TEXT UNIQUE);
INSERT INTO detail VALUES ('a'), ('b'), ('c');
"""


def test_columns_that_can_be_written_and_their_links(tmp_path):
    sample = read_sample(str(make_shop(tmp_path / "shop.sqlite")))
    tables = {table.name: table for table in sample.tables}
    assert tables["country"].columns == (
        TableColumn("id", "INTEGER", required=True, key=True),
        TableColumn("name", "TEXT", required=True, key=True),
        TableColumn("area", "REAL", required=False, key=False),
    )
    assert [column.name for column in tables["doubled"].columns] == ["a"]
    assert not any(column.key for column in tables["plays"].columns)  # two together are
    assert tables["boss"].links == (ForeignKey((2,), "singer", (0,)), ForeignKey((1,), "boss", (0,)))
    assert tables["tour"].links == (ForeignKey((0, 1), "plays", (0, 1)),)
    assert sample.views == ("adult",) and len(sample.definitions) == 2


def test_links_that_names_and_values_imply(tmp_path):
    """``age`` is the key of no table, ``SINGERS_ID`` has another value, and of two equal keys neither is the parent."""
    singers, song, detail = read_sample(str(make(tmp_path / "implied.sqlite", IMPLIED))).tables
    assert singers.links == detail.links == ()
    assert song.links == (ForeignKey((1,), "singers", (0,)), ForeignKey((2,), "singers", (1,)))


@pytest.mark.parametrize(
    "declared, affinity",
    [
        ("INT", "INTEGER"),
        ("BIGINT UNSIGNED", "INTEGER"),
        ("varchar(20)", "TEXT"),
        ("DOUBLE PRECISION", "REAL"),
        ("DECIMAL(10,2)", "NUMERIC"),
        ("FLOATING POINT", "INTEGER"),  # it contains INT
        ("", "BLOB"),
    ],
)
def test_affinities_are_sqlites(tmp_path, declared, affinity):
    (table,) = read_sample(str(make(tmp_path / "t.sqlite", f"CREATE TABLE t (a {declared});"))).tables
    assert table.columns[0].affinity == affinity
