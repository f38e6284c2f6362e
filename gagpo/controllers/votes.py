"""Vote entropy of a probe's task groups."""

from __future__ import annotations

import numpy as np


def vote_entropy(vote_E: np.ndarray, group_E: np.ndarray, groups: int) -> np.ndarray:
    """Entropy of each group's votes, nats, float64[groups]."""
    vote_E = np.unique(vote_E, return_inverse=True)[1]
    kinds = int(vote_E.max()) + 1
    cell_C, votes_C = np.unique(group_E * kinds + vote_E, return_counts=True)
    cell_group_C = cell_C // kinds
    share_C = votes_C / np.bincount(group_E, minlength=groups)[cell_group_C]
    return np.bincount(cell_group_C, -share_C * np.log(share_C), groups) + 0.0
