"""Files of tasks are read row by row, and handed over to programs whatever they hold."""

import json

import pytest

from gagpo.base.errors import InvalidArgument
from gagpo.envs.mcp.questions import read_questions
from gagpo.envs.program.tasks import read_tasks
from tests.envs.program.programs import play, running
from tests.rejections import rejects

NO_LINE_ENDS = "one\u2028two\u2029three\u0085four"
"""JSON allows these characters in a string as they are, and ``str.splitlines`` splits at them."""


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("{", "line 2: row: Invalid JSON"),
        ("[]", "line 2: row must be an object"),
        ("{}", "line 2: id is missing"),
        ('{"id": 5}', "line 2: id must be text (got 5)"),
        ('{"id": "a"}', "line 2: another row has the id 'a'"),
        ('{"id": "b", "split": "dev"}', "line 2: split must be 'train' or 'test'"),
        ('{"id": "b", "type": ["x"]}', "line 2: type must be text"),
        ('{"id": "b", "text": "' + "x" * (8 << 20) + '"}', "line 2: longer than 8 MB"),
        ('{"id": "\\ud800"}', "line 2: "),
        ('{"id": "b", "text": "half of a pair: \\ud83d"}', "line 2: row: Invalid JSON"),
        ('{"id": "b", "text": "\0"}', "line 2: row: Invalid JSON"),
        ('{"id": "b", "text": ' + "[" * 500 + "]" * 500 + "}", "line 2: row: Invalid JSON"),
    ],
)
def test_a_wrong_row_is_named_by_its_line(tmp_path, row, said):
    (tmp_path / "tasks.jsonl").write_text(f'{{"id": "a"}}\n{row}\n')
    with pytest.raises(InvalidArgument) as error:
        read_tasks(tmp_path / "tasks.jsonl")
    assert said in str(error.value) and "\n" not in str(error.value)


def test_a_fifth_of_the_ids_is_for_tests_and_rows_stay_as_they_are(tmp_path):
    lines = [f'{{"id": "task {i}", "type": "sum", "more": [{i}]}}' for i in range(1000)]
    (tmp_path / "tasks.jsonl").write_text("\n\n".join([*lines, '{"id": "own", "split": "test"}']))
    tasks, rows = read_tasks(tmp_path / "tasks.jsonl")
    assert 160 < len(tasks["test"]) < 240 and len(tasks["train"]) + len(tasks["test"]) == 1001
    assert "own" in tasks["test"] and rows["task 3"] == {"id": "task 3", "type": "sum", "more": [3]}
    assert tasks["test"]["own"].digest != tasks["train"][tasks["train"].ids[0]].digest


@pytest.mark.parametrize("start", ["", "\ufeff"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_only_line_feeds_and_carriage_returns_end_a_row(tmp_path, start, end):
    path = tmp_path / "rows.jsonl"

    def write(*rows):
        path.write_text(start + "".join(json.dumps(row, ensure_ascii=False) + end for row in rows), "utf-8", newline="")

    write({"id": "a", "q": NO_LINE_ENDS}, {"id": "b"})
    assert read_tasks(path)[1] == {"a": {"id": "a", "q": NO_LINE_ENDS}, "b": {"id": "b"}}
    write({"question": NO_LINE_ENDS, "answer": 1}, {"question": "second", "answer": 2})
    assert {read_question.text for read_question in read_questions(path)[1].values()} == {NO_LINE_ENDS, "second"}


def test_a_line_in_another_encoding_is_named(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"id": "a"}\n{"id": "caf\xe9"}\n')
    with rejects(InvalidArgument, "line 2", "utf-8"):
        read_tasks(path)
    path.write_text('{"id": "a"}', "utf-16")
    with rejects(InvalidArgument, "read", where="line 1"):
        read_tasks(path)


def test_a_program_gets_a_row_of_any_length(tmp_path):
    """Linux starts no program with a variable above 128 KiB."""
    source = """
chat(user("go"))
with open(os.environ["GAGPO_TASK_FILE"], encoding="utf-8") as file:
    row = json.load(file)
print(json.dumps({"reward": len(row.get("text", "")) + 0.5 * (os.environ.get("GAGPO_TASK") is None)}))
"""
    texts = {"small": "x\0y\u2028", "emoji": "\U0001f600" * 35_000, "large": "x" * (1 << 20)}
    rows = [{"id": name, "text": text} for name, text in texts.items()]
    with running(tmp_path, source, rows=rows) as pool:
        rewards = {name: play(pool, "ok", task=name)[-1].reward for name in texts}
    assert rewards == {"small": 4.0, "emoji": 35_000.5, "large": (1 << 20) + 0.5}


# Tables ---------------------------------------------------------------------------------------------------------------


def test_rows_of_a_table_are_numbered_and_renamed(tmp_path):
    lines = "\n".join(f'"{n} + 1?",{n + 1},' for n in range(10))
    (tmp_path / "sums.csv").write_text(f"\ufeffQ,A,split\n{lines}\n", encoding="utf-8")
    tasks, rows = read_tasks(tmp_path / "sums.csv", {"question": "Q", "answer": "A"})
    assert rows["sums-000002"] == {"id": "sums-000002", "question": "1 + 1?", "answer": "2"}
    assert len(tasks["train"]) + len(tasks["test"]) == 10 and len(tasks["test"]) >= 1


def test_ten_tasks_always_have_a_test_task(tmp_path):
    for number in range(20):
        path = tmp_path / f"{number}.jsonl"
        path.write_text("\n".join(json.dumps({"id": f"{number}/{task}"}) for task in range(10)))
        assert len(read_tasks(path)[0]["test"]) >= 1
        path.write_text("\n".join(json.dumps({"question": f"{number}/{task}?", "answer": 1}) for task in range(10)))
        assert len(read_questions(path)[0]["test"]) >= 1


def test_a_folder_and_parquet_files_keep_their_splits(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    (tmp_path / "data").mkdir()
    for split, ids in (("train", ["a", "b"]), ("test", ["c"])):
        table = pyarrow.Table.from_pylist([{"id": name, "score": float("nan"), "tags": [1]} for name in ids])
        parquet.write_table(table, tmp_path / "data" / f"{split}-00000-of-00001.parquet")
    tasks, rows = read_tasks(tmp_path)
    assert tasks["train"].ids == ["a", "b"] and tasks["test"].ids == ["c"]
    assert rows["c"] == {"id": "c", "score": None, "tags": [1], "split": "test"}


@pytest.mark.parametrize(
    ("name", "content", "columns", "key", "names"),
    [
        ("a.csv", "Q,A\n1,2\n", {"question": "X"}, None, ("a.csv, row 1", "'X'", "'Q', 'A'")),
        ("a.csv", "id,A\nx,1\nx,2\n", {}, None, ("row 2", "'x'")),
        ("a.csv", "id,split\nx,dev\n", {}, None, ("row 1", "train", "test")),
        ("a.csv", "id,A\nx,1,2\n", {}, None, ("row 1", "3 cells", "2 columns")),
        ("a.jsonl", '{"ID": "x"}\n', {"id": "Id", "x": "y"}, None, ("line 1", "'y'", "'ID'")),
        ("a.jsonl", '{"a": 1}\n{"id": "x"}\n{}\n', {"id": 3}, "columns.id", ("3",)),
        ("none.csv", None, {}, None, ("none.csv", "a header and one row per line")),
    ],
)
def test_a_wrong_table_names_file_row_and_column(tmp_path, name, content, columns, key, names):
    if content is not None:
        (tmp_path / name).write_text(content)
    with rejects(InvalidArgument, *names, key=key) as error:
        read_tasks(tmp_path / name, columns)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("names", [("id", "split", "type"), ("ID", "Split", "Type"), (" Id", " split ", "TYPE ")])
@pytest.mark.parametrize("suffix", ["csv", "json", "jsonl"])
def test_usual_columns_are_found_in_any_case(tmp_path, names, suffix):
    path = tmp_path / f"a.{suffix}"
    cells = [("a", "test", "sum"), ("b", "train", "sum"), ("c", "test", "sum")]
    table = [dict(zip((*names, "x"), (*row, "5"), strict=True)) for row in cells]
    if suffix == "csv":
        path.write_text("\n".join(",".join(row) for row in [[*names, "x"], *[row.values() for row in table]]))
    else:
        path.write_text(json.dumps(table) if suffix == "json" else "\n".join(map(json.dumps, table)))
    tasks, rows = read_tasks(path)
    assert tasks["test"].ids == ["a", "c"] and tasks["train"].ids == ["b"] and tasks["test"]["a"].type == "sum"
    assert rows["a"] == {"id": "a", "split": "test", "type": "sum"} | table[0]


def test_a_missing_value_of_a_usual_column_is_none(tmp_path):
    (tmp_path / "t.jsonl").write_text(
        '{"id": null, "split": null, "type": null}\n{"ID": null, "id": "own"}\n{"x": 1}\n'
    )
    tasks, rows = read_tasks(tmp_path / "t.jsonl")
    assert list(rows) == ["t-000001", "own", "t-000003"] and all(rows[name]["id"] == name for name in rows)
    assert {task.type for task in [*tasks["train"], *tasks["test"]]} == {""}
    (tmp_path / "t.csv").write_text("ID,part,Split\na,,\nb,train,\nc\n")
    for columns in ({}, {"split": "part"}):
        tasks, rows = read_tasks(tmp_path / "t.csv", columns)
        assert sorted(rows) == ["a", "b", "c"] and "split" not in rows["a"]
        assert not columns or "b" in tasks["train"]


@pytest.mark.parametrize("suffix", ["jsonl", "json"])
@pytest.mark.parametrize("columns", [{}, {"x": "y"}])
@pytest.mark.parametrize(
    ("row", "name"),
    [
        ("null", "an object"),
        ("[1]", "an object"),
        ('"id"', "an object"),
        ('{"id": "b", "y": "\\ud800"}', "row"),
        ('{"id": "b", "y": NaN}', "(got nan)"),
        ('{"id": "b", "y": 1e999}', "(got inf)"),
        ('{"id": "b", "y": [0, {"z": -Infinity}]}', "[1].z"),
        ('{"id": "b", "y": 1, "Split": "dev"}', "Split"),
    ],
)
def test_a_wrong_row_is_named_in_every_format(tmp_path, suffix, columns, row, name):
    path = tmp_path / f"a.{suffix}"
    lines = ['{"id": "a", "y": 1}', row]
    path.write_text("[" + ",".join(lines) + "]" if suffix == "json" else "\n".join(lines))
    location = f"tasks {path}, {'row' if suffix == 'json' else 'line'} 2"
    with rejects(InvalidArgument, name, where=location):
        read_tasks(path, columns)


def test_a_wrong_row_of_a_folder_is_named_by_its_file(tmp_path):
    (tmp_path / "test.jsonl").write_text('{"id": "a"}\n')
    for name, row, location in (("train.jsonl", "{", "line 1"), ("train.csv", 'id,x\na,"b\nc,d\n', "row 1")):
        (tmp_path / name).write_text(row)
        with rejects(InvalidArgument, f"{tmp_path / name}, {location}: "):
            read_tasks(tmp_path)
        (tmp_path / name).unlink()


def test_values_of_parquet_that_are_not_json_are_named(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    for value, name in (([float("nan")], "x[0]"), (b"1", "type bytes")):
        parquet.write_table(pyarrow.table({"id": ["a"], "x": [value]}), tmp_path / "a.parquet")
        with rejects(InvalidArgument, "a.parquet, row 1", name):
            read_tasks(tmp_path / "a.parquet")


def test_a_folder_of_configurations_says_what_to_name(tmp_path):
    for name in ("main", "more"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.jsonl").write_text('{"id": "a"}\n')
    with rejects(InvalidArgument, "/main", "/more") as error:
        read_tasks(tmp_path)
    assert "data=" not in str(error.value) and len(read_tasks(tmp_path / "main")[1]) == 1


def test_a_table_in_another_encoding_is_named(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"id,Q\nx,caf\xe9\n")
    with rejects(InvalidArgument, "row 1", "UTF-8"):
        read_tasks(tmp_path / "a.csv")


def test_packed_tables_are_refused_by_their_suffix(tmp_path):
    (tmp_path / "rows.jsonl.gz").write_bytes(b"\x1f\x8b\x08")
    with rejects(InvalidArgument, "rows.jsonl.gz"):
        read_tasks(tmp_path / "rows.jsonl.gz")


def test_suffixes_in_capitals_name_the_same_formats(tmp_path):
    (tmp_path / "rows.CSV").write_text("id,question\na,2 + 3?\nb,3 + 4?\n")
    assert read_tasks(tmp_path / "rows.CSV")[1]["a"]["question"] == "2 + 3?"


def test_the_rows_of_verl_reach_the_program(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    prompt = [{"role": "user", "content": "3 + 4?"}]
    rows = [{"id": name, "prompt": prompt, "reward_model": {"ground_truth": "7"}} for name in "ab"]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "rows.parquet")
    assert read_tasks(tmp_path / "rows.parquet")[1]["a"]["prompt"] == prompt
