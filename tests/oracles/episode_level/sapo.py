"""SAPO (arXiv 2511.20347): a sigmoid gate whose temperature depends on the sign of the advantage."""

import torch

from tests.oracles.batch import group_relative, mean_over_sequences, token_terms


def advantages(batch):
    return group_relative(batch)


def loss(batch, advantages, positive=1.0, negative=1.05):
    def term(turn, advantage):
        tau = torch.full_like(advantage, negative).masked_fill(advantage > 0, positive)
        return 4 / tau * torch.sigmoid(tau * (torch.exp(turn.new - turn.old) - 1)) * advantage

    return -mean_over_sequences(token_terms(batch, advantages, term))
