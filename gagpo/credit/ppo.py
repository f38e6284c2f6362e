"""PPO: GAE with a learned value, over tokens or turns (arXiv 1707.06347)."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from gagpo.credit.registry import CreditSettings, Level
from gagpo.credit.reinforce import response_tokens, whiten
from gagpo.credit.turns import BadTurns, Turns
from gagpo.credit.turns.grouping import generalised_advantage


class PpoToken(CreditSettings):
    """GAE over the response tokens of each episode; observation tokens are skipped.

    A turn's reward is paid at its last token. Advantages are whitened over the batch, value targets are not.
    """

    level: ClassVar[Level] = "token"
    critic: ClassVar[bool] = True
    name: Literal["ppo_token"] = "ppo_token"
    gamma: float = Field(default=1.0, ge=0, le=1)
    lam: float = Field(default=1.0, ge=0, le=1)

    def advantage_and_target(self, turns: Turns, value: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Advantages and value targets, float64[K] each, from the critic's value at each response token."""
        advantage_K, target_K = self.estimate(turns, value)
        return whiten(advantage_K), target_K

    def estimate(self, turns: Turns, value: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """:meth:`advantage_and_target` without whitening."""
        tokens_N = response_tokens(turns)
        reward_K = np.zeros(int(tokens_N.sum()))
        end_N = np.cumsum(tokens_N) - 1
        reward_K[end_N] = turns.net_reward_N
        last_K = np.zeros(len(reward_K), np.bool_)
        last_K[end_N[turns.last_N]] = True
        value_K = _checked(value, len(reward_K), "response token")
        return _advantage_and_target(reward_K, value_K, last_K, self.gamma, self.lam)


class PpoTurn(CreditSettings):
    """GAE over the turns of each episode, whitened over the batch (arXiv 2512.17008); truncation counts as an end."""

    level: ClassVar[Level] = "turn"
    critic: ClassVar[bool] = True
    name: Literal["ppo_turn"] = "ppo_turn"
    gamma: float = Field(default=0.99, ge=0, le=1)
    lam: float = Field(default=0.9, ge=0, le=1)

    def advantage_and_target(self, turns: Turns, value: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Advantages and value targets, float64[N] each, from the critic's value of each turn before its response."""
        advantage_N, target_N = self.estimate(turns, value)
        return whiten(advantage_N), target_N

    def estimate(self, turns: Turns, value: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """:meth:`advantage_and_target` without whitening."""
        value_N = _checked(value, turns.turns, "turn")
        return _advantage_and_target(turns.net_reward_N, value_N, turns.last_N, self.gamma, self.lam)


def _advantage_and_target(
    reward: np.ndarray, value: np.ndarray, last: np.ndarray, gamma: float, lam: float
) -> tuple[np.ndarray, np.ndarray]:
    delta = reward - value
    delta[:-1] += np.where(last[:-1], 0.0, gamma) * value[1:]
    advantage = generalised_advantage(delta, last, gamma, lam)
    return advantage, advantage + value


def _checked(value: np.ndarray | None, length: int, what: str) -> np.ndarray:
    if value is None:
        raise BadTurns(f"this credit needs a critic: give its value of each {what}")
    value = np.asarray(value, np.float64)
    if value.shape != (length,):
        raise BadTurns(f"the critic's values must have one entry per {what}, shape ({length},); got {value.shape}")
    if not np.isfinite(value).all():
        raise BadTurns(f"the critic's value of {what} {int(np.flatnonzero(~np.isfinite(value))[0])} is not finite")
    return value
