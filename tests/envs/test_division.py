"""Few tasks are divided so that training and test tasks exist; many are divided by their hash alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gagpo.base.errors import InvalidArgument
from gagpo.envs.division import FEW, SMALL, divided, fill_splits, hold_out, shared, split_of
from gagpo.envs.tasks import EmptySplit, Task, TaskSet
from tests.rejections import rejects

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


def games(*ids: str) -> TaskSet:
    return TaskSet("train", [Task(name, "train", digest=f"content of {name}") for name in ids])


def room_of(task: Task) -> str:
    return task.id.split("/")[0]


@given(st.sets(st.integers(0, 500), min_size=1, max_size=60), st.floats(0, 0.99))
def test_held_out_tasks_are_the_rest_and_groups_stay_together(rooms, fraction):
    tasks = games(*(f"{room}/{trial}" for room in rooms for trial in "ab"))
    train, dev = hold_out(tasks, fraction, "train_dev", room_of)
    assert (train.split, dev.split) == ("train", "train_dev") and {task.split for task in dev} <= {"train_dev"}
    assert sorted([*train.ids, *dev.ids]) == tasks.ids
    assert not {room_of(task) for task in train} & {room_of(task) for task in dev}
    more = games(*tasks.ids, "another/a")
    train_of_more, dev_of_more = hold_out(more, fraction, "train_dev", room_of)
    assert set(train.ids) <= set(train_of_more.ids) and set(dev.ids) <= set(dev_of_more.ids)


def test_the_fraction_is_held_out_and_an_empty_part_says_so():
    tasks = games(*(f"{room}/a" for room in range(2000)))
    assert len(hold_out(tasks, 0.25, "train_dev", room_of)[1]) == 535
    few = hold_out(games("mug/a"), 0.01, "train_dev", room_of)[1]
    with rejects(EmptySplit, key="split", advice="0.01"):
        few.require()


def test_equal_problems_on_both_sides_are_refused():
    ids = ("1/a", "2/a")  # by their hashes the first is held out
    tasks = TaskSet("train", [Task(name, "train", digest="the same") for name in ids])
    with rejects(InvalidArgument, "'2/a'", "'1/a' of train_dev"):
        hold_out(tasks, 0.5, "train_dev", room_of)
    assert [(a.id, b.id) for a, b in shared(games("x", "y"), games("y", "z"))] == [("y", "y")]
    without_content = TaskSet("test", [Task("y", "test")])
    assert shared(without_content, without_content) and not shared(without_content, games("y"))


@pytest.mark.parametrize(("count", "expected"), [(2, 1), (3, 1), (12, 2), (24, 5), (50, 10), (99, 20)])
@pytest.mark.parametrize("chance", ["train", "test"])
def test_a_fifth_of_few_tasks_is_a_fifth(count, expected, chance):
    """By chance all of them may fall on one side."""
    tasks = [Task(f"t{number}", "") for number in range(count)]
    sets = divided(tasks, {task.id: chance for task in tasks}, ("train", "test"), "")
    assert len(sets["test"]) == expected and len(sets["train"]) == count - expected


def test_many_tasks_are_divided_by_their_hash_alone():
    tasks = [Task(f"t{number}", "") for number in range(SMALL)]
    chance = {task.id: "test" if number < 30 else "train" for number, task in enumerate(tasks)}
    sets = divided(tasks, chance, ("train", "test"), "")
    assert sorted(sets["test"].ids) == sorted(f"t{number}" for number in range(30))
