"""Few tasks are divided so that training and test tasks exist; many are divided by their hash alone."""

from hypothesis import given
from hypothesis import strategies as st

from gagpo.envs.division import FEW, divided, fill_splits, split_of
from gagpo.envs.tasks import Task

SPLITS = ("train", "validation", "test")


@given(st.sets(st.text(min_size=1), min_size=2, max_size=40))
def test_two_tasks_make_a_test_task_and_ten_fill_every_split(keys):
    division = fill_splits({key: split_of(key) for key in keys}, SPLITS)
    assert division.keys() == keys and {"train", "test"} <= set(division.values())
    if len(keys) >= FEW:
        assert set(division.values()) == set(SPLITS)


def test_only_empty_splits_are_filled():
    keys = [f"What is {n} + 1?" for n in range(200)]
    by_hash = {key: split_of(key) for key in keys}
    assert fill_splits(by_hash, SPLITS) == by_hash
    assert fill_splits({"a": "train"}, SPLITS) == {"a": "train"}
    assert fill_splits({}, SPLITS) == {}


def test_a_split_that_rows_name_is_not_filled_by_others():
    tasks = [Task("own", "test"), *(Task(f"t{n}", "") for n in range(12))]
    sets = divided(tasks, {f"t{n}": "train" for n in range(12)}, ("train", "test"), "")
    assert sets["test"].ids == ["own"] and len(sets["train"]) == 12
    assert all(task.split == "train" for task in sets["train"])
