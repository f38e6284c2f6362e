"""PPO: GAE with a learned value, over tokens or turns (arXiv 1707.06347).

The critic's value replaces comparisons within a group, so it works with one episode per task. It is no better than the
critic, which begins untrained.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from gagpo.credit.registry import CreditSettings, Level
from gagpo.credit.reinforce import response_tokens, whiten
from gagpo.credit.statistics.returns import generalised_advantage
from gagpo.data import Turns


class PpoToken(CreditSettings):
    """GAE over the response tokens of each episode; observation tokens are skipped.

    A turn's reward is paid at its last token. Advantages are whitened over the batch, value targets are not.
    """

    level: ClassVar[Level] = "token"
    critic: ClassVar[bool] = True
    name: Literal["ppo"] = "ppo"
    gamma: float = Field(default=1.0, ge=0, le=1)
    lam: float = Field(default=1.0, ge=0, le=1)

    def advantage_and_target(self, turns: Turns, value: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Advantages and value targets, float64[K] each, from the critic's value at each response token."""
        tokens_N = response_tokens(turns)
        reward_K = np.zeros(len(value))
        last_K = np.zeros(len(value), np.bool_)
        end_N = np.cumsum(tokens_N) - 1
        reward_K[end_N] = turns.net_reward_N
        last_K[end_N[turns.last_N]] = True
        return _advantage_and_target(reward_K, value, last_K, self.gamma, self.lam)


class PpoTurn(CreditSettings):
    """GAE over the turns of each episode, whitened over the batch (arXiv 2512.17008); truncation counts as an end."""

    level: ClassVar[Level] = "turn"
    critic: ClassVar[bool] = True
    name: Literal["ppo_turn"] = "ppo_turn"
    gamma: float = Field(default=0.99, ge=0, le=1)
    lam: float = Field(default=0.9, ge=0, le=1)

    def advantage_and_target(self, turns: Turns, value: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Advantages and value targets, float64[N] each, from the critic's value of each turn before its response."""
        return _advantage_and_target(turns.net_reward_N, value, turns.last_N, self.gamma, self.lam)


def _advantage_and_target(
    reward: np.ndarray, value: np.ndarray, last: np.ndarray, gamma: float, lam: float
) -> tuple[np.ndarray, np.ndarray]:
    delta = reward - value
    delta[:-1] += np.where(last[:-1], 0.0, gamma) * value[1:]
    advantage = generalised_advantage(delta, last, gamma, lam)
    return whiten(advantage), advantage + value
