"""GSPO and GSPO-token (arXiv 2507.18071, equations 5 and 13)."""

import torch

from tests.oracles.batch import clipped, group_relative, mean_over_sequences


def advantages(batch):
    return group_relative(batch)


def loss(batch, advantages, ratio_pool="mean"):
    total = 0.0
    for episode, numbers in zip(batch, advantages, strict=True):
        logs = torch.cat([turn.new - turn.old for turn in episode.turns])
        ratio = torch.exp(logs.mean()) if ratio_pool == "mean" else torch.prod(torch.exp(logs))
        total = total + clipped(ratio, numbers[0][0], 3e-4, 4e-4)
    return -total / len(batch)


def token_loss(batch, advantages):
    terms = []
    for episode, numbers in zip(batch, advantages, strict=True):
        ratio = torch.exp(torch.cat([turn.new - turn.old for turn in episode.turns]).mean()).detach()
        terms.append([])
        for turn, row in zip(episode.turns, numbers, strict=True):
            reference = ratio * torch.exp(turn.new) / torch.exp(turn.new).detach()
            terms[-1].append(clipped(reference, row[0], 3e-4, 4e-4))
    return -mean_over_sequences(terms)
