"""Input of credits with a critic and of token-level credits."""

import numpy as np
import pytest

from gagpo.credit import BadTurns, Turns, advantages
from gagpo.credit.ppo import PpoToken, PpoTurn
from gagpo.credit.reinforce import ReinforcePlusPlus

TURNS = Turns([0, 1], [0, 0], [0], tokens_N=[2, 3])


@pytest.mark.parametrize(("settings", "length", "what"), [(PpoTurn(), 2, "turn"), (PpoToken(), 5, "response token")])
def test_missing_misshapen_and_non_finite_values_are_rejected(settings, length, what):
    with pytest.raises(BadTurns, match=f"give its value of each {what}"):
        advantages(TURNS, settings)
    with pytest.raises(BadTurns, match=rf"one entry per {what}, shape \({length},\); got \(4,\)"):
        advantages(TURNS, settings, np.zeros(4))
    with pytest.raises(BadTurns, match=f"value of {what} 1 is not finite"):
        advantages(TURNS, settings, np.array([0.0, np.nan, *[0.0] * (length - 2)]))


def test_advantages_are_whitened_and_targets_are_not():
    value = np.array([0.5, 0.25])
    plain, target = PpoTurn().estimate(TURNS, value)
    white = advantages(TURNS, PpoTurn(), value)
    assert target == pytest.approx(plain + value) and white.target == pytest.approx(target)
    assert white.advantage.mean() == pytest.approx(0)
    assert white.advantage.std(ddof=1) == pytest.approx(1, abs=1e-4)


def test_a_turn_without_tokens_is_rejected():
    turns = Turns([0, 1], [0, 0], [0], tokens_N=[2, 0])
    with pytest.raises(BadTurns, match="turn 1 has none"):
        advantages(turns, ReinforcePlusPlus())
