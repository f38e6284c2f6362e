"""REINFORCE++ and its baseline variant (arXiv 2501.03262): whitened over the tokens of the batch."""

from tests.oracles.batch import kl_terms, mates, mean, mean_over_tokens, per_episode, ppo_terms, whitened


def advantages(batch, gamma=1.0):
    """A turn is paid at its last token; discounting counts response tokens."""
    returns = []
    for episode in batch:
        paid = [[0.0] * (len(turn.new) - 1) + [turn.reward - turn.penalty] for turn in episode.turns]
        flat = [x for row in paid for x in row]
        ahead = iter([sum(gamma**k * x for k, x in enumerate(flat[location:])) for location in range(len(flat))])
        returns.append([[next(ahead) for _ in row] for row in paid])
    return whitened(returns)


def baseline_advantages(batch):
    return whitened(per_episode(batch, lambda one: one.total - mean(other.total for other in mates(batch, one))))


def loss(batch, advantages):
    return -mean_over_tokens(ppo_terms(batch, advantages)) + 0.01 * mean_over_tokens(kl_terms(batch))
