"""SAMPO (arXiv 2602.21534, equation 8): GiGPO's advantages under one clipped ratio per sequence, mean over tokens."""

import torch

from tests.oracles.batch import mean_over_tokens
from tests.oracles.turn_level.gigpo import advantages as advantages  # the same


def loss(batch, advantages, low=3e-4, high=4e-4):
    terms = []
    for episode, numbers in zip(batch, advantages, strict=True):
        ratio = torch.exp(torch.cat([turn.new - turn.old for turn in episode.turns]).mean())
        terms.append([])
        for row in numbers:
            a = torch.tensor(row, dtype=torch.float64)
            terms[-1].append(torch.minimum(ratio * a, torch.clamp(ratio, 1 - low, 1 + high) * a))
    return -mean_over_tokens(terms)
