"""APMPO (arXiv 2605.04066, Algorithm 1): power mean and adaptive upper bound; population deviations."""

import math

import torch

from tests.oracles.batch import deviation, group_relative, kl_terms, mean, mean_over_sequences


def advantages(batch):
    return group_relative(batch, lambda episode: float(episode.success), ddof=0)


def loss(batch, advantages):
    rewards = [float(episode.success) for episode in batch]
    exponent = math.exp(-0.8 * mean(rewards))
    radius = 0.2 + 0.2 * math.tanh(mean(rewards) / (deviation(rewards, ddof=0) + 1e-6))
    total = 0.0
    for episode, numbers in zip(batch, advantages, strict=True):
        advantage = numbers[0][0]
        if advantage:
            ratio = torch.exp(torch.cat([turn.new - turn.old for turn in episode.turns]))
            held = torch.clamp(ratio, 0.8, 1 + radius)
            phi = torch.minimum(ratio * advantage, held * advantage).abs()
            total = total + (phi**exponent).mean() ** (1 / exponent) * math.copysign(1.0, advantage)
    return -total / len(batch) + 0.001 * mean_over_sequences(kl_terms(batch))
