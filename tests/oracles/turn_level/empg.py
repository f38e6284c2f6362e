"""EMPG (arXiv 2509.09265): GRPO's advantage scaled by how sure each step was, and a bonus for the next one's."""

import math

from tests.oracles.batch import group_relative, kl_terms, mean, mean_over_tokens, per_turn, ppo_terms


def advantages(batch, k=1.0, future_k=1.0, zeta=0.1):
    entropy = [[float(turn.entropy.mean()) for turn in episode.turns] for episode in batch]
    flat = [x for row in entropy for x in row]
    level = [[(x - min(flat)) / (max(flat) - min(flat) + 1e-6) for x in row] for row in entropy]
    usual = mean(math.exp(-k * x) for row in level for x in row)
    numbers = []
    for base, row in zip(group_relative(batch), level, strict=True):
        ahead = [zeta * math.exp(-future_k * x) for x in row[1:]] + [0.0]
        numbers.append([base[t][0] * math.exp(-k * x) / usual + ahead[t] for t, x in enumerate(row)])
    centre = mean(x for row in numbers for x in row)
    return per_turn(batch, [[x - centre for x in row] for row in numbers])


def loss(batch, advantages):
    return -mean_over_tokens(ppo_terms(batch, advantages)) + 0.01 * mean_over_tokens(kl_terms(batch))
