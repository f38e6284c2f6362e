"""Tables of rows: what spreadsheet programs and the hub write is read, and what is wrong is one line."""

import csv
import json

import pytest

from gagpo.base.errors import InvalidArgument
from gagpo.base.row_files import BadRow, DataMissing, checked_columns, file_rows, folder_splits, renamed
from tests.rejections import rejects

ROWS = [{"Q": "2 + 3?", "A": "5"}, {"Q": 'say "a, b"', "A": "a;b"}]


def write_csv(path, delimiter=",", encoding="utf-8", rows=ROWS):
    with path.open("w", newline="", encoding=encoding) as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.mark.parametrize(
    ("name", "delimiter", "encoding"),
    [("a.csv", ",", "utf-8"), ("a.csv", ",", "utf-8-sig"), ("a.csv", ";", "utf-8-sig"), ("a.tsv", "\t", "utf-8")],
)
def test_tables_of_spreadsheet_programs_are_read(tmp_path, name, delimiter, encoding):
    path = write_csv(tmp_path / name, delimiter, encoding)
    assert list(file_rows(path)) == [(1, ROWS[0]), (2, ROWS[1])]


def test_lines_and_parquet_are_read(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    (tmp_path / "a.jsonl").write_text("\ufeff" + "\n".join(map(json.dumps, ROWS)), encoding="utf-8")
    parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "a.parquet")
    for name in ("a.jsonl", "a.parquet"):
        assert [row for _, row in file_rows(tmp_path / name)] == ROWS


def test_a_table_may_have_any_number_of_columns(tmp_path):
    """Each of 200,000 names was compared with all others, which did not end."""
    names = [f"c{number}" for number in range(200_000)]
    path = tmp_path / "a.csv"
    path.write_text(f"{','.join(names)},Q\n{',' * len(names)}2 + 3?\n")
    ((_, row),) = file_rows(path)
    assert len(row) == len(names) + 1 and renamed(row, {"question": "q"})["question"] == "2 + 3?"
    path.write_text(",".join([*names, "c7"]) + "\n")
    with rejects(BadRow, "'c7'", "twice"):
        list(file_rows(path))


@pytest.mark.parametrize(
    ("content", "names"),
    [
        (b"\xff\xfeQ\x00", ("UTF-16", "UTF-8")),
        (b"Q,A,Q\n1,2,3\n", ("'Q'", "twice")),
        (b'Q,"A\n1,2\n', ("header", "CSV", "quote")),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path, content, names):
    (tmp_path / "a.csv").write_bytes(content)
    with rejects(BadRow, *names, where="a.csv"):
        list(file_rows(tmp_path / "a.csv"))


def test_a_row_with_too_many_cells_is_an_error_of_that_row(tmp_path):
    (tmp_path / "a.csv").write_text("Q,A\n2 + 3?,5,\nWhat, then?,5\n")
    (_, first), (number, error) = file_rows(tmp_path / "a.csv")
    assert first == {"Q": "2 + 3?", "A": "5"}  # empty surplus cells are those of a spreadsheet
    assert number == 2 and str(error) == "3 cells for 2 columns; put cells that contain ',' into quotes"


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("text", ["2, 3; 4", 'say "a",\n\nthen b'])
def test_a_quote_that_is_left_out_hides_no_rows(tmp_path, delimiter, text):
    path = write_csv(tmp_path / "a.csv", delimiter, rows=[{"Q": text, "A": f"\t,;{n}"} for n in range(3)])
    data = path.read_bytes()
    assert [row["Q"] for _, row in file_rows(path)] == [text] * 3
    refused = 0
    for location in (location for location, byte in enumerate(data) if byte == ord('"')):
        path.write_bytes(data[:location] + data[location + 1 :])
        try:
            rows = [row for _, row in file_rows(path)]
            assert len(rows) >= 3 or any(isinstance(row, ValueError) for row in rows)
        except BadRow as error:
            assert "a quote is not closed" in str(error)
            refused += 1
    assert refused >= 1


@pytest.mark.parametrize("content", ['a,"b\nc,d\ne,f\n', 'a,"b\nc,"d"\ne,f\n', 'a,"b', '"a\n\n",b\n\n\na,"b\n\n'])
def test_a_quote_that_is_not_closed_is_named_by_row_and_line(tmp_path, content):
    (tmp_path / "a.csv").write_text(f"Q,A\n{content}")
    row, line = (2, 7) if content.startswith('"') else (1, 2)
    with rejects(BadRow, f"line {line}", where=f"a.csv, row {row}", advice="close each quote"):
        list(file_rows(tmp_path / "a.csv"))


def test_a_cell_that_takes_many_rows_is_no_row(tmp_path):
    (tmp_path / "a.csv").write_text('Q,A\n1,"2\n' + "3,4\n" * 40_000)
    with rejects(BadRow, "CSV", "line 2", where="row 1"):
        list(file_rows(tmp_path / "a.csv"))


@pytest.mark.parametrize(
    ("row", "cells"),
    [
        ('say "hi",2', ('say "hi"', "2")),
        ('5" or 6",2', ('5" or 6"', "2")),
        (' "hi",2', (' "hi"', "2")),
        ('"hi" ,2', ("hi ", "2")),
        ('"hi\nall" \t,"2" ', ("hi\nall \t", "2 ")),
        ('"say ""hi""\n""all"" ,",2', ('say "hi"\n"all" ,', "2")),
        ('"say "hi"",2', ('say hi""', "2")),
        ('"hi","2"', ("hi", "2")),
    ],
)
def test_quotes_that_take_no_other_row_are_read_as_before(tmp_path, row, cells):
    for content in (f"Q,A\n{row}\n\n{row}\n\n", f"Q,A\n{row}\n{row}"):
        (tmp_path / "a.csv").write_text(content, newline="")
        assert [tuple(read.values()) for _, read in file_rows(tmp_path / "a.csv")] == [cells, cells]


@pytest.mark.parametrize("start", ["", "\ufeff", "\n ", "\r\n\t", "\ufeff\n"])
def test_an_array_is_read_after_white_space(tmp_path, start):
    (tmp_path / "a.json").write_text(start + json.dumps(ROWS), encoding="utf-8")
    assert list(file_rows(tmp_path / "a.json")) == [(1, ROWS[0]), (2, ROWS[1])]
    (tmp_path / "a.json").write_text(start + "\n".join(map(json.dumps, ROWS)), encoding="utf-8")
    assert [row for _, row in file_rows(tmp_path / "a.json")] == ROWS


def test_columns_are_checked_and_renamed():
    assert checked_columns(None, ("problem",)) == {}
    row = {"Q": "2 + 3?", "A": "5", "answer": "old", "n": 1}
    assert renamed(row, {"question": "q", "answer": "A"}) == {"n": 1, "question": "2 + 3?", "answer": "5"}
    for columns, key, names in (
        ("Q", "columns", ("columns={problem: NAME}", "'Q'")),
        ({"problm": "Q"}, "columns", ("'problm'", "one of problem")),
        ({"problem": 3}, "columns.problem", ("3",)),
    ):
        with rejects(InvalidArgument, *names, key=key):
            checked_columns(columns, ("problem",))
    with rejects(InvalidArgument, "'X'", advice="'Q', 'A', 'answer', 'n'"):
        renamed(row, {"question": "X"})


LAYOUTS = {
    "files": ({"train": ["train.csv"], "test": ["test.csv"]}, ["README.md", "notes.jsonl"]),
    "shards": ({"train": ["data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet"]}, []),
    "folders": ({"train": ["train/a.jsonl"], "validation": ["dev/b.jsonl"]}, ["dataset_infos.json"]),
    "one file": ({None: ["sums.jsonl"]}, [".hidden.csv"]),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_of_the_hub_are_recognised(tmp_path, layout):
    splits, further_files = LAYOUTS[layout]
    for name in [*(name for names in splits.values() for name in names), *further_files]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert folder_splits(tmp_path) == {split: [tmp_path / name for name in names] for split, names in splits.items()}


def test_configurations_must_be_chosen(tmp_path):
    for name in ("main/train-0.parquet", "main/test-0.parquet", "socratic/train-0.parquet"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert folder_splits(tmp_path, "socratic") == {"train": [tmp_path / "socratic/train-0.parquet"]}
    with rejects(InvalidArgument, advice="main, socratic with data="):
        folder_splits(tmp_path, argument="data")
    with rejects(InvalidArgument, "mian", advice="main, socratic"):
        folder_splits(tmp_path, "mian", "data")


@pytest.mark.parametrize(
    ("files", "places"),
    [
        (["main/train.csv", "main/test.csv", "socratic/train.csv"], ["main", "socratic"]),
        (["a.csv", "b/c.csv"], ["a.csv", "b"]),
        (["train/main/a.csv", "test/main/a.csv", "train/socratic/a.csv"], ["test/main/a.csv", "train/socratic"]),
        (["data/main/train.csv", "data/main/test.csv", "data/more/train.csv"], ["data/main", "data/more"]),
    ],
)
def test_configurations_have_places_that_can_be_read(tmp_path, files, places):
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    with rejects(InvalidArgument, "configurations", advice="folder or file") as error:
        folder_splits(tmp_path)
    assert str(error.value.advice).split(": ")[1].split(", ") == [str(tmp_path / location) for location in places]
    for location in places:
        assert (tmp_path / location).is_file() or folder_splits(tmp_path / location)


def test_a_folder_without_data_is_one_line(tmp_path):
    with rejects(DataMissing, advice=".jsonl"):
        folder_splits(tmp_path)
