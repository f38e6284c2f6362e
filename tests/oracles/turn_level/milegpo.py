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
    results = {}
    for episode in group:
        states = path(episode)
        met = states + list(pairwise(states))
        for element in set(met):
            row = results.setdefault(element, [0, 0, 0])
            row[0] += 1
            row[1] += episode.success
            row[2] += met.count(element) - 1
    return results


def over_largest(scores):
    largest = max(scores.values(), default=0.0)
    return {key: score / largest if largest > TINY else 0.0 for key, score in scores.items()}


def siblings(edge, every):
    return [other for other in every if other[0] == edge[0] and other != edge]


PAPER = {
    "c": 10.0,
    "lam": 0.25,
    "omega": 0.2,
    "gamma_phi": 1.0,
    "w_plus": 1.0,
    "w_minus": 0.25,
    "w_s": 1.0,
    "w_m": 1.0,
    "w_c": 0.25,
    "w_f": 1.0,
    "w_l": 0.25,
    "a_d": 1.0,
    "a_s": 1.0,
    "a_f": 1.0,
    "w_bc": 1.0,
    "w_pg": 1.0,
    "w_pcc": 1.0,
    "pcc": True,
    "rcs": True,
}
"""The paper's constants; ``pcc`` and ``rcs`` are its two ablations."""


def milestones(group, theta, rho, kappa, k):
    results, every = shares(group), edges(group)
    rate = mean(float(episode.success) for episode in group)
    successes = sum(episode.success for episode in group)
    degree = {s: sum((u == s) + (v == s) for u, v in every) for s in results if not isinstance(s, tuple)}
    busiest = max((d for s, d in degree.items() if results[s][1]), default=1)

    def p(element):
        return results[element][1] / results[element][0]

    branch = {}
    for edge in every:
        remaining = siblings(edge, every)
        branch[edge] = p(edge) - mean(p(other) for other in remaining) if remaining else 0.0
    largest = max(abs(credit) for credit in branch.values())
    progress = {}
    for u, v in every:
        if not results[u, v][1]:
            continue
        remaining = siblings((u, v), every)
        worse = (1 - p((u, v))) - mean(1 - p(other) for other in remaining) if remaining else (1 - p(v)) - (1 - rate)
        nearer = distance(group, u) - distance(group, v)
        gain = k["a_d"] * nearer + k["a_s"] * (p(v) - rate) - k["a_f"] * max(worse, 0.0)
        progress[v] = max(progress.get(v, 0.0), gain)
    progress = over_largest(progress)
    scores = {}
    for state, (_, good, _) in results.items():
        if isinstance(state, tuple) or state == GOAL or not good:
            continue
        coverage = good / max(successes, 1)
        base = k["w_s"] * max(p(state) - rate, 0.0) + k["w_m"] * coverage + k["w_c"] * degree[state] / busiest
        b = max((branch[e] for e in every if e[1] == state), default=0.0) / largest if largest > TINY else 0.0
        b, psi = max(b, 0.0), progress.get(state, 0.0)
        retained = psi > TINY or coverage >= theta - TINY or (kappa and b > TINY)
        raised = base * (1 + k["w_pcc"] * (k["w_bc"] * b + k["w_pg"] * psi))
        scores[state] = base
        if k["pcc"]:
            scores[state] = raised if retained else rho * base
    return over_largest(scores) if k["rcs"] else dict.fromkeys(scores, 1.0)


def traps(group, k):
    results = shares(group)
    rate = mean(float(episode.success) for episode in group)
    failures = sum(not episode.success for episode in group)
    scores = {}
    for state, (every, good, again) in results.items():
        if isinstance(state, tuple) or good or not (every >= 2 or again):
            continue
        score = k["w_f"] * max(1.0 - (1 - rate), 0.0) + k["w_l"] * every / max(failures, 1) * again / every
        if score >= 0.1 - TINY:
            scores[state] = score
    return over_largest(scores) if k["rcs"] else dict.fromkeys(scores, 1.0)


def potential(group, scores, state, omega):
    return max((score * omega ** distance(group, state, target) for target, score in scores.items()), default=0.0)


def mile_rewards(group, theta, rho, kappa, k):
    good, bad = milestones(group, theta, rho, kappa, k), traps(group, k)
    rewards = graph_rewards(group, k["c"])
    for u, v in rewards:

        def gain(weight, scores, u=u, v=v):
            ahead, here = potential(group, scores, v, k["omega"]), potential(group, scores, u, k["omega"])
            return max(k["gamma_phi"] * weight * ahead - weight * here, 0.0)

        rewards[u, v] += k["c"] * k["lam"] * (gain(k["w_plus"], good) - gain(k["w_minus"], bad))
    return rewards


def advantages(
    batch, theta=1.1, rho=0.0, eta=0.2, kappa=False, divide=True, step_weight=1.0, episode_weight=1.0, **constants
):
    k = PAPER | constants
    numbers = []
    for episode in batch:
        group = mates(batch, episode)
        location = [other is episode for other in group].index(True)
        graph = step_advantages(group, graph_rewards(group, k["c"]), divide)[location]
        mile = step_advantages(group, mile_rewards(group, theta, rho, kappa, k), divide)[location]
        full = episode_weight * episode_advantages(group, divide)[location]
        numbers.append([step_weight * (g + eta * (m - g)) + full for g, m in zip(graph, mile, strict=True)])
    return per_turn(batch, numbers)
