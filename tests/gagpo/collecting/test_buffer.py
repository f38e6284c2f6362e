"""The buffer of sampling ahead: open groups, stale episodes and the state of a checkpoint."""

import functools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gagpo.collecting.buffer import GroupBuffer, age
from gagpo.data import Episode, Turn
from gagpo.settings import parse
from tests.gagpo.conftest import CORRIDOR

TASKS, SAMPLES = 2, 3


@functools.cache
def parsed(ahead, iterations, max_staleness, deterministic):
    rollout = {"tasks": TASKS, "group_size": SAMPLES, "workers": 1, "ahead": ahead, "max_staleness": max_staleness}
    rollout["deterministic"] = deterministic
    return parse({**CORRIDOR, "rollout": rollout, "training": {"iterations": iterations}}, "a test")


def filled(ahead=1, iterations=100, max_staleness=4, position=0, due=(), iteration=0, deterministic=False):
    group_buffer = GroupBuffer(parsed(ahead, iterations, max_staleness, deterministic), lambda place: f"task-{place}")
    group_buffer.position, group_buffer.due, group_buffer.iteration = position, list(due), iteration
    group_buffer.open(group_buffer.room)
    return group_buffer


def drain(buffer):
    """All episodes that can be begun."""
    begun = []
    while (results := buffer.next_episode()) is not None:
        begun.append(results)
    return begun


def episode(begun, *versions):
    group, sample = begun
    turns = [Turn("o", "r", "a", version=version) for version in versions]
    return Episode(group.jobs[sample].task, seed=group.jobs[sample].seed, turns=turns, outcome="terminated")


def updated(buffer):
    buffer.iteration += 1
    buffer.open(buffer.room)


@pytest.mark.parametrize("ahead", [0, 3])
def test_as_many_batches_are_open_as_the_settings_say(ahead):
    assert len(drain(filled(ahead))) == (ahead + 1) * TASKS * SAMPLES


def test_no_more_is_begun_than_the_run_still_needs():
    buffer = filled(ahead=3, iterations=2)
    begun = drain(buffer)
    assert len(begun) == 2 * TASKS * SAMPLES
    for item in begun:
        buffer.deliver(*item, episode(item, 0))
    for _ in range(2):
        assert buffer.take() and buffer.take()
        updated(buffer)
        assert drain(buffer) == []
    assert buffer.take() is None and buffer.places == []


def test_groups_come_in_the_order_in_which_they_are_complete():
    buffer = filled()
    begun = drain(buffer)
    assert buffer.take() is None
    for item in [b for b in begun if b[0].place == 1] + [b for b in begun if b[0].place == 0][:-1]:
        buffer.deliver(*item, episode(item, 0))
    group = buffer.take()
    assert group.place == 1 and {item.task for item in group.episodes} == {"task-1"}
    assert buffer.take() is None and buffer.places == [0, 2, 3]


def test_batches_are_of_one_version_and_come_in_order():
    buffer = filled(ahead=1, deterministic=True)
    played = []
    for iteration in range(3):
        batch = buffer.next_batch()
        played.append([(group.place, group.version) for group, sample in batch if sample == 0])
        for item in batch:
            buffer.deliver(*item, episode(item, iteration))
        assert [buffer.take().place for _ in range(TASKS)] == [location for location, _ in played[-1]]
        updated(buffer)
    assert played == [[(0, 0), (1, 0)], [(2, 0), (3, 0)], [(4, 1), (5, 1)]]


def test_an_episode_that_is_played_again_has_the_environments_seed_and_another_of_its_own():
    buffer = filled(max_staleness=1)
    begun = [item for item in drain(buffer) if item[0].place == 0]
    seeds = [group.jobs[sample].seed for group, sample in begun]
    environment = begun[0][0].jobs[0].environment_seed
    for item in begun:
        buffer.deliver(*item, episode(item, 0, 1))
    buffer.iteration = 2
    assert buffer.take() is None and [item.seed for item in buffer.dropped()] == seeds
    again = drain(buffer)
    assert sorted(sample for _, sample in again) == list(range(SAMPLES))
    assert {group.jobs[sample].environment_seed for group, sample in again} == {environment}
    assert not {group.jobs[sample].seed for group, sample in again} & {*seeds}
    for item in again:
        buffer.deliver(*item, episode(item, 2))
    assert buffer.take().place == 0 and buffer.dropped() == []


def test_only_the_old_episode_of_a_group_is_played_again():
    buffer = filled(max_staleness=1)
    first, *remaining = [item for item in drain(buffer) if item[0].place == 0]
    buffer.deliver(*first, episode(first, 0))
    for item in remaining:
        buffer.deliver(*item, episode(item, 1))
    buffer.iteration = 2
    assert buffer.take() is None and [(group.place, sample) for group, sample in drain(buffer)] == [(0, 0)]


def test_age_is_of_the_oldest_turn_and_failed_episodes_have_none():
    assert age(Episode("t", turns=[Turn("", "", "", version=v) for v in (3, 4, 5)]), 7) == 4
    assert age(Episode("t", turns=[Turn("", "", "", version=1)], outcome="failed"), 7) == 0
    assert age(Episode("t"), 7) == 0 and age(Episode("t", turns=[Turn("", "", "")]), 7) == 0


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 3), st.integers(1, 3), st.integers(0, 10_000))
def test_every_task_is_trained_on_once_whatever_happens(ahead, spare, seed):
    """Episodes end in any order, some grow too old, some groups are discarded, and the run is killed now and then."""
    rng = random.Random(seed)
    iterations = 8
    limit = max(1, ahead) + spare - 1
    buffer = filled(ahead, iterations, limit)
    trained, discarded, running, saved = [], [], [], None
    batch, iteration = [], 0
    while iteration < iterations:
        running += [(item, iteration) for item in drain(buffer)]
        if rng.random() < 0.02:  # killed: what was done since the checkpoint is done again
            position, due, iteration, trained, discarded = saved or (0, [], 0, [], [])
            buffer = filled(ahead, iterations, limit, position, due, iteration)
            trained, discarded, running, batch = list(trained), list(discarded), [], []
            continue
        if running:
            item, version = running.pop(rng.randrange(len(running)))
            buffer.deliver(*item, episode(item, version))
        while len(batch) < TASKS and (group := buffer.take()):
            if rng.random() < 0.1:
                buffer.open(1)
                discarded.append(group.place)
            else:
                assert all(age(item, iteration) <= limit for item in group.finished()) and group.complete
                batch.append(group.place)
        if len(batch) == TASKS:
            trained += batch
            iteration, batch = iteration + 1, []
            updated(buffer)
            saved = (buffer.position, buffer.places, iteration, list(trained), list(discarded))
    done = trained + discarded
    assert len(set(done)) == len(done) and len(trained) == iterations * TASKS
    assert set(done) | set(buffer.places) == set(range(buffer.position))
    assert not set(done) & set(buffer.places)
