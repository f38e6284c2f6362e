"""DPPO (arXiv 2602.04879), binary total variation and binary KL: tokens whose probability moved too far are dropped."""

import math

import torch

from tests.oracles.batch import mates, mean, per_episode


def advantages(batch):
    return per_episode(batch, lambda episode: episode.total - mean(other.total for other in mates(batch, episode)))


def kept(new, old, advantage, divergence="tv", delta=0.15):
    pi, mu = math.exp(new), math.exp(old)
    if divergence == "tv":
        return not ((advantage > 0 and pi - mu > delta) or (advantage < 0 and pi - mu < -delta))
    moved = mu * math.log(mu / pi) + (1 - mu) * math.log((1 - mu + 1e-8) / (1 - pi + 1e-8))
    away = (advantage > 0 and pi > mu) or (advantage < 0 and pi < mu)
    return not (away and moved > delta)


def term(new, old, advantage, divergence="tv", delta=0.15, cap=20.0):
    """Of one token; its gradient is the ratio's, up to the cap."""
    if not kept(new.item(), old.item(), advantage, divergence, delta):
        return 0.0 * new
    return min(math.exp(new.item() - old.item()), cap) * advantage * new


def loss(batch, advantages, length=512):
    total = torch.zeros((), dtype=torch.float64)
    for episode, numbers in zip(batch, advantages, strict=True):
        for turn, row in zip(episode.turns, numbers, strict=True):
            for new, old, advantage in zip(turn.new, turn.old, row, strict=True):
                total = total - term(new, old, advantage)
    return total / (len(batch) * length)
