"""How far a run has come."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gagpo.collecting.collector import Collection


@dataclass
class RunCounters:
    """Totals since the run began.

    iteration: iterations done.
    turns: environment turns, probes and dropped episodes included.
    tokens: response tokens of these turns.
    """

    iteration: int = 0
    turns: int = 0
    tokens: int = 0

    def count(self, collected: Collection) -> RunCounters:
        """Count an iteration; returns those of the iteration."""
        episodes = [*collected.sampled_episodes, *collected.probe_episodes, *collected.stale_episodes]
        turns = [turn for episode in episodes for turn in episode.turns]
        iteration_counts = RunCounters(1, len(turns), sum(len(turn.response_ids) for turn in turns))
        self.iteration += iteration_counts.iteration
        self.turns += iteration_counts.turns
        self.tokens += iteration_counts.tokens
        return iteration_counts

    def state_dict(self) -> dict[str, Any]:
        return {"iteration": self.iteration, "turns_total": self.turns, "tokens_total": self.tokens}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.iteration = int(state["iteration"])
        self.turns = int(state["turns_total"])
        self.tokens = int(state["tokens_total"])
