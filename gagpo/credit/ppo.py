"""PPO's credit: generalised advantages from a learned value, at token or at turn level (arXiv 1707.06347)."""

from __future__ import annotations

import numpy as np

from gagpo.credit.grouping import generalised_advantage
from gagpo.credit.reinforce import response_tokens
from gagpo.credit.turns import BadTurns, Turns


def ppo_token_advantage(
    turns: Turns, value_K: np.ndarray, gamma: float = 1.0, lam: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """GAE over the response tokens of each episode; gives advantages and value targets, both float64[K].

    value_K: the critic's value at each response token, turns one after the other. A turn's reward is paid at its last
    token; the token after it is the next turn's first, so that observations are skipped.
    """
    tokens_N = response_tokens(turns)
    reward_K = np.zeros(int(tokens_N.sum()))
    end_N = np.cumsum(tokens_N) - 1
    reward_K[end_N] = turns.net_reward_N
    last_K = np.zeros(len(reward_K), np.bool_)
    last_K[end_N[turns.last_N]] = True
    return _advantage_and_target(reward_K, _values(value_K, len(reward_K), "response token"), last_K, gamma, lam)


def ppo_turn_advantage(
    turns: Turns, value_N: np.ndarray, gamma: float = 0.99, lam: float = 0.9
) -> tuple[np.ndarray, np.ndarray]:
    """GAE over the turns of each episode (arXiv 2512.17008); gives advantages and value targets, both float64[N].

    value_N: the critic's value of each turn, read before the response.
    """
    return _advantage_and_target(turns.net_reward_N, _values(value_N, turns.turns, "turn"), turns.last_N, gamma, lam)


def _advantage_and_target(
    reward: np.ndarray, value: np.ndarray, last: np.ndarray, gamma: float, lam: float
) -> tuple[np.ndarray, np.ndarray]:
    delta = reward - value
    delta[:-1] += np.where(last[:-1], 0.0, gamma) * value[1:]
    advantage = generalised_advantage(delta, last, gamma, lam)
    return advantage, advantage + value


def _values(value: np.ndarray | None, length: int, what: str) -> np.ndarray:
    if value is None:
        raise BadTurns(f"this credit needs a critic: give its value of every {what}")
    value = np.asarray(value, np.float64)
    if value.shape != (length,):
        raise BadTurns(f"the critic's values must be one per {what}, shape ({length},); got {value.shape}")
    if not np.isfinite(value).all():
        raise BadTurns(f"the critic's value of {what} {int(np.flatnonzero(~np.isfinite(value))[0])} is not finite")
    return value
