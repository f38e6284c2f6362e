"""PPO over turns (arXiv 2512.17008): values before the response, one ratio per turn, mean over tokens."""

import math

import torch

from tests.oracles.batch import clipped, deviation, generalised, kl_terms, mean, mean_over_tokens, per_turn


def raw_advantages(batch, gamma=0.99, lam=0.9):
    numbers = []
    for episode in batch:
        values = [turn.value[0] for turn in episode.turns]
        rewards = [turn.reward - turn.penalty for turn in episode.turns]
        numbers.append(generalised(rewards, values, gamma, lam))
    return numbers


def advantages(batch, **options):
    raw = raw_advantages(batch, **options)
    flat = [x for row in raw for x in row]
    scale = math.sqrt(deviation(flat) ** 2 + 1e-8)
    return per_turn(batch, [[(x - mean(flat)) / scale for x in row] for row in raw])


def loss(batch, advantages, ratio_pool="mean"):
    terms = []
    for episode, numbers in zip(batch, advantages, strict=True):
        terms.append([])
        for turn, row in zip(episode.turns, numbers, strict=True):
            logs = turn.new - turn.old
            ratio = torch.exp(logs.mean()) if ratio_pool == "mean" else torch.prod(torch.exp(logs))
            value = clipped(ratio, row[0], 0.2, 0.2)
            terms[-1].append(value.expand(len(turn.new)))
    return -mean_over_tokens(terms) + 0.01 * mean_over_tokens(kl_terms(batch))
