"""GraphGPO's step term and graph value's error, each over its population deviation in the batch, added."""

from tests.oracles.batch import deviation, mates, per_turn
from tests.oracles.turn_level import graph_value, graphgpo


def advantages(batch):
    steps = []
    for episode in batch:
        group = mates(batch, episode)
        place = [other is episode for other in group].index(True)
        steps.append(graphgpo.step_advantages(group, graphgpo.graph_rewards(group))[place])
    value = graph_value.standardised(batch, graph_value.temporal_differences(batch))
    total = [[0.0] * len(row) for row in steps]
    for rows in (steps, value):
        unit = deviation([x for row in rows for x in row], ddof=0)
        if unit:
            total = [[a + b / unit for a, b in zip(*both, strict=True)] for both in zip(total, rows, strict=True)]
    return per_turn(batch, total)
