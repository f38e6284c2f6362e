"""Dr.GRPO (arXiv 2503.20783): no deviation, no length; here the constant is 512 tokens."""

from tests.oracles.batch import mates, mean, per_episode, ppo_terms


def advantages(batch):
    return per_episode(batch, lambda one: one.total - mean(other.total for other in mates(batch, one)))


def loss(batch, advantages):
    terms = ppo_terms(batch, advantages)
    return -sum(term.sum() for episode in terms for term in episode) / (len(batch) * 512)
