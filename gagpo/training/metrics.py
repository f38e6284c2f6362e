"""What the episodes of an iteration looked like, in numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gagpo.agents.episodes import Episode, Turn
from gagpo.eval.metrics.health import answer_task_information


def rollout_metrics(episodes: Sequence[Episode], max_tokens: int | None = None) -> dict[str, float]:
    """What the episodes of an iteration look like; a failed episode counts as no success."""
    turns = [turn for episode in episodes for turn in episode.turns]
    return {
        "success_rate": float(np.mean([episode.success for episode in episodes])),
        "reward_mean": float(np.mean([episode.reward for episode in episodes])),
        "mean_turns": len(turns) / len(episodes),
        "invalid_rate": float(np.mean([not turn.valid for turn in turns])) if turns else 0.0,
        "response_tokens": float(np.mean([len(turn.response_ids) for turn in turns])) if turns else 0.0,
        "truncated_responses": float(np.mean([cut_short(turn, max_tokens) for turn in turns])) if turns else 0.0,
        "answer_task_information": answer_task_information([(e.task, t.action) for e in episodes for t in e.turns]),
        "failed_episodes": float(sum(episode.outcome == "failed" for episode in episodes)),
        "restarted_episodes": float(sum(episode.restarts > 0 for episode in episodes)),
    }


def cut_short(turn: Turn, max_tokens: int | None) -> bool:
    """Whether a response filled all the room there was and no action was found in it."""
    return max_tokens is not None and len(turn.response_ids) >= max_tokens and not turn.parsed
