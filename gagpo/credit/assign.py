"""From turns and a credit's settings to advantages.

Credit takes arrays of rewards, states and counts, and needs no model and no trainer. So each credit is tested against
an independent implementation, and other trainers can use it from their padded token matrices.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from gagpo.base.errors import InvalidArgument
from gagpo.credit.registry import CreditSettings, Level
from gagpo.credit.reinforce import response_tokens
from gagpo.credit.statistics.aliasing import aliasing
from gagpo.credit.statistics.groups import varies
from gagpo.data import BadTurns, Episode, StateKey, Turns, turns_from_episodes

VISITS: dict[str, tuple[int, float]] = {"1": (1, 1), "2_3": (2, 3), "4_7": (4, 7), "8_up": (8, math.inf)}
"""Classes of turns by the number of visits to their state in the task group, lowest and highest."""

ALIASED = 0.05
"""Fraction of aliased pairs above which a credit that follows states warns."""


@dataclass(frozen=True, eq=False)
class Credit:
    """Advantages of N turns and their K response tokens.

    advantage: float64, one per turn, or one per response token where ``level`` is ``token``.
    target: the critic's targets, shaped like ``advantage``.
    stats: metrics.
    value_K: the critic's value at each response token when the batch was sampled.
    """

    advantage: np.ndarray
    tokens_N: np.ndarray
    level: Level = "turn"
    target: np.ndarray | None = None
    stats: dict[str, float] = field(default_factory=dict)
    value_K: np.ndarray | None = None

    @property
    def tokens(self) -> int:
        """Number of response tokens."""
        return int(self.tokens_N.sum())

    @property
    def first_token_N(self) -> np.ndarray:
        """Index of each turn's first response token, int64[N]."""
        return np.asarray(np.cumsum(self.tokens_N) - self.tokens_N)

    @property
    def advantage_N(self) -> np.ndarray:
        """One advantage per turn; for token-level credit, the mean over the turn's tokens."""
        if self.level != "token":
            return self.advantage
        return np.asarray(np.add.reduceat(self.advantage, self.first_token_N) / self.tokens_N)

    def per_token(self) -> np.ndarray:
        """One advantage per response token, float64[K]."""
        return self.advantage if self.level == "token" else np.repeat(self.advantage, self.tokens_N)


def turns_for(
    episodes: Sequence[Episode],
    settings: CreditSettings,
    penalty: float | Sequence[float] = 0.0,
    success_only: bool | Sequence[bool] = False,
) -> Turns:
    """The columns of ``episodes`` that the credit needs, with states by its key.

    penalty: see :func:`turns_from_episodes`.
    success_only: whether only success is rewarded, one for all or one for each episode; see
        :meth:`Turns.with_success_reward`.
    """
    key: StateKey = getattr(settings, "state_key", "observation")
    turns = turns_from_episodes(episodes, key, penalty, settings.reads_texts)
    return turns.with_success_reward(success_only) if np.any(success_only) else turns


def advantages(turns: Turns, settings: CreditSettings, value_K: np.ndarray | None = None) -> Credit:
    """The advantages of ``turns``, computed for each environment separately, and :func:`credit_statistics`.

    Statistics over the batch (``norm: batch``, whitening) are over the environment's part of it, because rewards of
    different environments are not comparable. Warns where a credit follows states and the key does not identify them.

    value_K: the critic's value of each response token when the batch was sampled; a turn's is read at its first.

    Raises:
        BadTurns: a column that the credit needs is missing.
    """
    by_token = settings.level == "token"
    if settings.critic:
        value_K = _checked_values(value_K, turns.num_tokens)
    advantage = np.zeros(turns.num_tokens if by_token else turns.num_turns)
    target = np.zeros(len(advantage)) if settings.critic else None
    for mask_E, env_turns in turns.by_env():
        # A mask per axis: environments may alternate in a batch, so their turns are not one slice.
        mask_N = mask_E[turns.episode_N]
        mask_K = np.repeat(mask_N, turns.tokens_N)
        mask = mask_K if by_token else mask_N
        if target is None or value_K is None:
            env_advantage = settings.advantage(env_turns)
        else:
            value = value_K[mask_K]
            if not by_token:
                response_tokens(env_turns)  # a turn without one would get the next turn's value
                value = value[env_turns.first_token_N]
            env_advantage, target[mask] = settings.advantage_and_target(env_turns, value)
        expected = int(mask.sum())
        if env_advantage.shape != (expected,):
            unit = "response token" if by_token else "turn"
            raise InvalidArgument(
                f"credit {settings.name} returned advantages of shape {env_advantage.shape}",
                advice=f"return one per {unit}: ({expected},)",
            )
        advantage[mask] = env_advantage
    credit = Credit(advantage, turns.tokens_N, settings.level, target, {}, value_K)
    credit.stats.update(credit_statistics(turns, credit.advantage_N, settings.compares_states))
    if settings.follows_states and credit.stats.get("aliasing", 0.0) > ALIASED:
        # Without numbers in it, so that Python shows the warning once and not in every iteration.
        warnings.warn(
            f"credit {settings.name} follows states, but its key does not identify them: the same action in one state "
            "led to different states or rewards (metric aliasing); set algorithm.credit.state_key=state, or, if the "
            "environment reports no state, use a credit that does not follow them (gagpo, grpo)",
            stacklevel=2,
        )
    return credit


def _checked_values(value_K: np.ndarray | None, tokens: int) -> np.ndarray:
    if value_K is None:
        raise BadTurns("this credit needs a critic", key="value", advice="give its value of each response token")
    value_K = np.asarray(value_K, np.float64)
    if value_K.shape != (tokens,) or not np.isfinite(value_K).all():
        raise BadTurns(
            f"the critic's values must be finite, one per response token, shape ({tokens},)",
            advice=f"got shape {value_K.shape}",
        )
    return value_K


def credit_statistics(turns: Turns, advantage_N: np.ndarray, of_states: bool = True) -> dict[str, float]:
    """Metrics of a batch's credit.

    of_states: whether the credit compares states; without them the metrics below from ``repeated_states`` on would
        describe states that nothing uses.

    ``zero_advantage_groups``: fraction of task groups whose advantages are all 0.
    ``equal_return_groups``: fraction of task groups with equal returns.
    ``advantage_std``, ``advantage_abs``: standard deviation and mean size over turns.
    ``repeated_states``: fraction of turns whose state occurs again in their task group.
    ``visits_1`` and so on: fraction of turns whose state was visited so often, see ``VISITS``. A value estimated from
        one visit is that episode's own return.
    ``aliasing``: see :func:`gagpo.credit.statistics.aliasing.aliasing`.
    """
    signal_G = np.bincount(turns.group_index_N, np.abs(advantage_N), turns.num_groups)
    stats = {
        "zero_advantage_groups": float((signal_G == 0).mean()),
        "equal_return_groups": float(1.0 - varies(turns.return_E, turns.group_index_E, turns.num_groups).mean()),
        "advantage_std": float(advantage_N.std()),
        "advantage_abs": float(np.abs(advantage_N).mean()),
    }
    if turns.state_N is not None and of_states:
        state_N = turns.states()
        visits_N = np.bincount(state_N)[state_N]
        stats["repeated_states"] = float((visits_N > 1).mean())
        for name, (low, high) in VISITS.items():
            stats[f"visits_{name}"] = float(((visits_N >= low) & (visits_N <= high)).mean())
        aliased = aliasing(turns)
        if not math.isnan(aliased):
            stats["aliasing"] = aliased
    return stats
