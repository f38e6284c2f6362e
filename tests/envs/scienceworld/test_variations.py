"""The tasks, splits and arguments of ScienceWorld, without Java."""

from __future__ import annotations

import pytest

from gagpo.base.errors import InvalidArgument
from gagpo.envs.scienceworld.variations import (
    SPLITS,
    VARIATIONS,
    checked_simplifications,
    checked_tasks,
    task_set,
)
from tests.rejections import rejects


def test_the_splits_are_the_official_ones_and_share_nothing() -> None:
    sets = {split: task_set(split, tuple(VARIATIONS), "") for split in SPLITS}
    assert {split: len(tasks) for split, tasks in sets.items()} == {"train": 3592, "dev": 1796, "test": 1819}
    digests = [task.digest for tasks in sets.values() for task in tasks]
    assert len(set(digests)) == len(digests) == 7207
    assert [task.source for task in task_set("dev", ("boil",), "")] == [str(number) for number in range(14, 21)]
    assert task_set("dev", ("boil",), "").hash != task_set("dev", ("boil",), "easy").hash


@pytest.mark.parametrize(
    ("names", "expected"),
    [("all", tuple(VARIATIONS)), ("melt", ("melt",)), (["melt", "boil", "melt"], ("boil", "melt"))],
)
def test_task_types_are_a_name_a_list_or_all(names: str | list[str], expected: tuple[str, ...]) -> None:
    assert checked_tasks(names) == expected


@pytest.mark.parametrize(
    ("names", "expected"),
    [("", ""), ([], ""), ("easy", "easy"), ("openDoors, openContainers", "openContainers,openDoors")],
)
def test_simplifications_are_a_list_or_a_text(names: str | list[str], expected: str) -> None:
    assert checked_simplifications(names) == expected


@pytest.mark.parametrize(
    ("check", "value", "key", "names"),
    [
        (checked_tasks, "boill", None, ("'boill'", "nearest: boil")),
        (checked_tasks, ["melt", 3], None, ("task type 3",)),
        (checked_tasks, [], "task_types", ()),
        (checked_simplifications, "openDoor", None, ("'openDoor'", "nearest: openDoors")),
        (
            lambda split: task_set(split, ("boil",), ""),
            "valid",
            None,
            ("train, dev, test", "valid"),
        ),
    ],
)
def test_wrong_arguments_name_the_right_ones(check, value, key, names) -> None:
    with rejects(InvalidArgument, *names, key=key):
        check(value)
