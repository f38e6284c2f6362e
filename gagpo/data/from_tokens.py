"""Turns from the padded token matrices of other trainers. Suffixes: B = episodes (rows), L = padded length."""

from __future__ import annotations

from typing import Any

import numpy as np

from gagpo.data.errors import BadTurns
from gagpo.data.state_keys import intern
from gagpo.data.turns import Turns, as_array


def turns_from_tokens(response_BL: Any, mask_BL: Any, reward: Any, group_B: Any, success: Any = None) -> Turns:
    """Turns of B episodes, each a row in which sampled tokens and observations alternate.

    A turn is an unbroken run of sampled tokens. Its state is the observation before it, token for token; a first turn's
    is the prompt.

    response_BL: token ids after the prompt, padded.
    mask_BL: 1 for sampled tokens, 0 for observations and padding.
    reward: one per episode, paid at its last turn, or one per token (B, L), paid to the turn that contains or precedes
        the token.
    group_B: task group; its members share their prompt.
    success: whether each episode succeeded.

    Raises:
        BadTurns: shapes do not match, or an episode has no sampled token.
    """
    response_BL = as_array(response_BL)
    mask_BL = as_array(mask_BL).astype(np.bool_)
    reward = as_array(reward)
    if mask_BL.ndim != 2:
        raise BadTurns(f"the mask must have one row per episode, got shape {mask_BL.shape}", key="mask_BL")
    if response_BL.shape != mask_BL.shape or reward.shape not in (mask_BL.shape, mask_BL.shape[:1]):
        raise BadTurns(
            f"response, mask and reward do not fit: {response_BL.shape}, {mask_BL.shape} and {reward.shape}",
            advice="reward has one entry per episode or per token",
        )
    unsampled_rows = np.flatnonzero(~mask_BL.any(axis=1))
    if unsampled_rows.size:
        raise BadTurns("has no sampled token", where=f"episode {unsampled_rows[0]}", advice="leave it out")
    starts_BL = mask_BL.copy()
    starts_BL[:, 1:] &= ~mask_BL[:, :-1]
    turn_BL = np.cumsum(starts_BL).reshape(mask_BL.shape) - 1  # the turn that contains or precedes a token
    row_N, position_N = np.nonzero(starts_BL)
    turns = len(row_N)
    first_N = np.diff(row_N, prepend=-1) != 0
    last_N = np.diff(row_N, append=-1) != 0
    if reward.ndim == 1:
        reward_N = np.where(last_N, reward[row_N], 0.0)
    else:
        # A reward before a row's first turn is paid to that turn.
        paid_turn_BL = np.maximum(turn_BL, np.flatnonzero(first_N)[:, None])
        reward_N = np.bincount(paid_turn_BL.ravel(), reward.astype(np.float64).ravel(), turns)
    tokens_N = np.bincount(turn_BL[mask_BL], minlength=turns)
    end_N = position_N + tokens_N
    states = [
        () if first_N[turn] else tuple(response_BL[row_N[turn], end_N[turn - 1] : position_N[turn]].tolist())
        for turn in range(turns)
    ]
    return Turns.of(reward_N, row_N, as_array(group_B), state_N=intern(states), tokens_N=tokens_N, success_E=success)
