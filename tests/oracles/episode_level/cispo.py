"""CISPO (MiniMax-M1, arXiv 2506.13585): a detached weight of at most 5."""

import torch

from tests.oracles.batch import group_relative, mean_over_tokens, token_terms


def advantages(batch):
    return group_relative(batch)


def loss(batch, advantages):
    def term(turn, advantage):
        weight = torch.exp(turn.new - turn.old).detach().clamp(max=5.0)
        return weight * advantage * turn.new

    return -mean_over_tokens(token_terms(batch, advantages, term))
