"""What every number of a training iteration means: one sentence each, with its unit.

python -m gagpo.eval.metrics.meanings > docs/metrics.md
"""

from __future__ import annotations

import re
import sys

HEAD = """# Metrics

Every number of `metrics.jsonl`, made from the code by `python -m gagpo.eval.metrics.meanings`. A row is one iteration.
The report, the trackers and `gagpo watch` use the same names. Shares lie between 0 and 1; nats are natural-log units.
Some numbers are there only where the algorithm has what they measure.
"""

SECTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "What was played": {
        "iteration": ("count", "Iterations done so far, this one included."),
        "success_rate": ("share", "Episodes that solved their task, at the training temperature."),
        "reward_mean": ("reward", "Mean over episodes of the sum of an episode's rewards."),
        "mean_turns": ("turns", "Mean length of an episode."),
        "invalid_rate": ("share", "Turns whose action the environment refused or could not read."),
        "invalid_unparsed": ("share", "Turns whose response ended by itself and held no action."),
        "invalid_cut": ("share", "Turns whose response ended at `rollout.max_tokens` and gave no valid action."),
        "invalid_refused": ("share", "Turns whose action, from a whole response, the environment refused."),
        "response_tokens": ("tokens", "Mean length of a response."),
        "truncated_responses": ("share", "Responses that ended at `rollout.max_tokens` without a stop, valid or not."),
        "answer_task_information": (
            "nats",
            "Mutual information of actions and tasks; near 0 the model does the same whatever it is asked.",
        ),
        "failed_episodes": ("count", "Episodes that broke in their environment; nothing is learned from them."),
        "restarted_episodes": ("count", "Episodes that were begun again because their worker died."),
        "environment_restarts": ("count", "Workers of the pool that were replaced since the run began."),
        "sampling_rounds": ("count", "Rounds of dynamic sampling that the batch took; 1 without it."),
        "staleness_mean": ("updates", "How far the weights of the turns trained on lay behind, with `rollout.ahead`."),
        "staleness_max": ("updates", "The same of the oldest of these turns."),
        "stale_episodes": ("count", "Episodes older than `rollout.max_staleness`: dropped, and played again."),
        "seconds_waited": ("seconds", "That the update waited for its batch, with `rollout.ahead`."),
    },
    "What can be learned from it": {
        "zero_groups": ("share", "Task groups in which every advantage is 0; they teach nothing."),
        "equal_return_groups": ("share", "Task groups whose episodes all ended with the same return."),
        "advantage_std": ("advantage", "Standard deviation of the advantages over all turns."),
        "advantage_abs": ("advantage", "Mean size of an advantage over all turns."),
        "coverage": (
            "share",
            "Turns whose state occurs in another turn of their group, which step-level credit lives on.",
        ),
    },
    "The update": {
        "loss": ("loss", "Mean of the loss over the mini-batches."),
        "grad_norm": ("norm", "Mean length of the gradient before it is clipped."),
        "updates": ("count", "Optimiser steps taken."),
        "skipped_steps": (
            "count",
            "Steps left out because their loss or gradient was not finite; a few in a row end it.",
        ),
        "learning_rate": ("rate", "The rate that the schedule gave this iteration."),
        "entropy": ("nats per token", "How undecided the policy is about the tokens that it sampled among."),
        "ratio": ("ratio", "Mean ratio of new to old probability; 1 before the first step."),
        "log_ratio_rms": ("nats", "Root mean square of the log ratio: how far the policy moved."),
        "old_kl": ("nats per token", "Mean of old less new log-probability over the batch, step by step."),
        "final_kl": ("nats per token", "The same after all updates, where a controller asks for it."),
        "kl": ("nats per token", "Divergence from the reference model, where the loss has such a term."),
        "clip_fraction": ("share", "Ratios beyond the clip's limits on the side where that stops the gradient."),
        "clip_low": ("share", "The part of them below the lower limit."),
        "clip_high": ("share", "The part of them above the upper limit."),
    },
    "Sampler against trainer": {
        "mismatch_kl": (
            "nats per token",
            "Divergence between the sampler's and the trainer's log-probabilities before the first step.",
        ),
        "mismatch_max": ("nats", "The largest difference of one token's two log-probabilities."),
        "mismatch_weight": ("ratio", "Mean importance weight of trainer over sampler; 1 where both compute alike."),
        "masked": ("share", "Sequences that the correction left out."),
    },
    "Engines elsewhere": {
        "engine_gap": (
            "nats",
            "Largest difference of a log-probability, server to trainer, after an update; `engine_gap_0`, ... of each.",
        ),
        "engine_kl": ("nats per token", "The same as a divergence; of the worst server."),
        "engine_servers": ("count", "Servers in use."),
        "engine_seconds_sync": ("s", "Time to bring the new weights to all servers and to prove them."),
        "engine_asked": ("count", "Requests sent since the engine was made."),
        "engine_again": ("count", "Requests sent once more because a server failed them."),
        "engine_lost": ("count", "Servers that were given up."),
        "engine_silent": ("count", "The part of them that did not answer in time."),
        "engine_revived": ("count", "Servers that were started again."),
        "engine_broken": ("count", "Answers that were none."),
        "engine_stale": ("count", "Answers from other weights than those sent; they are never used."),
    },
    "Critic": {
        "value_error": ("return squared", "Mean squared error of the values."),
        "value_clip": ("share", "Values whose clipped error was the larger one."),
        "value_explained": (
            "share",
            "Variance of the targets that the values explain; below 0 is worse than a constant.",
        ),
    },
    "Controllers": {
        "apmpo_exponent": ("exponent", "APMPO's exponent, mean over task groups."),
        "apmpo_radius": ("ratio", "APMPO's clip radius, mean over task groups."),
        "agpo_kl": ("nats per token", "AGPO's running divergence, which its radius follows."),
        "agpo_radius": ("ratio", "AGPO's clip radius, mean over tasks."),
        "agpo_temperature": ("temperature", "AGPO's sampling temperature, mean over tasks, where the base is 1."),
        "agpo_dispersion": ("reward", "How much the probes' rewards of a task differ, mean over tasks."),
        "agpo_skewness": ("skewness", "Which way the probes' rewards lean, mean over tasks."),
        "agpo_vote_entropy": ("nats", "How much the probes' answers disagree, mean over tasks."),
        "agpo_entropy_share": ("ratio", "The policy's entropy over its running mean, mean over tasks."),
    },
    "Time and tokens": {
        "turns_total": ("turns", "Environment turns since the run began, probes included."),
        "tokens_total": ("tokens", "Response tokens since the run began, probes included."),
        "tokens_per_second": ("tokens/s", "Response tokens of the iteration over all of its time."),
        "train_tokens_per_second": (
            "tokens/s",
            "Tokens of the rows that were trained on, prompts included, over the update's time.",
        ),
        "seconds_env": ("s", "Time in which environments worked and the engine waited."),
        "seconds_generate": ("s", "Time in which the engine sampled."),
        "seconds_train": ("s", "Time from the last episode to the new weights in the engine."),
        "engine_busy": ("share", "Time of the rollout in which the engine sampled."),
    },
}

MEANINGS: dict[str, tuple[str, str]] = {name: told for part in SECTIONS.values() for name, told in part.items()}
"""Unit and sentence by the metric's name."""


def meaning(name: str) -> str:
    """The sentence about a metric with its unit, as a hint beside its name; '' for one that is not ours.

    A number at the name's end says which of several things it is of.
    """
    name = re.sub(r"_\d+$", "", name)
    if name not in MEANINGS:
        return ""
    unit, sentence = MEANINGS[name]
    return f"{sentence} [{unit}]"


def page() -> str:
    """The reference as Markdown."""
    parts = [HEAD]
    for title, metrics in SECTIONS.items():
        parts.append(f"\n## {title}\n\n| metric | unit | meaning |\n|---|---|---|")
        parts += [f"| `{name}` | {unit} | {sentence} |" for name, (unit, sentence) in metrics.items()]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())
