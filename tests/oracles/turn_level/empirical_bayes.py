"""A value fitted anew without each episode, then residuals of task and state shrunk by n/(n + k); GAE on it."""

import math

import torch

from tests.oracles.batch import deviation, discounted, generalised, mean, per_turn


def predicted(batch, left_out, gamma, ridge):
    """Returns of the turns of ``left_out`` by the regression on all other episodes."""
    rows, targets = [], []
    for episode in batch:
        if episode is not left_out:
            rows += [turn.words for turn in episode.turns]
            targets += discounted(episode, gamma)
    x = torch.tensor(rows, dtype=torch.float64)
    y = torch.tensor(targets, dtype=torch.float64)
    penalty = ridge * torch.eye(x.shape[1], dtype=torch.float64)
    penalty[0, 0] = 0.0  # the constant is free
    weights = torch.linalg.solve(x.T @ x + penalty, x.T @ y)
    return (torch.tensor([turn.words for turn in left_out.turns], dtype=torch.float64) @ weights).tolist()


def prior(groups):
    """k: variance within over variance between, by the moments of the one-way layout."""
    every = [x for group in groups for x in group]
    count, number = len(every), len(groups)
    within = sum((x - mean(group)) ** 2 for group in groups for x in group) / max(count - number, 1)
    between = sum(len(group) * (mean(group) - mean(every)) ** 2 for group in groups) / max(number - 1, 1)
    typical = (count - sum(len(group) ** 2 for group in groups) / count) / max(number - 1, 1)
    effect = (between - within) / typical if typical > 0 else 0.0
    return within / effect if effect > 0 else math.inf


def shrunk(others, k):
    return sum(others) / (len(others) + k) if others else 0.0


def advantages(batch, gamma=0.95, lam=0.5, ridge=10.0):
    returns = [discounted(episode, gamma) for episode in batch]
    value = [predicted(batch, episode, gamma, ridge) for episode in batch]
    residual = [mean(g - v for g, v in zip(*both, strict=True)) for both in zip(returns, value, strict=True)]
    tasks = sorted({episode.group for episode in batch})
    k = prior([[r for r, e in zip(residual, batch, strict=True) if e.group == task] for task in tasks])
    for one, episode in enumerate(batch):
        others = [residual[o] for o, e in enumerate(batch) if o != one and e.group == episode.group]
        value[one] = [v + shrunk(others, k) for v in value[one]]

    visits = {}
    for one, episode in enumerate(batch):
        for t, turn in enumerate(episode.turns):
            visits.setdefault((episode.group, turn.state), []).append((one, returns[one][t] - value[one][t]))
    k = prior([[left for _, left in visit] for visit in visits.values()])
    rows = []
    for one, episode in enumerate(batch):
        for t, turn in enumerate(episode.turns):
            value[one][t] += shrunk([left for o, left in visits[episode.group, turn.state] if o != one], k)
        rows.append(generalised([turn.reward - turn.penalty for turn in episode.turns], value[one], gamma, lam))
    every = [x for row in rows for x in row]
    return per_turn(batch, [[(x - mean(every)) / (deviation(every) + 1e-6) for x in row] for row in rows])
