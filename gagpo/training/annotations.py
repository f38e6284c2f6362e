"""Advantage, value and state group, written back to the turns of the episodes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gagpo.credit import Credit, CreditSettings, Turns
from gagpo.credit.gagpo import Gagpo
from gagpo.data import Episode


def annotate(
    played: Sequence[Episode],
    trained: Sequence[Episode],
    turns: Turns,
    credit: Credit,
    settings: CreditSettings,
    ratio_K: np.ndarray | None = None,
    gate_weight_K: np.ndarray | None = None,
) -> None:
    """Write ``credit`` to the turns of the ``trained`` episodes, and mark these among all ``played``.

    turns: the columns that credit was computed from, in the order of ``trained``.
    ratio_K: probability ratio of each response token.
    gate_weight_K: what the gate left of each response token's gradient.
    """
    kept = {id(episode) for episode in trained}
    for episode in played:
        episode.kept = id(episode) in kept
    advantage_N, value_N = credit.advantage_N, _values(turns, settings, credit.value_K)
    state_N = None if turns.state_N is None else turns.states()
    end_N = np.cumsum(turns.tokens_N)
    for number, turn in enumerate(turn for episode in trained for turn in episode.turns):
        turn.advantage = float(advantage_N[number])
        turn.value = None if value_N is None else float(value_N[number])
        turn.group_state = None if state_N is None else int(state_N[number])
        tokens = slice(end_N[number] - turns.tokens_N[number], end_N[number])
        if credit.level == "token":
            turn.advantages = credit.advantage[tokens].astype(np.float32)
        if ratio_K is not None and len(ratio_K) == end_N[-1]:
            turn.ratios = ratio_K[tokens].astype(np.float32)
        if gate_weight_K is not None and len(gate_weight_K) == end_N[-1]:
            turn.gate_weights = gate_weight_K[tokens].astype(np.float32)


def _values(turns: Turns, settings: CreditSettings, value_K: np.ndarray | None) -> np.ndarray | None:
    """The value of each turn's state: the critic's, else GAGPO's, else the mean return, discounted as in the credit."""
    if value_K is not None:
        value_N: np.ndarray = value_K[np.cumsum(turns.tokens_N) - turns.tokens_N]
        return value_N
    if turns.state_N is None:
        return None
    gagpo = settings if isinstance(settings, Gagpo) else Gagpo(gamma=getattr(settings, "gamma", 1.0))
    return gagpo.value(turns)
