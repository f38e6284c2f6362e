"""What an iteration looked like in numbers, and one line of them for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gagpo.agents.episodes import Episode
from gagpo.eval.metrics.health import answer_task_information
from gagpo.eval.results import EvalResult

INVALID = {"invalid_unparsed": "not parsed", "invalid_cut": "cut off", "invalid_refused": "refused"}
"""Metrics of turns without a valid action by what :attr:`gagpo.agents.episodes.Turn.invalid` says of them."""


def rollout_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """What the episodes of an iteration look like; a failed episode counts as no success."""
    turns = [turn for episode in episodes for turn in episode.turns]
    return {
        "success_rate": float(np.mean([episode.success for episode in episodes])),
        "reward_mean": float(np.mean([episode.reward for episode in episodes])),
        "mean_turns": len(turns) / len(episodes),
        "invalid_rate": float(np.mean([not turn.valid for turn in turns])) if turns else 0.0,
        **{name: float(np.mean([t.invalid == why for t in turns])) if turns else 0.0 for name, why in INVALID.items()},
        "response_tokens": float(np.mean([len(turn.response_ids) for turn in turns])) if turns else 0.0,
        "truncated_responses": float(np.mean([turn.cut for turn in turns])) if turns else 0.0,
        "answer_task_information": answer_task_information([(e.task, t.action) for e in episodes for t in e.turns]),
        "failed_episodes": float(sum(episode.outcome == "failed" for episode in episodes)),
        "restarted_episodes": float(sum(episode.restarts > 0 for episode in episodes)),
    }


def describe(metrics: dict[str, Any]) -> str:
    """One line for people."""
    for told in ("health", "skipped"):
        if told in metrics:
            return f"      {metrics[told]}"
    if "evaluation" in metrics:
        interval = metrics["result"].success
        return (
            f"{metrics['evaluation']}: success {100 * interval.value:.1f} % "
            f"[{100 * interval.low:.1f}, {100 * interval.high:.1f}]"
        )
    m = {"zero_groups": np.nan, "coverage": np.nan, "advantage_std": np.nan} | metrics
    line = (
        f"{m['iteration']:>4}  success {100 * m['success_rate']:5.1f} %  turns {m['mean_turns']:4.1f}  "
        f"invalid {100 * m['invalid_rate']:4.1f} %"
    )
    if "loss" in m:
        line += (
            f"  zero groups {100 * m['zero_groups']:3.0f} %  coverage {100 * m['coverage']:3.0f} %  "
            f"adv {m['advantage_std']:.2f}  clip {100 * m['clip_fraction']:4.1f} %  kl {m['old_kl']:+.4f}  "
            f"entropy {m['entropy']:.3f}  grad {m['grad_norm']:.2f}"
        )
    return line + (
        f"  {m['tokens_per_second']:.0f} tok/s  env {m['seconds_env']:.1f} s  gen {m['seconds_generate']:.1f} s  "
        f"train {m['seconds_train']:.1f} s"
    )


def as_record(results: dict[str, EvalResult]) -> dict[str, Any]:
    """The final evaluations as JSON-ready values."""
    return {split: result.summary() for split, result in results.items()}
