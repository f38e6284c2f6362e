"""Demonstrations in which things have other names."""

import re
from itertools import pairwise

import numpy as np
import pytest

pytest.importorskip("gagpo.envs.web")

from benchmarks.starters.renaming import FURNITURE, TOOLS, renamed
from gagpo.data import Episode, Turn
from gagpo.envs.alfworld.env import ALFWorldEnv

NAMED = re.compile(r"\ba ([a-z]+) (\d+)")


@pytest.fixture(scope="module")
def demonstrations(tmp_path_factory):
    """Solved games, three of each type, as episodes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GAGPO_DATA", str(tmp_path_factory.mktemp("games")))
        counts = {"train": 18, "valid_seen": 0, "valid_unseen": 0}
        env = ALFWorldEnv(size="alfred3", texts="template", counts=counts, max_turns=60, expert=True)
        return [_solved(env, task) for task in env.tasks("train").ids]


def _solved(env, task):
    turns, over = [], False
    observation, info = env.reset(options={"task": task})
    while not over:
        action = info["expert_action"]
        turns.append(Turn.of(action, action).with_observation(observation, None))
        observation, _, terminated, truncated, info = env.step(action)
        over = terminated or truncated
    return Episode(task, turns=turns, success=info["success"])


def test_an_action_names_what_was_seen_before(demonstrations):
    for episode in demonstrations:
        texts = ""
        for turn in renamed(episode, np.random.default_rng(3)).turns:
            texts += turn.observation
            assert turn.response == turn.action
            for name, number in re.findall(r"([a-z]+) (\d+)", turn.action):
                assert re.search(rf"\b{name} {number}\b", texts), (turn.action, texts)


def test_no_two_things_get_one_name_and_tools_keep_theirs(demonstrations):
    changed = 0
    for seed, episode in enumerate(demonstrations):
        other = renamed(episode, np.random.default_rng(seed))
        pairs = set()
        for before, after in zip(episode.turns, other.turns, strict=True):
            pairs |= set(zip(NAMED.findall(before.observation), NAMED.findall(after.observation), strict=True))
        assert len({new for _, new in pairs}) == len({old for old, _ in pairs}) == len(pairs)
        assert all(old == new for old, new in pairs if old[0] in TOOLS)
        assert all(old[1] == new[1] for old, new in pairs if old[0] in FURNITURE)
        changed += sum(old[0] != new[0] for old, new in pairs) / len(pairs)
    assert 0.2 < changed / len(demonstrations) < 0.8


def test_the_task_names_what_is_to_be_found(demonstrations):
    for episode in demonstrations:
        other = renamed(episode, np.random.default_rng(5))
        chosen = next(turn.action.split()[1] for turn in other.turns if turn.action.startswith("take"))
        assert re.search(rf"\b{chosen}\b", other.turns[0].observation.split("Your task is to: ")[1])


def test_numbers_of_a_list_stay_in_order(demonstrations):
    for episode in demonstrations:
        for turn in renamed(episode, np.random.default_rng(7)).turns:
            listed = NAMED.findall(turn.observation)
            assert all(int(m) > int(n) for (a, m), (b, n) in pairwise(listed) if a == b)


def test_a_seed_renames_in_one_way(demonstrations):
    first, second = (renamed(demonstrations[0], np.random.default_rng(11)) for _ in range(2))
    assert first == second != demonstrations[0]
