"""RLOO (arXiv 2402.14740): the mean of the others is the baseline."""

from tests.oracles.batch import kl_terms, mates, mean, mean_over_tokens, per_episode, ppo_terms


def advantages(batch):
    def advantage(episode):
        remaining = [other.total for other in mates(batch, episode) if other is not episode]
        return episode.total - mean(remaining) if remaining else 0.0

    return per_episode(batch, advantage)


def loss(batch, advantages):
    return -mean_over_tokens(ppo_terms(batch, advantages)) + 0.01 * mean_over_tokens(kl_terms(batch))
