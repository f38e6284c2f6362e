"""AGPO, adaptive (arXiv 2605.20722), with the radius that its controller has: one per task."""

import math

import torch

from tests.oracles.batch import deviation, kl_terms, mates, mean, mean_over_sequences, per_episode


def advantages(batch):
    def advantage(episode):
        results = [other.total for other in mates(batch, episode)]
        return (episode.total - mean(results)) / max(deviation(results), 1e-8) if deviation(results) else 0.0

    return per_episode(batch, advantage)


def vote_entropy(votes):
    shares = [votes.count(vote) / len(votes) for vote in set(votes)]
    return -sum(share * math.log(share) for share in shares)


def radius(successes, entropy, usual_entropy, drift):
    """Clip radius of a task from its probe's successes, the policy's entropy on it and the running KL."""
    h = min(max(entropy / usual_entropy, 0.5), 1.5)
    spread = deviation([float(success) for success in successes])
    raw = 0.2 * h * (1 + 0.1 * vote_entropy(list(successes))) / (1 + spread + 0.5 * drift)
    return min(max(raw, 0.05), 0.4)


def temperature(successes, usual):
    """Sampling temperature of a task from its probe's successes and the running mean of the uncertainty."""
    uncertainty = deviation([float(success) for success in successes]) + vote_entropy(list(successes))
    return min(max(1 + 0.15 * (uncertainty - usual) / (usual + 1e-8), 0.5), 1.5)


def loss(batch, advantages, radii):
    """radii: by task group."""
    terms = []
    for episode, numbers in zip(batch, advantages, strict=True):
        low = radii[episode.group]
        terms.append([])
        for turn, row in zip(episode.turns, numbers, strict=True):
            ratio = torch.exp(turn.new - turn.old)
            terms[-1].append(torch.minimum(ratio * row[0], torch.clamp(ratio, 1 - low, 1 + low) * row[0]))
    return -mean_over_sequences(terms) + 0.03 * mean_over_sequences(kl_terms(batch))
