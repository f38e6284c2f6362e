"""Task sets: sorted, unique, hashed, with advice for unknown ids."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gagpo.envs.tasks import EmptySplit, Task, TaskSet, UnknownTask
from tests.rejections import rejects

TASKS = st.lists(st.builds(Task, st.text(), st.just("test"), digest=st.text()), unique_by=lambda task: task.id)


@given(TASKS, st.randoms())
def test_order_of_arrival_does_not_matter(tasks: list[Task], rng: object) -> None:
    shuffled = list(tasks)
    rng.shuffle(shuffled)  # type: ignore[attr-defined]
    item, two = TaskSet("test", tasks), TaskSet("test", shuffled)
    assert item.ids == two.ids == sorted(task.id for task in tasks)
    assert item.hash == two.hash
    assert list(item) == list(two)
    assert all(task.id in item and item[task.id] is task for task in tasks)
    assert len(item) == len(tasks)


def test_the_hash_is_the_written_formula() -> None:
    tasks = TaskSet("test", [Task("b", "test", digest="2"), Task("a", "test", digest="1")])
    assert tasks.hash == hashlib.sha256(b"a\x001\nb\x002\n").hexdigest()[:16]


@pytest.mark.parametrize(
    "other",
    [
        [Task("a", "test", digest="1")],
        [Task("a", "test", digest="1"), Task("b", "test", digest="x")],
        [Task("a", "test", digest="1"), Task("c", "test", digest="2")],
        [Task("a", "test", digest=""), Task("b", "test", digest="2")],
    ],
)
def test_the_hash_depends_on_contents_and_ids(other: list[Task]) -> None:
    tasks = TaskSet("test", [Task("a", "test", digest="1"), Task("b", "test", digest="2")])
    assert tasks.hash != TaskSet("test", other).hash


def test_ids_that_look_like_numbers_are_sorted_as_text_and_kept_apart() -> None:
    assert TaskSet("test", [Task(str(n), "test") for n in (10, 9, 1)]).ids == ["1", "10", "9"]


def test_a_duplicate_task_is_rejected_by_name() -> None:
    with rejects(ValueError, "'b'", "twice"):
        TaskSet("test", [Task("a", "test"), Task("b", "test"), Task("c", "test"), Task("b", "test", digest="x")])


def test_an_unknown_id_names_the_nearest() -> None:
    tasks = TaskSet("train", [Task("heat-mug-7", "train"), Task("cool-pan-2", "train"), Task("z", "train")])
    with pytest.raises(UnknownTask) as caught:
        tasks["heat-mug-8"]
    assert str(caught.value) == "split 'train' has no task 'heat-mug-8'; nearest: heat-mug-7"
    assert isinstance(caught.value, KeyError)
    with rejects(UnknownTask, advice="3 tasks"):
        tasks["?"]


def test_an_unknown_id_of_any_size_or_type_is_answered() -> None:
    tasks = TaskSet("train", [Task("a", "train")])
    for expected in ("x" * 1_000_000, None, 3, ("a",), [], {}):
        assert expected not in tasks
        with pytest.raises(UnknownTask) as caught:
            tasks[expected]  # type: ignore[index]
        assert len(str(caught.value)) < 400


def test_an_empty_split_gives_advice() -> None:
    empty = TaskSet("valid", [], advice="Download the games.")
    assert len(empty) == 0 and empty.ids == [] and list(empty) == []
    for use in (empty.require, lambda: empty.draw(np.random.default_rng(0))):
        with rejects(EmptySplit, "valid", key="split", advice="Download the games."):
            use()


def test_draws_are_seeded_and_reach_every_task() -> None:
    tasks = TaskSet("train", [Task(str(n), "train") for n in range(5)])
    item = [tasks.draw(np.random.default_rng(7)).id for _ in range(3)]
    assert len(set(item)) == 1
    rng = np.random.default_rng(0)
    counts = np.bincount([int(tasks.draw(rng).id) for _ in range(5_000)], minlength=5)
    assert counts.min() > 900 and counts.max() < 1_100
