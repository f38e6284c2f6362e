"""GraphGPO (arXiv 2605.26684): a transition is worth c gamma^d(v, g) on the graph of the task group."""

import math

from tests.oracles.batch import deviation, kl_terms, mates, mean, mean_over_tokens, per_turn, ppo_terms

GOAL = "g"


def path(episode):
    """The states of a trajectory, the last one included: the goal where it succeeded."""
    return [turn.state for turn in episode.turns] + [GOAL if episode.success else episode.end]


def edges(group):
    return {edge for episode in group for edge in zip(path(episode), path(episode)[1:], strict=False)}


def distance(group, start, goal=GOAL):
    """Breadth first; infinite where the goal cannot be reached."""
    observed, frontier, steps = {start}, {start}, 0
    while frontier:
        if goal in frontier:
            return steps
        frontier = {v for u, v in edges(group) if u in frontier} - observed
        observed |= frontier
        steps += 1
    return math.inf


def graph_rewards(group, c=10.0, gamma=0.2):
    """By edge."""
    return {(u, v): c * gamma ** distance(group, v) for u, v in edges(group)}


def normalised(value, values, divide):
    spread = deviation(values) if max(values) - min(values) > 1e-12 else 0.0
    if not spread:
        return 0.0
    return (value - mean(values)) / (spread + 1e-6) if divide else value - mean(values)


def step_advantages(group, rewards, divide=True):
    """[episode][turn]: against all transitions from the same state, repeats counted."""
    steps = [list(zip(path(episode), path(episode)[1:], strict=False)) for episode in group]
    every = [edge for row in steps for edge in row]
    return [
        [normalised(rewards[u, v], [rewards[e] for e in every if e[0] == u], divide) for u, v in row] for row in steps
    ]


def episode_advantages(group, divide=True):
    totals = [episode.total for episode in group]
    return [normalised(total, totals, divide) for total in totals]


def advantages(batch, divide=True, step_weight=1.0, **options):
    numbers = []
    for episode in batch:
        group = mates(batch, episode)
        location = [other is episode for other in group].index(True)
        step = step_advantages(group, graph_rewards(group, **options), divide)[location]
        numbers.append([step_weight * x + episode_advantages(group, divide)[location] for x in step])
    return per_turn(batch, numbers)


def recipe(batch, c=10.0, gamma=0.1):
    """The released recipe: each turn's own penalty is taken off its step return and off its episode's rewards."""
    numbers = []
    for episode in batch:
        group = mates(batch, episode)
        far = {v: distance(group, v) for edge in edges(group) for v in edge}
        reached = [steps for steps in far.values() if steps < math.inf]
        # Without any success the farthest is infinitely far, and every return 0.
        beyond = max(reached) + 1 if reached else math.inf
        rows = []  # source state, step return, score; of every turn of the group
        for other in group:
            paid = sum(turn.reward for turn in other.turns)
            for turn, v in zip(other.turns, path(other)[1:], strict=True):
                steps = far[v] if far[v] < math.inf else beyond
                rows.append((other, turn, c * gamma**steps - turn.penalty, paid - turn.penalty))
        scores = [row[3] for row in rows]
        numbers.append(
            [
                normalised(value, [row[2] for row in rows if row[1].state == turn.state], True)
                + normalised(score, scores, True)
                for other, turn, value, score in rows
                if other is episode
            ]
        )
    return per_turn(batch, numbers)


def loss(batch, advantages):
    return -mean_over_tokens(ppo_terms(batch, advantages)) + 0.01 * mean_over_tokens(kl_terms(batch))
