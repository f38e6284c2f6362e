"""MaxRL (arXiv 2602.02710): the success of an episode over its task's rate of success, less 1."""

from tests.oracles.batch import kl_terms, mates, mean, mean_over_tokens, per_episode, ppo_terms


def advantages(batch):
    def advantage(episode):
        rate = mean(float(other.success) for other in mates(batch, episode))
        return float(episode.success) / rate - 1 if rate else 0.0

    return per_episode(batch, advantage)


def score_weights(outcomes):
    """The estimator as derived: of each score function, 1/K of K successes less the mean score function of all N."""
    return [
        (outcome / sum(outcomes) if sum(outcomes) else 0.0) - (1 / len(outcomes) if sum(outcomes) else 0.0)
        for outcome in outcomes
    ]


def loss(batch, advantages):
    return -mean_over_tokens(ppo_terms(batch, advantages)) + 0.01 * mean_over_tokens(kl_terms(batch))
