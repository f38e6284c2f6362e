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


def advantages(batch, gamma=0.95):
    numbers = []
    for episode in batch:
        totals = [sum(turn.reward for turn in other.turns) for other in mates(batch, episode)]
        own, spread = sum(turn.reward for turn in episode.turns), deviation(totals)
        numbers.append([])
        for t, turn in enumerate(episode.turns):
            first = (own - turn.penalty - mean(totals)) / (spread + 1e-6) if spread else 0.0
            peers = [
                discounted(other, gamma, fined=False)[place] - its.penalty
                for other in mates(batch, episode)
                for place, its in enumerate(other.turns)
                if its.state == turn.state
            ]
            step = discounted(episode, gamma, fined=False)[t] - turn.penalty
            second = (step - mean(peers)) / (deviation(peers) + 1e-6) if deviation(peers) else 0.0
            numbers[-1].append(first + second)
    return per_turn(batch, numbers)


def loss(batch, advantages):
    def term(turn, advantage):
        ratio = torch.exp(turn.new - turn.old)
        value = torch.minimum(ratio * advantage, torch.clamp(ratio, 0.8, 1.2) * advantage)
        return torch.where(advantage < 0, torch.maximum(value, 3.0 * advantage), value)

    objective = mean_over_tokens(token_terms(batch, advantages, term))
    return -objective + 0.01 * mean_over_tokens(kl_terms(batch)) - 0.001 * mean_over_tokens(entropy_terms(batch))
