"""A saved episode continues identically in any instance, and invalid tokens are rejected."""

from __future__ import annotations

import json
import pickle
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from gymnasium.error import ResetNeeded
from hypothesis import given
from hypothesis import strategies as st

from gagpo.envs.base import Outcome
from gagpo.envs.check.check import check
from gagpo.envs.saved import CannotRestore
from gagpo.envs.testing import CorridorEnv


class DiceEnv(CorridorEnv):
    """A corridor where every step also moves at random."""

    def act(self, action: str) -> Outcome:
        self.place = min(15, max(0, self.place + int(self.np_random.integers(-1, 2))))
        return super().act(action)


def begun(env: CorridorEnv | None = None, task: str = "door-03", turns: int = 4) -> CorridorEnv:
    env = env or CorridorEnv()
    env.reset(seed=5, options={"task": task})
    for _ in range(turns):
        env.step("left")
    return env


def test_a_token_is_plain_bytes_and_saving_changes_nothing() -> None:
    env, other = begun(), begun()
    token = env.save()
    assert type(token) is bytes and env.save() == token and pickle.loads(pickle.dumps(token)) == token
    assert env.step("left") == other.step("left")
    assert env.save() != token


def test_a_restored_episode_continues_as_after_the_save_random_draws_included() -> None:
    env = begun(DiceEnv(), turns=2)
    token = env.save()
    first = [env.step(action) for action in ("left", "right", "fly")]
    for again in (env, begun(DiceEnv(), "door-07"), DiceEnv(split="test")):
        _, info = again.restore(token)
        assert (info["task"], info["split"], info["turn"], info["valid"]) == ("door-03", "train", 2, True)
        assert again.save() == token
        assert [again.step(action) for action in ("left", "right", "fly")] == first


def test_restore_returns_the_last_observation() -> None:
    env = begun(turns=3)
    observation, _, _, _, info = env.step("fly")
    token = env.save()
    env.step("left")
    assert env.restore(token) == (observation, info)
    assert info["valid"] is False


def test_the_turn_limit_counts_the_turns_before_the_save() -> None:
    env = begun(CorridorEnv(max_turns=6), turns=4)
    token = env.save()
    for _ in range(2):
        env.restore(token)
        assert env.step("fly")[3] is False
        assert env.step("fly")[3] is True
    with pytest.raises(CannotRestore, match="turn 4, but episodes end after 3"):
        CorridorEnv(max_turns=3).restore(token)


def test_save_requires_a_running_episode() -> None:
    env = CorridorEnv(max_turns=1)
    with pytest.raises(ResetNeeded, match="nothing to save"):
        env.save()
    begun(env, turns=1)
    with pytest.raises(ResetNeeded, match="nothing to save"):
        env.save()


def test_an_environment_without_restore_says_so() -> None:
    class OtherEnv(CorridorEnv):
        can_restore = False

    env = begun(OtherEnv())
    for wrong in (env.save, lambda: env.restore(b"{}")):
        with pytest.raises(CannotRestore, match="OtherEnv does not support save and restore"):
            wrong()


def test_a_token_of_another_environment_or_task_is_rejected_with_the_reason() -> None:
    token = begun().save()
    with pytest.raises(CannotRestore, match="token is of CorridorEnv, this is DiceEnv"):
        DiceEnv().restore(token)
    env = begun()
    saved = json.loads(token)
    for changes, words in (
        ({"digest": "9"}, "different content here"),
        ({"turn": -1}, "turn -1"),
        ({"turn": "4"}, "turn is str"),
        ({"random": {}}, "damaged"),
        ({"snapshot": "here"}, "damaged"),
        ({"more": 1}, "not made by save"),
    ):
        with pytest.raises(CannotRestore, match=words):
            env.restore(json.dumps(saved | changes).encode())
        with pytest.raises(ResetNeeded):  # a failed restore leaves no episode to step
            env.step("left")


@given(st.binary(max_size=200))
def test_random_bytes_are_rejected(data: bytes) -> None:
    with pytest.raises(CannotRestore):
        CorridorEnv().restore(data)


# All environments that support it -------------------------------------------------------------------------------------

MATHS = [{"problem": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(8)]


@pytest.mark.parametrize(
    ("env_id", "settings"),
    [
        ("gagpo/ALFWorld-v0", {}),
        ("gagpo/ALFWorld-v0", {"verb": "both", "expert": "hasty"}),
        ("gagpo/WebShop-v0", {"products": 60}),
        ("gagpo/WebShop-v0", {"products": 60, "exact": True, "observation": "text_rich"}),
        ("gagpo/Math-v0", {"feedback": "none"}),
        ("gagpo/Math-v0", {"attempts": 4, "tools": False}),
        ("gagpo/SQL-v0", {"test_size": 8, "size": 8}),
    ],
)
def test_every_step_can_be_restored_in_every_process(env_id: str, settings: dict[str, Any]) -> None:
    small = {"counts": {"train": 4, "valid_seen": 2, "valid_unseen": 2}} if "ALFWorld" in env_id else {}
    (built, found) = check(env_id, {**small, **settings}, episodes=4, only=["construction", "restore"])
    assert built.ok and found.ok and found.judged, found.detail
    assert "and another process" in found.detail


def test_problems_of_a_file_can_be_restored(tmp_path: Path) -> None:
    path = tmp_path / "problems.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in MATHS), encoding="utf-8")
    (_, found) = check("gagpo/Math-v0", {"data": str(path)}, episodes=4, only=["construction", "restore"])
    assert found.ok and found.judged, found.detail


def test_questions_of_a_file_can_be_restored(tmp_path: Path) -> None:
    folder = tmp_path / "spider" / "database" / "pets"
    folder.mkdir(parents=True)
    with closing(sqlite3.connect(folder / "pets.sqlite")) as database:
        database.executescript("CREATE TABLE pets (name TEXT); INSERT INTO pets VALUES ('Rex'), ('Tom');")
    rows = [{"db_id": "pets", "question": "Who?", "query": "SELECT name FROM pets"}]
    for name in ("train_spider", "dev"):
        (folder.parents[1] / f"{name}.json").write_text(json.dumps(rows), encoding="utf-8")
        rows = [{**rows[0], "question": "Whose names?"}]
    (_, found) = check("gagpo/SQL-v0", {"data": str(folder.parents[1])}, only=["construction", "restore"])
    assert found.ok and found.judged, found.detail
