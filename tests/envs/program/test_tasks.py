"""Files of tasks are read row by row."""

import pytest

from gagpo.base.errors import InvalidArgument
from gagpo.envs.program.tasks import read_tasks


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
        ('{"id": "b", "text": "' + "x" * 100_000 + '"}', "line 2: longer than 100000 characters"),
        ('{"id": "\\ud800"}', "line 2: "),
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
