"""APMPO (arXiv 2605.04066, Algorithm 1): power mean and adaptive upper bound; population deviations; its ablations."""

import math

import torch

from tests.oracles.batch import deviation, group_relative, kl_terms, mates, mean, mean_over_sequences


def advantages(batch):
    return group_relative(batch, lambda episode: float(episode.success), ddof=0)


def exponent_of(rewards, form="exponential", scale=0.8):
    return math.exp(-scale * mean(rewards)) if form == "exponential" else 1 - scale * mean(rewards)


def radius_of(rewards, form="tanh", low=0.2, high=0.4, ddof=0):
    spread = deviation(rewards, ddof) + 1e-6
    signal = {"tanh": mean(rewards) / spread, "mean": mean(rewards), "deviation": 1 / spread}[form]
    return low + (high - low) * math.tanh(signal)


def successes(batch, episode, per):
    members = batch if per == "batch" else mates(batch, episode)
    return [float(other.success) for other in members]


def loss(
    batch,
    advantages,
    exponent="exponential",
    scale=0.8,
    radius="tanh",
    symmetric=False,
    per="batch",
    **bounds,
):
    """exponent: a form, or a number that stays. radius: a form, or a number that stays."""
    total = 0.0
    for episode, numbers in zip(batch, advantages, strict=True):
        rewards = successes(batch, episode, per)
        p = exponent_of(rewards, exponent, scale) if isinstance(exponent, str) else exponent
        upper = radius_of(rewards, radius, **bounds) if isinstance(radius, str) else radius
        lower = upper if symmetric else 0.2
        advantage = numbers[0][0]
        if advantage:
            ratio = torch.exp(torch.cat([turn.new - turn.old for turn in episode.turns]))
            held = torch.clamp(ratio, 1 - lower, 1 + upper)
            phi = torch.minimum(ratio * advantage, held * advantage).abs()
            total = total + (phi**p).mean() ** (1 / p) * math.copysign(1.0, advantage)
    return -total / len(batch) + 0.001 * mean_over_sequences(kl_terms(batch))


def radius_alone_loss(batch, advantages, per="batch"):
    """The adaptive radius with the plain mean over tokens in each sequence."""
    terms = []
    for episode, numbers in zip(batch, advantages, strict=True):
        upper = radius_of(successes(batch, episode, per))
        terms.append([])
        for turn, row in zip(episode.turns, numbers, strict=True):
            ratio = torch.exp(turn.new - turn.old)
            terms[-1].append(torch.minimum(ratio * row[0], torch.clamp(ratio, 0.8, 1 + upper) * row[0]))
    return -mean_over_sequences(terms) + 0.001 * mean_over_sequences(kl_terms(batch))


def power_mean_of_sapo_loss(batch, advantages, p, positive=1.0, negative=1.05):
    """A fixed power mean of SAPO's soft gate, which has no radius to adapt."""
    total = 0.0
    for episode, numbers in zip(batch, advantages, strict=True):
        advantage = numbers[0][0]
        tau = positive if advantage > 0 else negative
        ratio = torch.exp(torch.cat([turn.new - turn.old for turn in episode.turns]))
        coefficient = 4 / tau * torch.sigmoid(tau * (ratio - 1))
        total = total + advantage * (coefficient**p).mean() ** (1 / p)
    return -total / len(batch) + 0.001 * mean_over_sequences(kl_terms(batch))
