"""Slips in a row: never learned from, sometimes repeated, and always ended by the expert."""

import numpy as np
import pytest

from gagpo.agents.agent import EpisodeState, ExpertAgent
from gagpo.agents.episodes import Episode, Turn

ACTIONS = ["go to shelf 1", "take mug 2 from shelf 1", "look"]
INFO = {"expert_action": "take mug 1 from shelf 1", "admissible_actions": ACTIONS}


def live(seed: int, valid: bool) -> EpisodeState:
    episode = Episode(
        task="t", seed=seed, turns=[Turn("", "go to bed 9", "go to bed 9", invalid="" if valid else "refused")]
    )
    return EpisodeState(0, episode, "Nothing happens.", INFO)


def decisions(agent: ExpertAgent, valid: bool, count: int = 600):
    return agent.decide([live(seed, valid) for seed in range(count)])


def test_only_moves_without_effect_are_followed_by_more_slips():
    assert all(one.trainable for one in decisions(ExpertAgent(0.0, stubborn=0.5), valid=True))
    stray = [one for one in decisions(ExpertAgent(0.0, stubborn=0.5), valid=False) if not one.trainable]
    assert 0.42 < len(stray) / 600 < 0.58
    said = {one.action for one in stray}
    assert "go to bed 9" in said and "take mug 7 from shelf 1" in said and len(said) > 10


def test_without_stubbornness_the_draws_are_those_of_before():
    rng = np.random.default_rng([3, 1])
    strays = rng.random() < 0.3
    (one,) = ExpertAgent(0.3).decide([live(3, valid=False)])
    assert one.trainable != strays


@pytest.mark.parametrize("name", ["noise", "stubborn"])
def test_a_probability_is_asked_for(name):
    with pytest.raises(ValueError, match=f"{name} is a probability, got 2"):
        ExpertAgent(**{name: 2})
