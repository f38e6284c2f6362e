"""Graph value: V of the Markov chain that a task group's visits estimate, and its one-step error as credit."""

import torch

from tests.oracles.batch import deviation, mates, mean, per_turn


def solved_values(group, gamma=0.95):
    """By state: (I - gamma P) V = r, written out and solved."""
    states = sorted({turn.state for episode in group for turn in episode.turns})
    visits = {state: [] for state in states}
    for episode in group:
        for turn, after in zip(episode.turns, [*episode.turns[1:], None], strict=True):
            visits[turn.state].append((turn.reward - turn.penalty, None if after is None else after.state))
    eye = torch.eye(len(states), dtype=torch.float64)
    right = torch.zeros(len(states), dtype=torch.float64)
    for row, state in enumerate(states):
        for reward, after in visits[state]:
            right[row] += reward / len(visits[state])
            if after is not None:
                eye[row, states.index(after)] -= gamma / len(visits[state])
    return dict(zip(states, torch.linalg.solve(eye, right).tolist(), strict=True))


def temporal_differences(batch, gamma=0.95):
    """[episode][turn]: ``r + gamma V(s') - V(s)``, 0 beyond an end."""
    rows = []
    for episode in batch:
        value = solved_values(mates(batch, episode), gamma)
        ahead = [value[turn.state] for turn in episode.turns[1:]] + [0.0]
        rows.append(
            [t.reward - t.penalty + gamma * v - value[t.state] for t, v in zip(episode.turns, ahead, strict=True)]
        )
    return rows


def standardised(batch, rows):
    """Over all turns of the task group."""
    result = []
    for episode, numbers in zip(batch, rows, strict=True):
        group = [x for other, row in zip(batch, rows, strict=True) if other.group == episode.group for x in row]
        spread = deviation(group) if max(group) - min(group) > 1e-7 else 0.0
        result.append([(x - mean(group)) / (spread + 1e-6) if spread else 0.0 for x in numbers])
    return result


def advantages(batch, gamma=0.95):
    return per_turn(batch, standardised(batch, temporal_differences(batch, gamma)))
