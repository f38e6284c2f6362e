"""Supervised training on one's own successes (ReST-EM, arXiv 2312.06585): no ratio, no baseline."""

from tests.oracles.batch import per_episode


def advantages(batch):
    return per_episode(batch, lambda episode: 1.0 if episode.success else 0.0)


def loss(batch, advantages):
    total, tokens = 0.0, 0
    for episode in batch:
        for turn in episode.turns:
            total = total + (1.0 if episode.success else 0.0) * turn.new.sum()
            tokens += len(turn.new)
    return -total / tokens
