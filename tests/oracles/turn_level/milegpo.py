"""MileGPO (arXiv 2608.19803): milestones and traps on GraphGPO's graph."""

from itertools import pairwise

from tests.oracles.batch import mates, mean, per_turn
from tests.oracles.turn_level.graphgpo import (
    GOAL,
    distance,
    edges,
    episode_advantages,
    graph_rewards,
    loss,
    path,
    step_advantages,
)

__all__ = ["advantages", "loss"]

ALFWORLD = {"theta": 1.1, "rho": 0.0, "eta": 0.2, "kappa": False, "divide": True}
WEBSHOP = {"theta": 0.5, "rho": 0.5, "eta": 1.0, "kappa": True, "divide": False}
TINY = 1e-12


def shares(group):
    """For each state and each edge: trajectories that meet it, the successful ones, and meetings beyond the first."""
    found = {}
    for episode in group:
        states = path(episode)
        met = states + list(pairwise(states))
        for element in set(met):
            row = found.setdefault(element, [0, 0, 0])
            row[0] += 1
            row[1] += episode.success
            row[2] += met.count(element) - 1
    return found


def over_largest(scores):
    largest = max(scores.values(), default=0.0)
    return {key: score / largest if largest > TINY else 0.0 for key, score in scores.items()}


def siblings(edge, every):
    return [other for other in every if other[0] == edge[0] and other != edge]


def milestones(group, theta, rho, kappa):
    found, every = shares(group), edges(group)
    rate = mean(float(episode.success) for episode in group)
    successes = sum(episode.success for episode in group)
    degree = {s: sum((u == s) + (v == s) for u, v in every) for s in found if not isinstance(s, tuple)}
    busiest = max((d for s, d in degree.items() if found[s][1]), default=1)

    def p(element):
        return found[element][1] / found[element][0]

    branch = {}
    for edge in every:
        others = siblings(edge, every)
        branch[edge] = p(edge) - mean(p(other) for other in others) if others else 0.0
    largest = max(abs(credit) for credit in branch.values())
    progress = {}
    for u, v in every:
        if not found[u, v][1]:
            continue
        others = siblings((u, v), every)
        worse = (1 - p((u, v))) - mean(1 - p(other) for other in others) if others else (1 - p(v)) - (1 - rate)
        gain = distance(group, u) - distance(group, v) + p(v) - rate - max(worse, 0.0)
        progress[v] = max(progress.get(v, 0.0), gain)
    progress = over_largest(progress)
    scores = {}
    for state, (_, good, _) in found.items():
        if isinstance(state, tuple) or state == GOAL or not good:
            continue
        coverage = good / max(successes, 1)
        base = max(p(state) - rate, 0.0) + coverage + 0.25 * degree[state] / busiest
        b = max((branch[e] for e in every if e[1] == state), default=0.0) / largest if largest > TINY else 0.0
        b, psi = max(b, 0.0), progress.get(state, 0.0)
        kept = psi > TINY or coverage >= theta - TINY or (kappa and b > TINY)
        scores[state] = base * (1 + b + psi) if kept else rho * base
    return over_largest(scores)


def traps(group):
    found = shares(group)
    rate = mean(float(episode.success) for episode in group)
    failures = sum(not episode.success for episode in group)
    scores = {}
    for state, (every, good, again) in found.items():
        if isinstance(state, tuple) or good or not (every >= 2 or again):
            continue
        score = max(1.0 - (1 - rate), 0.0) + 0.25 * every / max(failures, 1) * again / every
        if score >= 0.1 - TINY:
            scores[state] = score
    return over_largest(scores)


def potential(group, scores, state):
    return max((score * 0.2 ** distance(group, state, target) for target, score in scores.items()), default=0.0)


def mile_rewards(group, theta, rho, kappa):
    good, bad = milestones(group, theta, rho, kappa), traps(group)
    rewards = graph_rewards(group)
    for u, v in rewards:
        up = max(potential(group, good, v) - potential(group, good, u), 0.0)
        down = max(0.25 * potential(group, bad, v) - 0.25 * potential(group, bad, u), 0.0)
        rewards[u, v] += 10.0 * 0.25 * (up - down)
    return rewards


def advantages(batch, theta=1.1, rho=0.0, eta=0.2, kappa=False, divide=True):
    numbers = []
    for episode in batch:
        group = mates(batch, episode)
        place = [other is episode for other in group].index(True)
        graph = step_advantages(group, graph_rewards(group), divide)[place]
        mile = step_advantages(group, mile_rewards(group, theta, rho, kappa), divide)[place]
        whole = episode_advantages(group, divide)[place]
        numbers.append([g + eta * (m - g) + whole for g, m in zip(graph, mile, strict=True)])
    return per_turn(batch, numbers)
