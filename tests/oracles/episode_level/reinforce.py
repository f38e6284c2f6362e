"""REINFORCE++ and its baseline variant (arXiv 2501.03262): whitened over the tokens of the batch."""

from tests.oracles.batch import kl_terms, mates, mean, mean_over_tokens, per_episode, ppo_terms, whitened


def advantages(batch):
    returns = []
    for episode in batch:
        totals = [sum(turn.reward - turn.penalty for turn in episode.turns[t:]) for t in range(len(episode.turns))]
        returns.append([[total] * len(turn.new) for total, turn in zip(totals, episode.turns, strict=True)])
    return whitened(returns)


def baseline_advantages(batch):
    return whitened(per_episode(batch, lambda one: one.total - mean(other.total for other in mates(batch, one))))


def loss(batch, advantages):
    return -mean_over_tokens(ppo_terms(batch, advantages)) + 0.01 * mean_over_tokens(kl_terms(batch))
