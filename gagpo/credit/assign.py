"""From turns and settings to advantages: the credit column of the algorithm table."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from gagpo.credit.episode import grpo_advantage
from gagpo.credit.gagpo import gagpo_advantage
from gagpo.credit.gigpo import gigpo_advantage
from gagpo.credit.grouping import varies
from gagpo.credit.settings import CreditSettings, Gagpo, Gigpo, Grpo
from gagpo.credit.turns import Turns


@dataclass(frozen=True, eq=False)
class Credit:
    """Advantages of a batch.

    advantage: float64, one per turn (N) or, where ``level`` is ``token``, one per response token (K, turn after turn).
    target: with a critic, what its values should have been, shaped alike. stats: numbers to log.
    """

    advantage: np.ndarray
    tokens_N: np.ndarray
    level: str = "turn"
    target: np.ndarray | None = None
    stats: dict[str, float] = field(default_factory=dict)

    @property
    def advantage_N(self) -> np.ndarray:
        """One advantage per turn; for token credit the mean over the turn's tokens."""
        if self.level != "token":
            return self.advantage
        return np.add.reduceat(self.advantage, np.cumsum(self.tokens_N) - self.tokens_N) / self.tokens_N

    def per_token(self) -> np.ndarray:
        """One advantage per response token, float64[K], turns one after the other."""
        return self.advantage if self.level == "token" else np.repeat(self.advantage, self.tokens_N)


def advantages(turns: Turns, settings: CreditSettings, value: np.ndarray | None = None) -> Credit:
    """The advantages of ``turns`` under ``settings``; ``value``: the critic's, for credits that have one.

    stats: ``zero_groups`` (share of task groups without any signal), ``coverage`` (share of turns whose state is met
    again in their task group; where states are given), ``advantage_std``, ``advantage_abs`` (spread and mean size).
    """
    advantage = _turn_advantage(turns, settings)
    assert turns.tokens_N is not None
    return Credit(advantage, turns.tokens_N, stats=statistics(turns, advantage))


def _turn_advantage(turns: Turns, settings: CreditSettings) -> np.ndarray:
    options = settings.model_dump(exclude={"name", "key"})
    match settings:
        case Gagpo():
            return gagpo_advantage(turns, **options)
        case Grpo(reward=coding):
            return grpo_advantage(turns, coding)
        case Gigpo():
            return gigpo_advantage(turns, **options)
    raise TypeError(f"not credit settings: {settings!r}")


def statistics(turns: Turns, advantage_N: np.ndarray) -> dict[str, float]:
    """Numbers that tell whether the batch teaches anything; see :func:`advantages`."""
    signal_G = np.bincount(turns.group_index_N, np.abs(advantage_N), turns.groups)
    stats = {
        "zero_groups": float((signal_G == 0).mean()),
        "equal_return_groups": float(1.0 - varies(turns.return_E, turns.group_index_E, turns.groups).mean()),
        "advantage_std": float(advantage_N.std()),
        "advantage_abs": float(np.abs(advantage_N).mean()),
    }
    if turns.state_N is not None:
        state_N = turns.states()
        stats["coverage"] = float((np.bincount(state_N)[state_N] > 1).mean())
    return stats
