"""The books of sampling ahead: what is open, what is too old, what a checkpoint has to know."""

import functools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gagpo.agents.episodes import Episode, Turn
from gagpo.collecting.rollout_buffer import RolloutBuffer, age
from gagpo.settings import parse
from tests.gagpo.conftest import CORRIDOR

TASKS, SAMPLES = 2, 3


@functools.cache
def parsed(ahead, iterations, max_staleness):
    rollout = {"tasks": TASKS, "samples": SAMPLES, "workers": 1, "ahead": ahead, "max_staleness": max_staleness}
    return parse({**CORRIDOR, "rollout": rollout, "training": {"iterations": iterations}}, "a test")


def buffer(ahead=1, iterations=100, max_staleness=4, position=0, due=(), iteration=0):
    made = RolloutBuffer(parsed(ahead, iterations, max_staleness), lambda place: f"task-{place}")
    made.restore(position, due, iteration)
    return made


def drain(books):
    """All requests that can be had now."""
    requests = []
    while (request := books.next()) is not None:
        requests.append(request)
    return requests


def episode(request, *versions):
    turns = [Turn("o", "r", "a", version=version) for version in versions]
    return Episode(request.job.task, seed=request.job.seed, turns=turns, outcome="terminated")


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_as_many_batches_are_open_as_the_settings_say(ahead):
    books = buffer(ahead)
    assert len(drain(books)) == (ahead + 1) * TASKS * SAMPLES


def test_no_more_is_begun_than_the_run_still_needs():
    books = buffer(ahead=3, iterations=2)
    requests = drain(books)
    assert len(requests) == 2 * TASKS * SAMPLES
    for request in requests:
        books.deliver(request, episode(request, 0))
    for iteration in (1, 2):
        assert books.take() and books.take()
        books.trained(iteration)
        assert drain(books) == []
    assert books.take() is None and books.due == []


def test_groups_come_in_the_order_in_which_they_are_complete():
    books = buffer()
    requests = drain(books)
    assert books.take() is None
    for request in [t for t in requests if t.place == 1] + [t for t in requests if t.place == 0][:-1]:
        books.deliver(request, episode(request, 0))
    group = books.take()
    assert (group.place, group.task, len(group.played())) == (1, "task-1", SAMPLES)
    assert books.take() is None and books.due == [0, 1, 2, 3]


def test_a_replayed_episode_has_the_worlds_seed_and_another_of_its_own():
    books = buffer(max_staleness=1)
    requests = [t for t in drain(books) if t.place == 0]
    for request in requests:
        books.deliver(request, episode(request, 0, 1))
    books.iteration = 1
    assert books.drop_stale() == []
    books.iteration = 2
    dropped = books.drop_stale()
    assert [one.seed for one in dropped] == [t.job.seed for t in requests] and books.take() is None
    again = drain(books)
    assert [(t.place, t.sample, t.attempt) for t in again] == [(0, sample, 1) for sample in range(SAMPLES)]
    assert {t.job.environment_seed for t in (*again, *requests)} == {requests[0].job.environment_seed}
    assert not {t.job.seed for t in again} & {t.job.seed for t in requests}
    for request in again:
        books.deliver(request, episode(request, 2))
    assert books.take().place == 0


def test_only_the_old_episode_of_a_group_is_played_again():
    books = buffer(max_staleness=1)
    first, *others = [t for t in drain(books) if t.place == 0]
    books.deliver(first, episode(first, 0))
    for request in others:
        books.deliver(request, episode(request, 1))
    books.iteration = 2
    assert [one.seed for one in books.drop_stale()] == [first.job.seed]
    assert [(t.place, t.sample) for t in drain(books)] == [(0, 0)]


def test_a_group_in_training_does_not_grow_too_old():
    books = buffer(max_staleness=1)
    for request in drain(books):
        books.deliver(request, episode(request, 0))
    held = books.take()
    books.iteration = 5
    dropped = books.drop_stale()
    assert len(dropped) == SAMPLES * (2 * TASKS - 1) and all(one.task != held.task for one in dropped)


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
    books = buffer(ahead, iterations, limit)
    trained, discarded, running, saved = [], [], [], None
    batch, iteration = [], 0
    while iteration < iterations:
        running += [(request, iteration) for request in drain(books)]
        if rng.random() < 0.02:  # killed: what was done since the checkpoint is done again
            position, due, iteration, trained, discarded = saved or (0, [], 0, [], [])
            books = buffer(ahead, iterations, limit, position, due, iteration)
            trained, discarded, running, batch = list(trained), list(discarded), [], []
            continue
        if running:
            request, version = running.pop(rng.randrange(len(running)))
            books.deliver(request, episode(request, version))
        books.drop_stale()
        while len(batch) < TASKS and (group := books.take()):
            if rng.random() < 0.1:
                books.discard(group)
                discarded.append(group.place)
            else:
                assert all(age(one, iteration) <= limit for one in group.played()) and group.complete
                batch.append(group.place)
        if len(batch) == TASKS:
            trained += batch
            iteration, batch = iteration + 1, []
            books.trained(iteration)
            saved = (books.position, books.due, iteration, list(trained), list(discarded))
    done = trained + discarded
    assert len(set(done)) == len(done) and len(trained) == iterations * TASKS
    assert set(done) | set(books.due) == set(range(books.position))
    assert not set(done) & set(books.due)
