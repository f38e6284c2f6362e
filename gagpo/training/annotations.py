"""Credit, state values and policy ratios of an update, as one record for each turn."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gagpo.credit import Credit, CreditSettings, Turns
from gagpo.credit.gagpo import Gagpo
from gagpo.data import Episode, TurnCredit


def annotate(
    played: Sequence[Episode],
    trained: Sequence[Episode],
    turns: Turns,
    credit: Credit,
    settings: CreditSettings,
    ratio_K: np.ndarray | None = None,
    gate_weight_K: np.ndarray | None = None,
) -> list[list[TurnCredit]]:
    """The credit of every turn of the ``played`` episodes.

    trained: the episodes of the batch, some of ``played``; turns of the others have no advantage.
    turns: the columns that credit was computed from, in the order of ``trained``.
    ratio_K: probability ratio of each response token.
    gate_weight_K: what the gate left of each response token's gradient.
    """
    advantage_N = credit.advantage_N
    value_N = _values(turns, settings, credit.value_K)
    state_N = None if turns.state_N is None else turns.states()
    token_columns = {"ratios": ratio_K, "gate_weights": gate_weight_K}
    if credit.level == "token":
        token_columns["advantages"] = credit.advantage
    end_N = np.cumsum(turns.tokens_N)
    turn_credits = []
    for number, (start, end) in enumerate(zip(turns.first_token_N, end_N, strict=True)):
        turn_credits.append(
            TurnCredit(
                trained_on=True,
                advantage=float(advantage_N[number]),
                value=None if value_N is None else float(value_N[number]),
                group_state=None if state_N is None else int(state_N[number]),
                **{
                    name: column_K[start:end].astype(np.float32)
                    for name, column_K in token_columns.items()
                    if column_K is not None and len(column_K) == turns.num_tokens
                },
            )
        )
    # By identity: equal episodes of one task are different episodes.
    end_E = np.cumsum([len(episode.turns) for episode in trained])
    credits_of = {
        id(episode): turn_credits[end - len(episode.turns) : end] for episode, end in zip(trained, end_E, strict=True)
    }
    return [credits_of.get(id(episode), [TurnCredit()] * len(episode.turns)) for episode in played]


def _values(turns: Turns, settings: CreditSettings, value_K: np.ndarray | None) -> np.ndarray | None:
    """The value of each turn's state: the critic's, else GAGPO's, else the mean return, discounted as in the credit."""
    if value_K is not None:
        return np.asarray(value_K[turns.first_token_N])
    if turns.state_N is None:
        return None
    gagpo = settings if isinstance(settings, Gagpo) else Gagpo(gamma=getattr(settings, "gamma", 1.0))
    return gagpo.value(turns)
