"""GiGPO: an episode's advantage plus the advantage of each turn within its state group (arXiv 2505.10978)."""

from __future__ import annotations

from typing import Literal

import numpy as np

from gagpo.credit.grouping import EPSILON, centre, group_mean, group_std, return_to_go, standardise
from gagpo.credit.similarity import similar_states
from gagpo.credit.turns import Turns

GigpoNorm = Literal["mean_std", "mean"]


def step_advantage(
    turns: Turns,
    gamma: float = 0.95,
    norm: GigpoNorm = "mean_std",
    similarity: float | None = None,
    epsilon: float = EPSILON,
) -> np.ndarray:
    """Each turn's discounted return, its penalty then subtracted, within its state group, float64[N].

    norm: ``mean_std`` gives ``(G - mean)/(std + epsilon)``, ``mean`` gives ``G - mean``; a state met once gives 0.
    similarity: group turns whose observations are at least that similar instead of equal states (needs ``text_N``).
    """
    return_N = return_to_go(turns.reward_N, turns.last_N, gamma) - turns.penalty_N
    state_N = turns.states() if similarity is None else similar_states(turns, similarity)
    states = int(state_N.max()) + 1
    if norm == "mean":
        return centre(return_N, state_N, states)
    return standardise(return_N, state_N, states, epsilon=epsilon)


def gigpo_advantage(
    turns: Turns,
    gamma: float = 0.95,
    step_weight: float = 1.0,
    norm: GigpoNorm = "mean_std",
    statistics: Literal["episode", "turn"] = "episode",
    similarity: float | None = None,
    epsilon: float = EPSILON,
) -> np.ndarray:
    """GiGPO's advantage of each turn, float64[N]: ``A^E + step_weight * A^S`` (arXiv 2505.10978, eq. 3, 7 and 8).

    ``A^E`` compares the episode's return, less the turn's own penalty, with its task group: over episodes
    (``statistics="episode"``) or over the group's turns, each with its episode's return (``"turn"``, as in the authors'
    code, where long episodes weigh more); 0 where those are all equal. ``A^S`` is :func:`step_advantage`; both share
    ``norm``.
    """
    group_N, groups = turns.group_index_N, turns.groups
    reward_E = np.bincount(turns.episode_N, turns.reward_N, turns.episodes)
    score_N = reward_E[turns.episode_N] - turns.penalty_N
    if statistics == "turn":
        sample, sample_group = score_N, group_N
    else:
        sample, sample_group = reward_E, turns.group_index_E
    mean_N = group_mean(sample, sample_group, groups)[group_N]
    std_N = group_std(sample, sample_group, groups)[group_N]
    scale_N = std_N + epsilon if norm == "mean_std" else np.ones(turns.turns)
    episode_N = np.where(std_N > 0, (score_N - mean_N) / scale_N, 0.0)
    return episode_N + step_weight * step_advantage(turns, gamma, norm, similarity, epsilon)
