"""Rows of whole, odd and damaged files are read, or named in one line."""

import csv
import json
import logging
import random

import datasets
import pytest

from gagpo.base.errors import InvalidArgument
from gagpo.base.row_files import BadRow
from gagpo.envs.math.env import MathEnv
from gagpo.envs.math.sources import load
from gagpo.eval.models import evaluate
from tests.envs.math.test_sources import write
from tests.rejections import rejects


def test_csv_json_and_parquet(tmp_path):
    rows = [{"problem": "What is 1 + 1?", "answer": "2"}, {"problem": "What is 5 + 5?", "answer": "10"}]
    with (tmp_path / "a.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["problem", "answer"])
        writer.writeheader()
        writer.writerows(rows)
    (tmp_path / "a.json").write_text(json.dumps(rows))
    datasets.Dataset.from_list(rows).to_parquet(tmp_path / "a.parquet")
    for name in ("a.csv", "a.json", "a.parquet"):
        loaded = load({"test": str(tmp_path / name)})
        assert [loaded.problem(task.id).answer for task in loaded.tasks("test")] == ["2", "10"], name


def test_columns_can_be_named(tmp_path):
    path = write(tmp_path / "own.jsonl", [{"q": "What is 1 + 1?", "a": r"It is \boxed{2}."}])
    loaded = load({"test": {"path": path, "problem": "q", "answer": "a", "gold": "boxed"}})
    assert [loaded.problem(task.id).answer for task in loaded.tasks("test")] == ["2"]


BAD_ROWS = [
    ({"problem": "?"}, ("'answer' or 'final_answer'", "has 'problem'")),
    ({"answer": "1"}, ("'problem' or 'question'", "has 'answer'")),
    ({"problem": "  ", "answer": "1"}, ("problem is empty",)),
    ({"problem": None, "answer": "1"}, ("problem is empty",)),
    ({"problem": "x" * 30_000, "answer": "1"}, ("20000",)),
    ({"problem": "?", "answer": ""}, ("answer is empty",)),
    ({"problem": "?", "answer": "#### "}, ("answer is empty",)),
    ({"problem": "?", "answer": None}, ("answer is None",)),
    ({"problem": "?", "answer": []}, ("empty list",)),
    ({"problem": "?", "answer": True}, ("answer is True",)),
    ({"problem": "?", "answer": {"value": 1}}, ("dict",)),
    ({"problem": "?", "answer": r"\frac{1}{2"}, ("gold answer", "braces")),
    ({"problem": "?", "answer": "9" * 2000}, ("longer than 1000",)),
    ("just text", ("columns", "str")),
    (["problem", "answer"], ("columns", "list")),
]


@pytest.mark.parametrize(("row", "names"), BAD_ROWS)
def test_a_bad_row_is_named_and_refused(row, names, tmp_path):
    path = write(tmp_path / "bad.jsonl", [{"problem": "What is 1 + 1?", "answer": "2"}, row])
    with rejects(BadRow, "bad.jsonl, row 2", *names) as error:
        load({"test": path})
    assert "\n" not in str(error.value)


def test_bad_rows_are_skipped_and_counted_on_request(tmp_path, caplog):
    good = {"problem": "What is 1 + 1?", "answer": "2"}
    path = write(tmp_path / "bad.jsonl", [good, *(row for row, _ in BAD_ROWS)])
    with caplog.at_level(logging.WARNING):
        loaded = load({"test": path}, on_bad_row="skip")
    assert len(loaded.tasks("test")) == 1 and len(loaded.skipped) == len(BAD_ROWS)
    assert f"{len(BAD_ROWS)} bad rows were skipped; the first: {path}, row 2: no column 'answer'" in caplog.text


@pytest.mark.parametrize("line", ["{", "nonsense", "[" * 100_000])
def test_broken_json_is_named(line, tmp_path):
    path = tmp_path / "broken.jsonl"
    path.write_text('{"problem": "?", "answer": "1"}\n\n' + line + "\n")
    with rejects(BadRow, "JSON", where="broken.jsonl, row 3"):
        load({"test": str(path)})


@pytest.mark.parametrize("name", ["a.parquet", "a.json"])
def test_a_file_that_is_something_else(name, tmp_path):
    (tmp_path / name).write_text("[ this is neither")
    with rejects(BadRow, where=name):
        load({"test": str(tmp_path / name)})


LONG = "7" * 5_000
NAIVE = '{"Problem": "naïve?", "Answer": "1"}\n'


@pytest.mark.parametrize(
    ("name", "content", "place"),
    [
        ("a.csv", 'problem,answer\n?,1\n"' + "x" * 200_000 + '",2\n', "row 2: after line 2: not CSV"),
        ("a.csv", f"problem,answer\n?,{LONG}\n", "row 1: column 'answer': the answer is longer than"),
        ("a.jsonl", f'{{"problem": "?", "answer": {LONG}}}\n', "row 1: not a JSON object"),
        ("a.json", f'[{{"problem": "?", "answer": {LONG}}}]', "not a JSON array"),
        ("a.json", "[" * 100_000, "not a JSON array"),
        ("a.jsonl", '{"problem": "?", "answer": ' + "[" * 900 + "1" + "]" * 900 + "}\n", "row 1: "),
        ("a.jsonl", '{"problem": "?", "answer": ' + "1" + "0" * 4_000 + "}\n", "row 1: "),
        ("a.jsonl", '{"problem": "?", "answer": 1e999}\n', "row 1: column 'answer': the answer is inf"),
        ("a.jsonl", '{"problem": "\\ud800?", "answer": 1}\n', "row 1: the problem contains a lone surrogate"),
    ],
)
def test_a_row_that_breaks_a_reader_is_one_line_with_file_and_row(name, content, place, tmp_path):
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(BadRow) as caught:
        load({"test": str(path)}).tasks("test")
    message = str(caught.value)
    assert str(path) in message and place in message and "\n" not in message and len(message) < 600


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_a_byte_order_mark_and_capitals_are_read_and_a_row_that_is_not_utf8_is_refused(suffix, tmp_path):
    path = tmp_path / f"latin.{suffix}"
    rows = {"csv": "Problem, Answer\n1+1?,2\nnaïve?,1\n", "jsonl": '{"Problem": "1+1?", "Answer": 2}\n' + NAIVE}[suffix]
    path.write_bytes(b"\xef\xbb\xbf" + rows.encode())
    assert [problem.answer for problem in load({"test": str(path)}).problems["test"].values()] == ["2", "1"]
    path.with_stem("old").write_bytes(rows.encode("latin-1"))
    with rejects(BadRow, "row 2", "UTF-8"):
        load({"test": str(path.with_stem("old"))})


def test_one_problem_with_two_answers_is_a_bad_row(tmp_path):
    rows = [{"problem": "How many?", "answer": answer} for answer in ("2", "2.0", "3")]
    path = write(tmp_path / "twice.jsonl", rows)
    with rejects(BadRow, "twice.jsonl", "row 3", "'3'", "row 1", "'2'"):
        load({"test": path})
    loaded = load({"test": path}, on_bad_row="skip")
    assert len(loaded.tasks("test")) == len(loaded.repeated) == len(loaded.skipped) == 1


@pytest.mark.parametrize("suffix", ["csv", "json", "jsonl", "parquet"])
def test_damaged_files_are_read_or_named(suffix, tmp_path):
    rows = [{"problem": f"How many are {i} and {i}?", "answer": str(2 * i), "type": "words"} for i in range(60)]
    full = tmp_path / f"whole.{suffix}"
    getattr(datasets.Dataset.from_list(rows), {"csv": "to_csv", "parquet": "to_parquet"}.get(suffix, "to_json"))(full)
    content = json.dumps(rows).encode() if suffix == "json" else full.read_bytes()
    chance = random.Random(suffix)
    named = 0
    for number in range(60):
        damaged = bytearray(content)
        if number % 3 == 0:
            del damaged[chance.randrange(len(damaged)) :]
        else:
            for _ in range(1 + number % 5):
                damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        path = tmp_path / f"damaged-{number}.{suffix}"
        path.write_bytes(damaged)
        try:
            load({"test": str(path)}).tasks("test").hash  # noqa: B018 (computing it is the test)
        except BadRow as error:
            named += 1
            assert path.name in str(error) and "\n" not in str(error)
    assert named


# Data of one's own ----------------------------------------------------------------------------------------------------

TEN = [{"Q": f"What is {n} + 7?", "Solution": f"It is \\boxed{{{n + 7}}}.", "Level": "easy"} for n in range(10)]
COLUMNS = {"problem": "Q", "answer": "Solution", "type": "Level"}


def test_ten_rows_with_other_columns_make_tasks_of_every_split(tmp_path):
    with (tmp_path / "sums.csv").open("w", newline="", encoding="utf-8-sig") as file:
        writer = csv.DictWriter(file, list(TEN[0]), delimiter=";")
        writer.writeheader()
        writer.writerows(TEN)
    env = MathEnv(data=str(tmp_path / "sums.csv"), columns=COLUMNS, split="test", expert=True)
    sizes = {split: len(env.tasks(split)) for split in env.splits}
    assert sum(sizes.values()) == 10 and min(sizes.values()) == 1 and env.default_split() == "test"
    _, info = env.reset(seed=0)
    assert info["task_type"] == "easy" and env.step(info["expert_action"])[4]["success"]


@pytest.mark.parametrize(
    ("columns", "names"),
    [
        ({"problem": "Q", "answer": "Sol"}, ("row 1", "'Sol'", "'Q', 'Solution', 'Level'")),
        ({"problem": "Q"}, ("row 1", "'answer'", "'Level'", "columns={answer: NAME}")),
        ({**COLUMNS, "split": "Level"}, ("train, validation", "row 1", "Level", "easy")),
    ],
)
def test_a_wrong_column_is_named_with_the_columns_that_exist(tmp_path, columns, names):
    rows = [{"Q": "2 + 3?", "Solution": "5", "Level": "easy"}]
    if "answer" not in columns:
        rows = [{"Q": "2 + 3?", "Result": "5", "Level": "easy"}]
    with rejects(BadRow, *names):
        load(write(tmp_path / "a.jsonl", rows), columns=columns)


def test_an_empty_cell_is_named_with_its_column(tmp_path):
    path = write(tmp_path / "a.jsonl", [TEN[0], {**TEN[1], "Solution": ""}])
    with rejects(BadRow, key="Solution", where="a.jsonl, row 2"):
        load(path, columns=COLUMNS)


def test_columns_need_data():
    with rejects(InvalidArgument, key="columns"):
        MathEnv(columns=COLUMNS)


def test_a_column_of_splits_divides_a_file(tmp_path):
    rows = [{"problem": f"{n} + 1?", "answer": n + 1, "split": split} for n, split in enumerate(["train", "dev", ""])]
    loaded = load(write(tmp_path / "a.jsonl", rows))
    sizes = {split: len(loaded.tasks(split)) for split in ("train", "validation", "test")}
    assert sizes["train"] >= 1 and sizes["validation"] >= 1 and sum(sizes.values()) == 3


def test_a_folder_in_the_hubs_layout_keeps_its_splits(tmp_path):
    (tmp_path / "data").mkdir()
    datasets.Dataset.from_list(TEN[:4]).to_parquet(tmp_path / "data" / "train-00000-of-00002.parquet")
    datasets.Dataset.from_list(TEN[4:8]).to_parquet(tmp_path / "data" / "train-00001-of-00002.parquet")
    datasets.Dataset.from_list(TEN[8:]).to_parquet(tmp_path / "data" / "validation-00000-of-00001.parquet")
    env = MathEnv(data=str(tmp_path), columns=COLUMNS)
    assert [len(env.tasks(split)) for split in env.splits] == [8, 2, 0]
    assert env.default_split() == "validation"
    assert env.tasks("train").ids[4].endswith("-train-000005")
    datasets.DatasetDict({"test": datasets.Dataset.from_list(TEN)}).save_to_disk(str(tmp_path / "saved"))
    loaded = load(str(tmp_path / "saved"), columns=COLUMNS)
    assert len(loaded.tasks("test")) == 10 and len(loaded.tasks("train")) == 0


def test_a_mistake_in_one_of_several_files_names_that_file(tmp_path):
    write(tmp_path / "train-1.jsonl", TEN[:2])
    write(tmp_path / "train-2.jsonl", [TEN[2], {"Q": "?"}])
    with rejects(BadRow, "Solution", where="train-2.jsonl, row 2", advice="'Q'"):
        load(str(tmp_path), columns=COLUMNS)


def test_an_evaluation_takes_the_last_split_that_the_data_has(tmp_path):
    path = write(tmp_path / "a.jsonl", TEN)
    kwargs = {"data": {"train": path, "validation": write(tmp_path / "b.jsonl", [{**TEN[0], "Q": "What is 90 + 1?"}])}}
    result = evaluate(
        "expert", environment="gagpo/Math-v0", kwargs={**kwargs, "columns": COLUMNS}, workers=0, quiet=True
    )
    assert (result.task_set.split, result.task_set.tasks) == ("validation", 1)
