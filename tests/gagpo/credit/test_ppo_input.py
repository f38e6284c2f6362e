"""Input of credits with a critic and of token-level credits."""

import numpy as np
import pytest

from gagpo.credit import BadTurns, Turns, advantages
from gagpo.credit.ppo import PpoToken, PpoTurn
from gagpo.credit.reinforce import ReinforcePlusPlus
from tests.rejections import rejects

TURNS = Turns.of([0, 1], [0, 0], [0], tokens_N=[2, 3])


@pytest.mark.parametrize("settings", [PpoTurn(), PpoToken()])
def test_missing_misshapen_and_non_finite_values_are_rejected(settings):
    with rejects(BadTurns, key="value"):
        advantages(TURNS, settings)
    for wrong in (np.zeros(4), np.array([0.0, np.nan, 0.0, 0.0, 0.0])):
        with rejects(BadTurns, "finite", "(5,)", advice="got shape"):
            advantages(TURNS, settings, wrong)


def test_advantages_are_whitened_and_targets_are_not():
    white = advantages(TURNS, PpoTurn(gamma=1.0, lam=0.0), np.array([0.5, 9.0, 0.25, 9.0, 9.0]))
    assert white.target.tolist() == [0.25, 1.0]  # the next turn's value; what the last turn is paid
    assert white.advantage == pytest.approx(np.array([-0.5, 0.5]) / np.sqrt(0.5), abs=1e-4)


def test_a_turn_without_tokens_is_rejected():
    turns = Turns.of([0, 1], [0, 0], [0], tokens_N=[2, 0])
    with rejects(BadTurns, advice="turn 1"):
        advantages(turns, ReinforcePlusPlus())


@pytest.mark.parametrize("settings", [PpoTurn(), PpoToken()])
@pytest.mark.parametrize("tokens_N", [[2, 0, 2], [2, 2, 0]])
def test_a_turn_without_a_token_to_read_its_value_at_is_rejected(settings, tokens_N):
    turns = Turns.of([0, 0, 1], [0, 0, 0], [0], tokens_N=tokens_N)
    with rejects(BadTurns, advice=f"turn {tokens_N.index(0)}"):
        advantages(turns, settings, np.ones(4))
