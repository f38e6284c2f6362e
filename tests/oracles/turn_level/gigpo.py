"""GiGPO (arXiv 2505.10978, equations 3, 7, 8): an episode term plus a term among equal states."""

import torch

from tests.oracles.batch import (
    deviation,
    discounted,
    entropy_terms,
    kl_terms,
    mates,
    mean,
    mean_over_tokens,
    per_turn,
    token_terms,
)


def advantages(batch, gamma=0.95, norm="mean_std", step_weight=1.0, statistics="episode", same=lambda a, b: a == b):
    """same: whether two states are one."""

    def normalised(value, values):
        spread = deviation(values)
        return (value - mean(values)) / (spread + 1e-6 if norm == "mean_std" else 1.0) if spread else 0.0

    numbers = []
    for episode in batch:
        totals = [sum(turn.reward for turn in other.turns) for other in mates(batch, episode)]
        if statistics == "turn":
            totals = [
                sum(item.reward for item in other.turns) - turn.penalty
                for other in mates(batch, episode)
                for turn in other.turns
            ]
        reference = sum(turn.reward for turn in episode.turns)
        numbers.append([])
        for t, turn in enumerate(episode.turns):
            peers = [
                discounted(other, gamma, fined=False)[location] - its.penalty
                for other in mates(batch, episode)
                for location, its in enumerate(other.turns)
                if same(its.state, turn.state)
            ]
            step = discounted(episode, gamma, fined=False)[t] - turn.penalty
            numbers[-1].append(normalised(reference - turn.penalty, totals) + step_weight * normalised(step, peers))
    return per_turn(batch, numbers)


def loss(batch, advantages):
    def term(turn, advantage):
        ratio = torch.exp(turn.new - turn.old)
        value = torch.minimum(ratio * advantage, torch.clamp(ratio, 0.8, 1.2) * advantage)
        return torch.where(advantage < 0, torch.maximum(value, 3.0 * advantage), value)

    objective = mean_over_tokens(token_terms(batch, advantages, term))
    return -objective + 0.01 * mean_over_tokens(kl_terms(batch)) - 0.001 * mean_over_tokens(entropy_terms(batch))
