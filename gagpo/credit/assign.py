"""From turns and settings to advantages: the credit column of the algorithm table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from gagpo.agents.episodes import Episode
from gagpo.credit.episode import (
    agpo_adaptive_advantage,
    agpo_asymmetric_advantage,
    dr_grpo_advantage,
    grpo_advantage,
    rloo_advantage,
)
from gagpo.credit.gagpo import gagpo_advantage
from gagpo.credit.gigpo import gigpo_advantage
from gagpo.credit.grouping import varies
from gagpo.credit.hgpo import hgpo_advantage
from gagpo.credit.ppo import ppo_token_advantage, ppo_turn_advantage
from gagpo.credit.reinforce import reinforce_baseline_advantage, reinforce_plus_plus_advantage, whiten
from gagpo.credit.settings import AnyCredit, Level, PpoToken, PpoTurn
from gagpo.credit.turns import Turns

FUNCTIONS: dict[str, Callable[..., np.ndarray]] = {
    "gagpo": gagpo_advantage,
    "grpo": grpo_advantage,
    "dr_grpo": dr_grpo_advantage,
    "rloo": rloo_advantage,
    "reinforce_plus_plus": reinforce_plus_plus_advantage,
    "reinforce_baseline": reinforce_baseline_advantage,
    "agpo_adaptive": agpo_adaptive_advantage,
    "agpo_asymmetric": agpo_asymmetric_advantage,
    "gigpo": gigpo_advantage,
    "hgpo": hgpo_advantage,
}
"""Credits without a critic: ``f(turns, **options) -> advantages``, the options being the settings' fields."""


@dataclass(frozen=True, eq=False)
class Credit:
    """Advantages of a batch.

    advantage: float64, one per turn (N) or, where ``level`` is ``token``, one per response token (K, turn after turn).
    target: with a critic, what its values should have been, shaped alike. stats: numbers to log.
    """

    advantage: np.ndarray
    tokens_N: np.ndarray
    level: Level = "turn"
    target: np.ndarray | None = None
    stats: dict[str, float] = field(default_factory=dict)

    @property
    def advantage_N(self) -> np.ndarray:
        """One advantage per turn; for token credit the mean over the turn's tokens."""
        return self.advantage if self.level != "token" else _turn_means(self.advantage, self.tokens_N)

    def per_token(self) -> np.ndarray:
        """One advantage per response token, float64[K], turns one after the other."""
        return self.advantage if self.level == "token" else np.repeat(self.advantage, self.tokens_N)


def turns_for(episodes: Sequence[Episode], settings: AnyCredit, penalty: float = 0.0) -> Turns:
    """The columns that the credit needs of ``episodes``: state ids by its key, texts where it compares them."""
    texts = getattr(settings, "similarity", None) is not None
    return Turns.from_episodes(episodes, getattr(settings, "key", "observation"), penalty, texts)


def advantages(turns: Turns, settings: AnyCredit, value: np.ndarray | None = None) -> Credit:
    """The advantages of ``turns`` under ``settings``.

    value: the critic's, for the credits that have one: one per turn (``ppo_turn``) or per response token
    (``ppo_token``), as it was when the batch was sampled.

    stats: ``zero_groups`` (share of task groups without any signal), ``equal_return_groups`` (whose episodes all came
    out alike), ``coverage`` (share of turns whose state is met again in their task group; where states are given),
    ``advantage_std`` and ``advantage_abs`` (spread and mean size over turns).

    Raises :class:`gagpo.credit.BadTurns` when the turns lack what the credit needs.
    """
    target = None
    if isinstance(settings, PpoToken | PpoTurn):
        estimate = ppo_token_advantage if isinstance(settings, PpoToken) else ppo_turn_advantage
        advantage, target = estimate(turns, value, settings.gamma, settings.lam)  # type: ignore[arg-type]
        advantage = whiten(advantage) if settings.whiten else advantage
    else:
        advantage = FUNCTIONS[settings.name](turns, **settings.model_dump(exclude={"name", "key"}))
    per_turn = _turn_means(advantage, turns.tokens_N) if settings.level == "token" else advantage
    return Credit(advantage, turns.tokens_N, settings.level, target, statistics(turns, per_turn))


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


def _turn_means(value_K: np.ndarray, tokens_N: np.ndarray) -> np.ndarray:
    return np.add.reduceat(value_K, np.cumsum(tokens_N) - tokens_N) / tokens_N
