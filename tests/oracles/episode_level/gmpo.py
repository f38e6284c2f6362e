"""GMPO (arXiv 2507.20673): geometric mean of one-sidedly clipped token ratios."""

import torch

from tests.oracles.batch import group_relative


def advantages(batch):
    return group_relative(batch)


def loss(batch, advantages):
    total = 0.0
    for episode, numbers in zip(batch, advantages, strict=True):
        advantage = numbers[0][0]
        symbol = (advantage > 0) - (advantage < 0)
        log_ratio = torch.cat([turn.new - turn.old for turn in episode.turns])
        held = symbol * torch.minimum(symbol * log_ratio, symbol * torch.clamp(log_ratio, -0.4, 0.4))
        total = total + advantage * torch.exp(held.mean())
    return -total / len(batch)
