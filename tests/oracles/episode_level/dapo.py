"""DAPO (arXiv 2503.14476, equations 8 and 13): clip-higher, token mean, overlong shaping; dual clip 10."""

import torch

from tests.oracles.batch import group_relative, mean_over_tokens, token_terms


def overlong(tokens, limit, buffer):
    """Equation 13."""
    if tokens <= limit - buffer:
        return 0.0
    if tokens <= limit:
        return ((limit - buffer) - tokens) / buffer
    return -1.0


def advantages(batch, limit=512, buffer=128, factor=1.0):
    def outcome(episode):
        return episode.total + factor * sum(overlong(len(turn.new), limit, buffer) for turn in episode.turns)

    return group_relative(batch, outcome)


def loss(batch, advantages):
    def term(turn, advantage):
        ratio = torch.exp(turn.new - turn.old)
        value = torch.minimum(ratio * advantage, torch.clamp(ratio, 0.8, 1.28) * advantage)
        return torch.where(advantage < 0, torch.maximum(value, 10.0 * advantage), value)

    return -mean_over_tokens(token_terms(batch, advantages, term))
