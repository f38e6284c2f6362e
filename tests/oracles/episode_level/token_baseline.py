"""The optimal token baseline (arXiv 2602.07078), as printed: a baseline for each token's place in an episode.

The batch knows no distributions: the sum of squared probabilities of a token is taken to be ``exp(-entropy)``.
"""

import math

from tests.oracles.batch import mates, mean_over_tokens, ppo_terms


def energy(turn):
    """``1 - 2 pi + sum pi^2`` of each token."""
    return [
        1 - 2 * math.exp(old) + math.exp(-entropy)
        for old, entropy in zip(turn.old.tolist(), turn.entropy.tolist(), strict=True)
    ]


def paths(episode):
    """Of each token its return-to-go and the energy spent up to it."""
    results, spent = [], 0.0
    for t, turn in enumerate(episode.turns):
        remaining = sum(later.reward - later.penalty for later in episode.turns[t:])
        for each in energy(turn):
            spent += each
            results.append((remaining, spent))
    return results


def advantages(batch):
    result = []
    for episode in batch:
        reference, remaining = paths(episode), [paths(other) for other in mates(batch, episode)]
        flat = []
        for k, (before, _) in enumerate(reference):
            here = [path[k] for path in remaining if k < len(path)]
            baseline = sum(g * w for g, w in here) / (sum(w for _, w in here) + 1e-8)
            flat.append(before - baseline if len({g for g, _ in here}) > 1 else 0.0)
        rows, begin = [], 0
        for turn in episode.turns:
            rows.append(flat[begin : begin + len(turn.new)])
            begin += len(turn.new)
        result.append(rows)
    return result


def loss(batch, advantages):
    return -mean_over_tokens(ppo_terms(batch, advantages))
