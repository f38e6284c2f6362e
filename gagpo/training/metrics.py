"""Metrics of an iteration."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gagpo.collecting.collector import Collection
from gagpo.data import Episode
from gagpo.eval.health import answer_task_information
from gagpo.runs.headline import is_graded
from gagpo.runs.metrics import Metrics
from gagpo.runs.register import of_environment
from gagpo.training.counters import RunCounters

INVALID = {"invalid_unparsed": "not parsed", "invalid_cut": "cut off", "invalid_refused": "refused"}
"""Metrics of turns without a valid action, and the value of :attr:`gagpo.data.Turn.invalid` they count."""


def iteration_metrics(
    collected: Collection, learned: Metrics, counters: RunCounters, tokens_per_second: float
) -> Metrics:
    """Metrics of an iteration, apart from the time of its update and those of engine and pool.

    learned: metrics of the update.
    counters: the run's totals, with this iteration.
    tokens_per_second: response tokens over all of the iteration's time.
    """
    clock = collected.clock
    return {
        "iteration": counters.iteration,
        **rollout_metrics(collected.sampled_episodes),
        "sampling_rounds": collected.rounds,
        **collected.stats,
        **learned,
        "turns_total": counters.turns,
        "tokens_total": counters.tokens,
        "tokens_per_second": tokens_per_second,
        "seconds_env": clock.environment,
        "seconds_generate": clock.generation,
        "engine_busy": clock.generation / max(clock.total, 1e-9),
    }


def rollout_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """Metrics of all episodes, and of each environment if there are several. A failed episode counts as a failure."""
    metrics = _of(episodes)
    for env in sorted({episode.environment for episode in episodes if episode.environment}):
        env_episodes = [episode for episode in episodes if episode.environment == env]
        env_metrics = _of(env_episodes)
        env_metrics["episodes"] = float(len(env_episodes))
        env_metrics["turns"] = float(sum(len(episode.turns) for episode in env_episodes))
        metrics |= {of_environment(name, env): value for name, value in env_metrics.items()}
    return metrics


def _of(episodes: Sequence[Episode]) -> dict[str, float]:
    turns = [turn for episode in episodes for turn in episode.turns]
    rewritten = [episode.info["rewritten"] for episode in episodes if "rewritten" in episode.info]
    rewards = [episode.reward for episode in episodes]
    success_rate = float(np.mean([episode.success for episode in episodes]))
    # A graded reward above 0 is not a success, although the environment, which reports none, is given one.
    is_assumed = any(episode.success_assumed for episode in episodes)
    return {
        **({} if is_assumed else {"success_rate": success_rate}),
        "reward_mean": float(np.mean(rewards)),
        "graded_rewards": float(np.mean([is_graded(reward) for reward in rewards])),
        "mean_turns": sum(len(episode.turns) for episode in episodes) / len(episodes),
        "invalid_rate": float(np.mean([not turn.valid for turn in turns])) if turns else 0.0,
        **{name: float(np.mean([t.invalid == why for t in turns])) if turns else 0.0 for name, why in INVALID.items()},
        "response_tokens": float(np.mean([len(turn.response_ids) for turn in turns])) if turns else 0.0,
        "truncated_responses": float(np.mean([turn.cut for turn in turns])) if turns else 0.0,
        "answer_task_information": answer_task_information([(e.task, t.action) for e in episodes for t in e.turns]),
        "failed_episodes": float(sum(episode.outcome == "failed" for episode in episodes)),
        "restarted_episodes": float(sum(episode.restarts > 0 for episode in episodes)),
        **({"rewritten_answers": float(sum(rewritten))} if rewritten else {}),
    }
