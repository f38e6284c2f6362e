"""HGPO (arXiv 2602.22817), with the start rule of the released code: depth c exists from turn c on."""

from tests.oracles.batch import deviation, discounted, kl_terms, mates, mean, mean_over_tokens, per_turn, ppo_terms


def advantages(batch, gamma=0.95, depth=2, alpha=1.0, norm="mean_std", weight_offset=1, drop_zero=False):
    def context(episode, t, c):
        if t < c:
            return None
        return [episode.turns[location].state for location in range(t - c, t + 1)]

    numbers = []
    for episode in batch:
        numbers.append([])
        for t in range(len(episode.turns)):
            total = weights = 0.0
            for c in range(depth + 1):
                reference = context(episode, t, c)
                peers = [
                    discounted(other, gamma)[location]
                    for other in mates(batch, episode)
                    for location in range(len(other.turns))
                    if reference is not None and context(other, location, c) == reference
                ]
                if len(peers) < 2:
                    continue
                advantage = discounted(episode, gamma)[t] - mean(peers) if deviation(peers, 0) else 0.0
                if norm == "mean_std":
                    advantage /= deviation(peers, 0) + 1e-6
                if drop_zero and advantage == 0:
                    continue
                total += (c + weight_offset) ** alpha * advantage
                weights += (c + weight_offset) ** alpha
            numbers[-1].append(total / weights if weights else 0.0)
    return per_turn(batch, numbers)


def loss(batch, advantages):
    return -mean_over_tokens(ppo_terms(batch, advantages)) + 0.01 * mean_over_tokens(kl_terms(batch))
