"""GAGPO (arXiv 2605.13217): grouped value proxy, TD errors, GAE over turns, one ratio per action."""

import torch

from tests.oracles.batch import (
    clipped,
    deviation,
    discounted,
    generalised,
    group_relative,
    kl_terms,
    mean,
    mean_over_actions,
    per_turn,
)


def advantages(batch, gamma=0.95, lam=0.8, norm="group", trajectory_weight=0.0):
    def value(group, state):
        visits = []
        for other in batch:
            returns = discounted(other, gamma)
            visits += [returns[t] for t, turn in enumerate(other.turns) if (other.group, turn.state) == (group, state)]
        return mean(visits)

    raw = []
    for episode in batch:
        values = [value(episode.group, turn.state) for turn in episode.turns]
        raw.append(generalised([turn.reward - turn.penalty for turn in episode.turns], values, gamma, lam))
    normalised = []
    for episode, numbers in zip(batch, raw, strict=True):
        own = [row for other, row in zip(batch, raw, strict=True) if norm == "batch" or other.group == episode.group]
        group = [x for row in own for x in row]
        spread = deviation(group) if max(group) - min(group) > 1e-9 else 0.0
        normalised.append([(x - mean(group)) / (spread + 1e-6) if spread else 0.0 for x in numbers])
    trajectory = group_relative(batch)
    numbers = zip(raw if norm == "none" else normalised, trajectory, strict=True)
    return per_turn(batch, [[x + trajectory_weight * whole[0][0] for x in row] for row, whole in numbers])


def loss(batch, advantages):
    actions = []
    for episode, numbers in zip(batch, advantages, strict=True):
        for turn, row in zip(episode.turns, numbers, strict=True):
            actions.append(clipped(torch.exp((turn.new - turn.old).mean()), row[0], 0.2, 0.2))
    return -torch.stack(actions).mean() + 0.01 * mean_over_actions(kl_terms(batch))
