"""Single-player games of TextArena."""

from __future__ import annotations

import random

import pytest

from gagpo.agents.setup import make_env
from gagpo.base.errors import InvalidArgument
from gagpo.envs.check.check import check
from gagpo.envs.lookup import UnknownEnvironment, find_spec
from tests.rejections import rejects

pytestmark = pytest.mark.interop
GAME = "textarena:GuessTheNumber-v0"


def test_without_the_package_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "textarena", None)
    with pytest.raises(UnknownEnvironment, match="textarena"):
        find_spec(GAME)


def test_a_game_is_played_to_its_end() -> None:
    pytest.importorskip("textarena", reason="the package TextArena is not installed")
    env = make_env(GAME)
    text, _ = env.reset(options={"task": "train-0000003"})
    assert "between 1 and 20" in text
    low, high, over, info = 1, 20, False, {}
    while not over:
        guess = (low + high) // 2
        text, reward, over, _, info = env.step(f"[{guess}]")
        low, high = (guess + 1, high) if "is higher" in text else (low, guess - 1)
        assert "between 1 and 20" not in text  # only what is new
    assert (reward, info["success"]) == (1, True)
    env.reset(options={"task": "train-0000003"})
    env.step("nonsense")
    text, reward, over, _, info = env.step("nonsense")
    assert (over, info["success"]) == (True, False)
    assert "Invalid Move" in text


def test_games_do_not_disturb_each_other_or_the_caller() -> None:
    pytest.importorskip("textarena", reason="the package TextArena is not installed")
    assert [item for item in check(GAME, {"tasks": {"train": "0-9", "test": "10-14"}}, episodes=4) if not item.ok] == []
    first, second = make_env("textarena:Bandit-v0"), make_env("textarena:Bandit-v0")
    alone = [first.reset(options={"task": "train-0000001"})[0], *(first.step("red")[0] for _ in range(5))]
    random.seed(5)
    before = random.getstate()
    mixed = [first.reset(options={"task": "train-0000001"})[0]]
    second.reset(options={"task": "train-0000002"})
    for _ in range(5):
        mixed.append(first.step("red")[0])
        second.step("blue")
    assert mixed == alone
    assert random.getstate() == before


@pytest.mark.parametrize(("game", "name"), [("Nothing-v0", "registry"), ("Nim-v0", "alone")])
def test_games_that_cannot_be_played(game: str, name: str) -> None:
    pytest.importorskip("textarena", reason="the package TextArena is not installed")
    with rejects(InvalidArgument, name, where=f"textarena:{game}"):
        make_env(f"textarena:{game}").reset()
