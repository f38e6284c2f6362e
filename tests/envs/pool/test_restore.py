"""Save and restore between slots and pools, also while workers break."""

from __future__ import annotations

import gymnasium
import pytest

from gagpo.envs.pool import Event, Pool, WorkerPool
from gagpo.envs.pool.worker import is_answer
from gagpo.envs.saved import CannotRestore
from gagpo.envs.testing import CorridorEnv
from tests.envs.pool.faulty import CORRIDOR, FAULTY, answers, beginning, start

DOOR = "door-02"


def step(pool: Pool, slot: int, action: str) -> Event:
    pool.step(slot, action)
    return answers(pool, 1)[slot]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_episode_goes_on_in_another_slot_and_in_another_pool(workers: int) -> None:
    with WorkerPool(CORRIDOR, workers=workers) as pool, WorkerPool(CORRIDOR, workers=1) as other:
        pool.reset(0, DOOR, seed=3)
        answers(pool, 1)
        seen = step(pool, 0, "left")
        token = pool.save(0)
        follows = [step(pool, 0, action) for action in ("left", "fly", "right")]
        for place, slot in ((pool, 0), (pool, 1), (pool, 9), (other, 4)):
            place.restore(slot, token)
            (event,) = answers(place, 1).values()
            assert (event.kind, event.observation, event.info) == ("restored", seen.observation, seen.info)
            again = [step(place, slot, action) for action in ("left", "fly", "right")]
            assert again == [event._replace(slot=slot) for event in follows]


@pytest.mark.parametrize("workers", [0, 1])
def test_what_is_answered_while_a_slot_is_saved_is_not_lost(workers: int) -> None:
    with WorkerPool(CORRIDOR, workers=workers) as pool:
        for slot in range(3):
            pool.reset(slot, DOOR, seed=slot)
        answers(pool, 3)
        pool.step(0, "left")
        pool.step(1, "left")
        assert type(pool.save(2)) is bytes
        assert sorted(answers(pool, 2)) == [0, 1]
        assert pool.wait() == []


@pytest.mark.parametrize("workers", [0, 1])
def test_misuse_is_refused_with_the_reason(workers: int) -> None:
    with WorkerPool(CORRIDOR, workers=workers) as pool:
        with pytest.raises(ValueError, match="slot 0 holds no episode"):
            pool.save(0)
        with pytest.raises(TypeError, match="a token is bytes, got str"):
            pool.restore(0, "token")  # type: ignore[arg-type]
        pool.reset(0, DOOR)
        with pytest.raises(ValueError, match="not answered its last request"):
            pool.save(0)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_token_that_leads_nowhere_fails_its_slot_alone(workers: int) -> None:
    with WorkerPool(CORRIDOR, workers=workers, max_restarts=1) as pool:
        pool.reset(0, DOOR, seed=1)
        answers(pool, 1)
        pool.restore(1, b"no token")
        event = answers(pool, 1)[1]
        assert event.kind == "failed" and event.error == "the token was not made by save(), or is damaged"
        assert step(pool, 0, "left").kind == "step"


class StubbornEnv(CorridorEnv):
    can_restore = False


def test_an_env_that_cannot_be_put_back_says_so_and_plays_on() -> None:
    gymnasium.register("gagpo-test/Stubborn-v0", StubbornEnv, disable_env_checker=True, order_enforce=False)
    gymnasium.register("gagpo-test/Wrapped-v0", CorridorEnv, disable_env_checker=True, order_enforce=True)
    for name, words in (("Stubborn", "StubbornEnv cannot be restored"), ("Wrapped", "wrapper OrderEnforcing")):
        with WorkerPool(f"gagpo-test/{name}-v0", workers=0) as pool:
            pool.reset(0, DOOR, seed=1)
            answers(pool, 1)
            with pytest.raises(CannotRestore, match=words):
                pool.save(0)
            assert step(pool, 0, "left").kind == "step"
            assert pool.counters.restarts == pool.counters.errors == 0


def test_an_error_while_saving_leaves_the_episode_as_it_is() -> None:
    with WorkerPool(FAULTY, workers=1) as pool:
        start(pool, 1)
        seen = step(pool, 0, "save raise")
        with pytest.raises(CannotRestore, match="RuntimeError: broken on purpose"):
            pool.save(0)
        assert seen.kind == step(pool, 0, "look").kind == "step"
        assert type(pool.save(0)) is bytes


def test_a_crash_while_saving_is_told_and_the_episodes_start_over() -> None:
    with WorkerPool(FAULTY, workers=1) as pool:
        first = start(pool, 2)
        step(pool, 0, "save crash")
        with pytest.raises(CannotRestore, match="starts over with its next step: its worker died"):
            pool.save(0)
        with pytest.raises(CannotRestore, match="starts over"):
            pool.save(1)
        for slot in range(2):
            event = step(pool, slot, "look")
            assert (event.kind, beginning(event)) == ("restarted", beginning(first[slot]))
            assert type(pool.save(slot)) is bytes
        assert pool.counters.crashes == 1


def test_a_restored_episode_whose_worker_dies_starts_over_where_it_was_restored() -> None:
    with WorkerPool(FAULTY, workers=1, max_restarts=1) as pool:
        start(pool, 1)
        seen = step(pool, 0, "here")
        token = pool.save(0)
        pool.restore(7, token)
        assert beginning(answers(pool, 1)[7]) == beginning(seen)
        event = step(pool, 7, "crash")
        assert (event.kind, beginning(event)) == ("restarted", beginning(seen))
        assert step(pool, 7, "crash").kind == "failed"


def test_what_is_no_answer_to_a_save_is_known_from_one() -> None:
    assert is_answer((b"token",), "save") and is_answer(("why not",), "save")
    for message in ((b"token",), ("seen", {})):
        assert is_answer(message, "save" if message == ("seen", {}) else "step") is False
