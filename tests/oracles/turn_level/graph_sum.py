"""Credits over their population deviation in the batch, weighted and added: GraphGPO's step and graph value's error."""

from tests.oracles.batch import deviation, mates, per_turn
from tests.oracles.turn_level import graph_value, graphgpo


def graph_steps(batch):
    """GraphGPO's step term, [episode][turn]."""
    steps = []
    for episode in batch:
        group = mates(batch, episode)
        location = [other is episode for other in group].index(True)
        steps.append(graphgpo.step_advantages(group, graphgpo.graph_rewards(group))[location])
    return steps


def weighted(parts, weights, divide=True):
    """[episode][turn] of the sum of such parts."""
    total = [[0.0] * len(row) for row in parts[0]]
    for rows, weight in zip(parts, weights, strict=True):
        unit = deviation([x for row in rows for x in row], ddof=0) if divide else 1.0
        if unit:
            total = [
                [a + weight * b / unit for a, b in zip(*both, strict=True)] for both in zip(total, rows, strict=True)
            ]
    return total


def advantages(batch, weights=(1.0, 1.0), divide=True):
    value = graph_value.standardised(batch, graph_value.temporal_differences(batch))
    return per_turn(batch, weighted([graph_steps(batch), value], weights, divide))
