"""The order of tasks: shares of the environments, their tasks, and the state of a checkpoint."""

import random

from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from gagpo.collecting.schedule import Schedule, WeightedRoundRobin
from gagpo.envs.tasks import Task, TaskSet
from gagpo.settings import load
from tests.rejections import rejects

CORRIDOR = "gagpo.envs.testing:gagpo-test/Corridor-v0"
TASKS = {
    "a": TaskSet("train", [Task(f"a{number}", "train") for number in range(5)]),
    "b": TaskSet("train", [Task(f"b{number}", "train") for number in range(7)]),
    "c": TaskSet("train", [Task(f"c{number}", "train") for number in range(3)]),
}


def scheduled(corridor, weights=(2, 1, 1), tasks=8):
    rows = [{"name": name, "weight": weight, "id": CORRIDOR} for name, weight in zip("abc", weights, strict=False)]
    settings = load(corridor(environment=None, environments=rows, rollout={"tasks": tasks}))
    return Schedule(settings, TASKS)


@examples(max_examples=60, deadline=None)
@given(st.lists(st.decimals("0.01", "100", places=2), min_size=1, max_size=6))
def test_no_env_is_ever_a_whole_group_from_its_due(weights):
    shares, had = WeightedRoundRobin([float(weight) for weight in weights]), [0] * len(weights)
    for location in range(200):
        had[shares.at(location)] += 1
        due = [float(weight / sum(weights)) * (location + 1) for weight in weights]
        assert all(abs(reference - right) < 1 for reference, right in zip(had, due, strict=True))


def test_every_iteration_has_the_shares_exactly(corridor):
    schedule = scheduled(corridor)
    for first in range(0, 80, 8):
        envs = [schedule.task_at(location)[0] for location in range(first, first + 8)]
        assert [envs.count(name) for name in "abc"] == [4, 2, 2]
    orders = {tuple(schedule.task_at(first + location)[0] for location in range(8)) for first in range(0, 80, 8)}
    assert len(orders) > 3  # so that a rank which plays every other group plays them all


def test_each_env_plays_its_own_tasks_in_the_order_of_a_run_of_it_alone(corridor):
    schedule = scheduled(corridor)
    alone = Schedule(load(corridor()), {"": TASKS["b"]})
    reference = [task for task in map(schedule.task_at, range(80)) if task.startswith("b.")]
    assert reference == [f"b.{alone.task_at(location)}" for location in range(20)]


def test_places_may_be_asked_for_in_any_order(corridor):
    first, second = scheduled(corridor), scheduled(corridor)
    locations = list(range(60))
    random.Random(1).shuffle(locations)
    assert {location: first.task_at(location) for location in locations} == {
        location: second.task_at(location) for location in range(60)
    }


def test_an_empty_split_is_named(corridor):
    rows = [{"name": "a", "id": CORRIDOR}]
    with rejects(ValueError, "train", key="split"):
        Schedule(load(corridor(environment=None, environments=rows)), {"a": TaskSet("train", [])})
