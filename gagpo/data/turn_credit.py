"""The credit of a turn, next to the turn that it belongs to."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True, eq=False)
class TurnCredit:
    """What training computed for one turn. A turn that was not trained on has the defaults.

    trained_on: whether its episode was part of the batch of an update.
    advantage: of the turn; for token-level credit, the mean over its tokens.
    value: of its state; None if unknown.
    group_state: number of its state in the batch; None if the credit does not compare states.
    ratios: float32, trained policy over sampler, for each response token at the last update.
    gate_weights: float32, what the gate left of each response token's gradient at the last update, 0 where it was
        clipped.
    advantages: float32, one per response token if credit differs between them, else empty.
    """

    trained_on: bool = False
    advantage: float | None = None
    value: float | None = None
    group_state: int | None = None
    ratios: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))
    gate_weights: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))
    advantages: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))
