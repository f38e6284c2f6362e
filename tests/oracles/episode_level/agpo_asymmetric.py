"""AGPO, asymmetric (arXiv 2605.05826): smoothing delta and penalty bonus, 1 and -1 where not given."""

import math

from tests.oracles.batch import deviation, mates, mean, mean_over_sequences, per_episode, ppo_terms


def advantages(batch, delta=1.0, bonus=-1.0):
    def advantage(episode):
        symbols = [1.0 if other.success else -1.0 for other in mates(batch, episode)]
        reference = 1.0 if episode.success else -1.0
        scale = math.sqrt(deviation(symbols, ddof=0) ** 2 + delta**2)
        return (reference - mean(symbols)) / scale + (bonus if reference < 0 else 0.0)

    return per_episode(batch, advantage)


def loss(batch, advantages):
    return -mean_over_sequences(ppo_terms(batch, advantages))
