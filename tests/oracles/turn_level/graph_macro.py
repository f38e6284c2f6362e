"""Graph value with macro-actions: one TD error for the turns from a repeated state up to the next one."""

from tests.oracles.batch import per_turn
from tests.oracles.turn_level import gagpo, graph_value


def advantages(batch, gamma=0.95):
    errors = graph_value.temporal_differences(batch, gamma)
    return per_turn(batch, graph_value.standardised(batch, gagpo.of_macro_actions(batch, errors, gamma, 0.0, "task")))
