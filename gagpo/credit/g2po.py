"""G2PO: compares transitions within their source state and within their task group (arXiv 2606.22995).

Values are means over visits as in GAGPO, and the difference between a transition's ends is compared with others instead
of being summed along the episode.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from gagpo.credit.episode import Grpo
from gagpo.credit.registry import CreditSettings, Level
from gagpo.credit.statistics.groups import group_mean, standardise
from gagpo.credit.statistics.returns import next_in_episode
from gagpo.data import StateKey, Turns


class G2po(CreditSettings):
    """``A^EP + A^NC + A^EC`` of each turn (arXiv 2606.22995).

    ``V(s)`` is the mean of ``gamma^n R`` over all visits of s in the task group, n the turns from the visit to the end,
    that turn included, and R the episode's return. The end of an episode is worth R if the task was solved, else 0.
    ``A^NC`` normalises ``V(s')`` less penalties over all turns in s, ``A^EC`` the gain ``V(s') - V(s)`` over the task
    group; ``A^EP`` is GRPO's, with statistics over episodes as in the paper (the released code uses turns).
    """

    level: ClassVar[Level] = "turn"
    name: Literal["g2po"] = "g2po"
    state_key: StateKey = "auto"
    gamma: float = Field(default=0.95, gt=0, le=1)

    def advantage(self, turns: Turns) -> np.ndarray:
        state_N = turns.states()
        states = int(state_N.max()) + 1
        reward_N = turns.reward_E[turns.episode_N]
        remaining_N = np.bincount(turns.episode_N)[turns.episode_N] - _places(turns)
        value_N = group_mean(self.gamma**remaining_N * reward_N, state_N, states)[state_N]
        end_N = np.where(turns.last_N & turns.required_success_E[turns.episode_N], reward_N, 0.0)
        next_N = next_in_episode(value_N, turns.last_N) + end_N
        node_N = standardise(next_N - turns.penalty_N, state_N, states)
        edge_N = standardise(next_N - value_N, turns.group_index_N, turns.num_groups)
        return np.asarray(Grpo().advantage(turns) + (node_N + edge_N))


def _places(turns: Turns) -> np.ndarray:
    """Index of each turn in its episode, int64[N]."""
    first_E = np.flatnonzero(np.append(True, turns.last_N[:-1]))
    return np.asarray(np.arange(turns.num_turns) - first_E[turns.episode_N])
