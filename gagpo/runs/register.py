"""The register of metrics: meaning and unit of every number of a training iteration, and where it is shown.

Report, viewer and the table in docs/metrics.md (``.ci/metrics_table.py``) read it. The tests
fail for a metric that is logged or shown and is not here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Literal

Unit = Literal[
    "", "advantage", "bytes", "count", "exponent", "loss", "nats", "nats per token", "norm", "rate", "ratio",
    "return squared",
    "reward", "seconds", "share", "temperature", "tokens", "tokens per second", "turns", "updates",
]  # fmt: skip


class Display(Enum):
    """Where a metric is shown, besides the report's table of every metric that was logged."""

    TABLE = auto()  # only there
    VIEWER = auto()  # a curve of the viewer
    TIME = auto()  # a part of the wall time, in the report


TABLE, VIEWER, TIME = Display


@dataclass(frozen=True)
class Metric:
    """One metric. caption: a few words to show for it; its name in words by default."""

    name: str
    unit: Unit = ""
    sentence: str = ""
    display: Display = TABLE
    caption: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "caption", self.caption or self.name.replace("_", " "))

    @property
    def share(self) -> bool:
        """Whether it is shown in per cent."""
        return self.unit == "share"

    @property
    def hint(self) -> str:
        """Sentence and unit; '' for a metric that is not registered."""
        return f"{self.sentence} [{self.unit}]" if self.sentence else ""


# fmt: off
SECTIONS = {
    "Episodes": (
        Metric("iteration", "count", "Iterations done so far, this one included."),
        Metric("success_rate", "share",
               "Episodes that solved their task, at the training temperature; not logged if the environment reports no "
               "success and its rewards are not 0 and 1.", caption="success in training"),
        Metric("mean_turns", "turns", "Mean length of an episode.", VIEWER, "turns per episode"),
        Metric("invalid_rate", "share", "Turns whose action the environment refused or could not read.",
               VIEWER, "invalid actions"),
        Metric("invalid_unparsed", "share", "Turns whose response ended by itself without an action."),
        Metric("invalid_cut", "share",
               "Turns whose response was cut at `rollout.max_tokens` before a valid action."),
        Metric("invalid_refused", "share", "Turns with a complete response whose action the environment refused."),
        Metric("episodes", "count", "Episodes played; only with several environments."),
        Metric("turns", "turns", "Turns played, without probes; only with several environments."),
        Metric("reward_mean", "reward", "Mean over episodes of the sum of an episode's rewards.",
               VIEWER, "reward per episode"),
        Metric("graded_rewards", "share",
               "Episodes with another reward than 0 and 1; with any, the mean reward is shown first."),
        Metric("response_tokens", "tokens", "Mean length of a response."),
        Metric("truncated_responses", "share",
               "Responses that ended at `rollout.max_tokens` without a stop, valid or not."),
        Metric("answer_task_information", "nats",
               "Mutual information of actions and tasks; near 0 the model ignores its task."),
        Metric("failed_episodes", "count", "Episodes whose environment broke; they are not trained on."),
        Metric("restarted_episodes", "count", "Episodes restarted because their worker died."),
        Metric("rewritten_answers", "count",
               "Answers that programs sent back altered; each starts a new row. Only with programs."),
        Metric("environment_restarts", "count", "Workers replaced since the run began."),
        Metric("sampling_rounds", "count", "Rounds of dynamic sampling that the batch took; 1 without it."),
        Metric("staleness_mean", "updates",
               "Age of the weights that sampled the turns trained on, mean, with `rollout.ahead`."),
        Metric("staleness_max", "updates", "Age of the oldest of these weights."),
        Metric("stale_episodes", "count",
               "Episodes older than `rollout.max_staleness`; they are dropped and played again."),
        Metric("seconds_waited", "seconds", "Time the update waited for its batch, with `rollout.ahead`."),
    ),
    "Credit": (
        Metric("repeated_states", "share",
               "Turns whose state occurs in another turn of their group; turn-level credit needs them.",
               VIEWER, "turns in shared states"),
        Metric("visits_1", "share",
               "Turns whose state was visited once in their group: its value is their own return."),
        Metric("visits_2_3", "share", "Turns whose state was visited two or three times."),
        Metric("visits_4_7", "share", "Turns whose state was visited four to seven times."),
        Metric("visits_8_up", "share", "Turns whose state was visited eight times or more."),
        Metric("aliasing", "share",
               "Repeated pairs of state key and action that led to different states or rewards; "
               "above 0 the key is not a state."),
        Metric("zero_advantage_groups", "share", "Task groups in which every advantage is 0, so they teach nothing.",
               VIEWER, "groups without advantage"),
        Metric("equal_return_groups", "share", "Task groups whose episodes all ended with the same return."),
        Metric("advantage_std", "advantage", "Standard deviation of the advantages over all turns.",
               VIEWER, "spread of the advantages"),
        Metric("advantage_abs", "advantage", "Mean size of an advantage over all turns.",
               VIEWER, "size of the advantages"),
    ),
    "Update": (
        Metric("clip_fraction", "share",
               "Ratios beyond the clip's limits (not `dual`) where the clip stops the gradient, "
               "of the rows that are read.",
               VIEWER, "clipped ratios"),
        Metric("clip_low", "share", "Clipped ratios below the lower limit."),
        Metric("clip_high", "share", "Clipped ratios above the upper limit."),
        Metric("kl", "nats per token", "Divergence from the reference model, if the loss has a KL term.",
               VIEWER, "divergence from the reference"),
        Metric("approx_kl", "nats per token",
               "Mean of old minus new log-probability over the batch, mean over the steps."),
        Metric("final_kl", "nats per token", "The same after all steps, if a controller needs it."),
        Metric("ratio", "ratio", "Mean ratio of new to old probability; 1 before the first step."),
        Metric("log_ratio_rms", "nats", "Root mean square of the log ratio: how far the policy moved."),
        Metric("entropy", "nats per token", "Entropy of the policy at the sampled tokens, of the rows that are read.",
               VIEWER, "entropy of the policy"),
        Metric("average_distance", "share",
               "Distance of the weights from their moving average, relative to their norm."),
        Metric("grad_norm", "norm", "Mean norm of the gradient before clipping.", VIEWER, "gradient norm"),
        Metric("loss", "loss", "Mean of the loss over the mini-batches.", VIEWER),
        Metric("learning_rate", "rate", "Learning rate of the steps, after the schedule and `scale_by_groups`."),
        Metric("updates", "count", "Optimiser steps taken."),
        Metric("skipped_steps", "count",
               "Steps skipped because their loss or gradient was not finite; a few in a row end the run."),
    ),
    "Sampler and trainer": (
        Metric("mismatch_kl", "nats per token",
               "Divergence between the sampler's and the trainer's log-probabilities before the first step.",
               VIEWER, "sampler-trainer gap"),
        Metric("mismatch_max", "nats", "The largest difference of one token's two log-probabilities."),
        Metric("mismatch_weight", "ratio", "Mean importance weight of trainer over sampler; 1 if both compute alike."),
        Metric("masked_tokens", "share", "Tokens that the correction dropped."),
    ),
    "vLLM servers": (
        Metric("engine_gap", "nats",
               "Largest log-probability difference after an update, server to trainer; `engine_gap_0`, ... for each."),
        Metric("engine_kl", "nats per token", "The same as a KL divergence, for the worst server."),
        Metric("engine_servers", "count", "Servers in use."),
        Metric("engine_seconds_sync", "seconds", "Time to send the new weights to all servers and check them."),
        Metric("engine_bytes_sync", "bytes", "Bytes sent to each server in the last update."),
        Metric("engine_requests", "count", "Requests sent since the engine was made."),
        Metric("engine_retries", "count", "Requests sent again because a server failed."),
        Metric("engine_servers_lost", "count", "Servers given up."),
        Metric("engine_timeouts", "count", "Servers given up because they did not answer in time."),
        Metric("engine_restarts", "count", "Servers restarted."),
        Metric("engine_broken", "count", "Malformed answers."),
        Metric("engine_stale", "count", "Answers from other weights than those sent; never used."),
    ),
    "Critic": (
        Metric("value_error", "return squared", "Mean squared error of the values."),
        Metric("value_clip", "share", "Values whose clipped error was the larger one."),
        Metric("explained_variance", "share",
               "Variance of the targets that the values explain; below 0 is worse than a constant."),
    ),
    "Controllers": (
        Metric("apmpo_exponent", "exponent", "APMPO's exponent, mean over task groups."),
        Metric("apmpo_radius", "ratio", "APMPO's upper clip radius, mean over task groups."),
        Metric("step_kl", "nats per token",
               "KL from the sampling policy to the updated one, if measured; estimated far below target."),
        Metric("target_kl_scale", "share", "Share of the update that the trust region kept."),
        Metric("lr_scale", "ratio", "Factor of the trust region on the learning rate."),
        Metric("agpo_kl", "nats per token", "AGPO's running KL, which its radius follows."),
        Metric("agpo_radius", "ratio", "AGPO's clip radius, mean over tasks."),
        Metric("agpo_temperature", "temperature", "AGPO's sampling temperature, mean over tasks, where the base is 1."),
        Metric("agpo_dispersion", "reward", "Dispersion of the probes' rewards, mean over tasks."),
        Metric("agpo_skewness", "ratio",
               "Size of the skewness of the probes' rewards, mean over tasks, where it has a weight."),
        Metric("agpo_vote_entropy", "nats", "Vote entropy of the probes' answers, mean over tasks."),
        Metric("agpo_entropy_share", "ratio", "Entropy of the policy relative to its running mean, mean over tasks."),
    ),
    "Time and tokens": (
        Metric("turns_total", "turns", "Environment turns since the run began, probes included."),
        Metric("tokens_total", "tokens", "Response tokens since the run began, probes included."),
        Metric("tokens_per_second", "tokens per second", "Response tokens of the iteration over all of its time.",
               VIEWER),
        Metric("train_tokens_per_second", "tokens per second",
               "Tokens of all rows, prompts included, over the update's time."),
        Metric("train_tokens_read", "share", "Tokens that the update read, relative to the tokens of all rows."),
        Metric("seconds_env", "seconds", "Time in which environments worked and the engine waited.",
               TIME, "environments"),
        Metric("seconds_generate", "seconds", "Time in which the engine sampled.", TIME, "generation"),
        Metric("seconds_train", "seconds", "Time from the last episode to the new weights in the engine.",
               TIME, "training"),
        Metric("engine_busy", "share", "Time of the rollout in which the engine sampled."),
    ),
}
# fmt: on

REGISTER = {metric.name: metric for section in SECTIONS.values() for metric in section}


def of_environment(name: str, env: str) -> str:
    """The name of a metric of one of several environments, such as ``success_rate/maths``."""
    return f"{name}/{env}"


def environments_of(names: Iterable[str]) -> list[str]:
    """The environments whose metrics are logged separately; none in a run of one."""
    split_names = [name.partition("/") for name in names]
    return list(
        dict.fromkeys(env for metric, _, env in split_names if env and metric in ("success_rate", "reward_mean"))
    )


def find(name: str) -> Metric:
    """The metric called ``name``; one without unit and sentence if it is not registered.

    A number at the end of the name (``engine_gap_0``) or an environment after a slash is not part of the registered
    name.
    """
    registered_name, _, env = name.partition("/")
    metric = REGISTER.get(registered_name) or REGISTER.get(re.sub(r"_\d+$", "", registered_name))
    if metric is None:
        return Metric(name)
    if env:
        return replace(metric, name=name, display=TABLE, caption=f"{metric.caption}, {env}")
    return metric


def metrics_in(place: Display) -> list[Metric]:
    """The metrics of a place, in the order of the register."""
    return [metric for metric in REGISTER.values() if metric.display is place]
