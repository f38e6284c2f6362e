"""The register of metrics: what every number of a training iteration is, and where it is shown.

Report, viewer, curves, ``gagpo view --follow`` and docs/metrics.md read it: a metric has one unit, one sentence and one
caption. The tests fail for a metric that is logged or shown and is not here. The page is made by

    python -m gagpo.runs.register > docs/metrics.md
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Flag, auto
from typing import Literal

from gagpo.base.tables import Table

Unit = Literal[
    "", "advantage", "bytes", "count", "exponent", "loss", "nats", "nats per token", "norm", "rate", "ratio",
    "return squared",
    "reward", "seconds", "share", "skewness", "temperature", "tokens", "tokens per second", "turns", "updates",
]  # fmt: skip


class Display(Flag):
    """Where a metric is shown besides the report's table, which holds every metric that was logged."""

    WATCH = auto()  # a line of `gagpo view --follow`
    REPORT = auto()  # a curve of the report
    VIEWER = auto()  # a curve of the viewer's overview
    HEALTH = auto()  # a rule of health
    TIME = auto()  # a part of the wall time, in the report and in `gagpo view --follow`


NOWHERE = Display(0)
WATCH, REPORT, VIEWER, HEALTH, TIME = Display
CURVES = WATCH | REPORT | VIEWER


@dataclass(frozen=True)
class Metric:
    """One metric. caption: a few words to stand for it; its name in words by default."""

    name: str
    unit: Unit = ""
    sentence: str = ""
    shown: Display = NOWHERE
    caption: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "caption", self.caption or self.name.replace("_", " "))

    @property
    def share(self) -> bool:
        """Whether it is a part of a whole, which is best read in per cent."""
        return self.unit == "share"

    @property
    def hint(self) -> str:
        """Sentence and unit, to stand beside the name; '' for a number that is not ours."""
        return f"{self.sentence} [{self.unit}]" if self.sentence else ""


# fmt: off
SECTIONS = {
    "What was played": (
        Metric("iteration", "count", "Iterations done so far, this one included."),
        Metric("success_rate", "share", "Episodes that solved their task, at the training temperature.",
               WATCH | HEALTH, "success in training"),
        Metric("mean_turns", "turns", "Mean length of an episode.", CURVES, "turns per episode"),
        Metric("invalid_rate", "share", "Turns whose action the environment refused or could not read.",
               CURVES | HEALTH, "invalid actions"),
        Metric("invalid_unparsed", "share", "Turns whose response ended by itself and held no action.", HEALTH),
        Metric("invalid_cut", "share",
               "Turns whose response ended at `rollout.max_tokens` and gave no valid action.", HEALTH),
        Metric("invalid_refused", "share", "Turns whose action, from a whole response, the environment refused.",
               HEALTH),
        Metric("episodes", "count", "Episodes played; logged of each world of several."),
        Metric("turns", "turns", "Turns played, probes excluded; logged of each world of several."),
        Metric("reward_mean", "reward", "Mean over episodes of the sum of an episode's rewards.",
               REPORT, "reward per episode"),
        Metric("response_tokens", "tokens", "Mean length of a response."),
        Metric("truncated_responses", "share",
               "Responses that ended at `rollout.max_tokens` without a stop, valid or not.",
               HEALTH),
        Metric("answer_task_information", "nats",
               "Mutual information of actions and tasks; near 0 the model does the same whatever the task.", HEALTH),
        Metric("failed_episodes", "count", "Episodes that broke in their environment; nothing is learned from them.",
               HEALTH),
        Metric("restarted_episodes", "count", "Episodes that were begun again because their worker died."),
        Metric("environment_restarts", "count", "Workers of the pool that were replaced since the run began."),
        Metric("sampling_rounds", "count", "Rounds of dynamic sampling that the batch took; 1 without it."),
        Metric("staleness_mean", "updates",
               "How far the weights of the turns trained on lay behind, with `rollout.ahead`."),
        Metric("staleness_max", "updates", "The same of the oldest of these turns."),
        Metric("stale_episodes", "count", "Episodes older than `rollout.max_staleness`: dropped, and played again."),
        Metric("seconds_waited", "seconds", "Time that the update waited for its batch, with `rollout.ahead`."),
    ),
    "What can be learned from it": (
        Metric("coverage", "share",
               "Turns whose state occurs in another turn of their group, which step-level credit lives on.",
               CURVES | HEALTH, "turns in shared states"),
        Metric("aliasing", "share",
               "Repeated pairs of state and action, within a group, that led to different states: the key is no state.",
               HEALTH),
        Metric("zero_groups", "share", "Task groups in which every advantage is 0; they teach nothing.",
               CURVES | HEALTH, "groups without advantage"),
        Metric("equal_return_groups", "share", "Task groups whose episodes all ended with the same return."),
        Metric("advantage_std", "advantage", "Standard deviation of the advantages over all turns.",
               REPORT, "spread of the advantages"),
        Metric("advantage_abs", "advantage", "Mean size of an advantage over all turns.",
               VIEWER, "size of the advantages"),
    ),
    "The update": (
        Metric("clip_fraction", "share", "Ratios beyond the clip's limits on the side where that stops the gradient.",
               CURVES | HEALTH, "clipped ratios"),
        Metric("clip_low", "share", "The part of them below the lower limit."),
        Metric("clip_high", "share", "The part of them above the upper limit."),
        Metric("kl", "nats per token", "Divergence from the reference model, where the loss has such a term.",
               REPORT, "divergence from the reference"),
        Metric("old_kl", "nats per token", "Mean of old less new log-probability over the batch, step by step."),
        Metric("final_kl", "nats per token", "The same after all updates, where a controller asks for it."),
        Metric("ratio", "ratio", "Mean ratio of new to old probability; 1 before the first step."),
        Metric("log_ratio_rms", "nats", "Root mean square of the log ratio: how far the policy moved."),
        Metric("entropy", "nats per token",
               "How undecided the policy is about the tokens that it sampled among; of turns that teach alone, unless "
               "a KL or entropy term reads the others too.",
               CURVES | HEALTH, "entropy of the policy"),
        Metric("average_distance", "share", "Distance of the weights from their moving average, over their length."),
        Metric("grad_norm", "norm", "Mean length of the gradient before it is clipped.",
               CURVES | HEALTH, "gradient norm"),
        Metric("loss", "loss", "Mean of the loss over the mini-batches.", REPORT),
        Metric("learning_rate", "rate", "The rate that the schedule gave this iteration."),
        Metric("updates", "count", "Optimiser steps taken."),
        Metric("skipped_steps", "count",
               "Steps left out because their loss or gradient was not finite; a few in a row end the run.", HEALTH),
    ),
    "Sampler against trainer": (
        Metric("mismatch_kl", "nats per token",
               "Divergence between the sampler's and the trainer's log-probabilities before the first step.",
               WATCH | VIEWER | HEALTH, "sampler-trainer gap"),
        Metric("mismatch_max", "nats", "The largest difference of one token's two log-probabilities."),
        Metric("mismatch_weight", "ratio",
               "Mean importance weight of trainer over sampler; 1 where both compute alike."),
        Metric("masked_tokens", "share", "Tokens that the correction left out for their own weight."),
        Metric("masked", "share", "Sequences that the correction left out."),
    ),
    "Engines elsewhere": (
        Metric("engine_gap", "nats",
               "Largest log-probability difference, server to trainer, after an update; `engine_gap_0`, ... of each."),
        Metric("engine_kl", "nats per token", "The same as a divergence; of the worst server."),
        Metric("engine_servers", "count", "Servers in use."),
        Metric("engine_seconds_sync", "seconds", "Time to bring the new weights to all servers and to prove them."),
        Metric("engine_bytes_sync", "bytes",
               "Weights of the last update, for each server; of an adapter that is sent alone, the adapter."),
        Metric("engine_asked", "count", "Requests sent since the engine was made."),
        Metric("engine_again", "count", "Requests sent once more because a server failed them."),
        Metric("engine_lost", "count", "Servers that were given up."),
        Metric("engine_silent", "count", "The part of them that did not answer in time."),
        Metric("engine_revived", "count", "Servers that were started again."),
        Metric("engine_broken", "count", "Answers that were none."),
        Metric("engine_stale", "count", "Answers from other weights than those sent; they are never used."),
    ),
    "Critic": (
        Metric("value_error", "return squared", "Mean squared error of the values."),
        Metric("value_clip", "share", "Values whose clipped error was the larger one."),
        Metric("value_explained", "share",
               "Variance of the targets that the values explain; below 0 is worse than a constant."),
    ),
    "Imitation": (
        Metric("expert_loss", "nats per token", "Mean of -log pi over the tokens of the expert's actions.", REPORT,
               "loss on the expert's actions"),
        Metric("expert_agreement", "share", "Turns in which the policy did what the expert would have done, of those "
               "whose expert is known.", REPORT, "agreement with the expert"),
        Metric("expert_turns", "share", "Turns that the expert's action is learned from."),
        Metric("expert_coefficient", "ratio", "What the loss on the expert's actions is multiplied by."),
        Metric("distillation_advantage", "nats per token", "Mean advantage that the teacher gives a sampled token; "
               "unbounded, minus the divergence from the teacher.", REPORT, "the teacher's advantage"),
        Metric("distilled_tokens", "share", "Response tokens that the teacher judged."),
        Metric("distillation_coefficient", "ratio", "What the teacher's advantages are multiplied by."),
        Metric("replayed_episodes", "count", "Episodes of earlier iterations that are trained on again."),
        Metric("replay_coefficient", "ratio", "What their advantages are multiplied by."),
    ),
    "Controllers": (
        Metric("apmpo_exponent", "exponent", "APMPO's exponent, mean over task groups."),
        Metric("apmpo_radius", "ratio", "APMPO's clip radius, mean over task groups."),
        Metric("step_kl", "nats per token", "KL from the policy that sampled to the one that the update made, where "
               "it may have left the trust region."),
        Metric("step_kept", "share", "Part of the update's step that the trust region kept."),
        Metric("rate_scale", "ratio", "What the trust region multiplies the learning rate by."),
        Metric("agpo_kl", "nats per token", "AGPO's running divergence, which its radius follows."),
        Metric("agpo_radius", "ratio", "AGPO's clip radius, mean over tasks."),
        Metric("agpo_temperature", "temperature",
               "AGPO's sampling temperature, mean over tasks, where the base is 1."),
        Metric("agpo_dispersion", "reward", "How much the probes' rewards of a task differ, mean over tasks."),
        Metric("agpo_skewness", "skewness", "Which way the probes' rewards lean, mean over tasks."),
        Metric("agpo_vote_entropy", "nats", "How much the probes' answers disagree, mean over tasks."),
        Metric("agpo_entropy_share", "ratio", "The policy's entropy over its running mean, mean over tasks."),
    ),
    "Time and tokens": (
        Metric("turns_total", "turns", "Environment turns since the run began, probes included."),
        Metric("tokens_total", "tokens", "Response tokens since the run began, probes included."),
        Metric("tokens_per_second", "tokens per second", "Response tokens of the iteration over all of its time.",
               REPORT | VIEWER),
        Metric("train_tokens_per_second", "tokens per second",
               "Tokens of all rows, prompts included, over the update's time."),
        Metric("train_tokens_read", "share", "Of the rows' tokens, those that a forward pass of the update read: what "
               "rows begin with alike is read once, and rows without advantage are not read."),
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


def of_world(name: str, world: str) -> str:
    """The name of a metric of one of several worlds alone.

    >>> of_world("success_rate", "maths")
    'success_rate/maths'
    """
    return f"{name}/{world}"


def worlds_of(names: Iterable[str], metric: str = "success_rate") -> list[str]:
    """The worlds that ``metric`` is logged of by themselves; none in a run of one."""
    return [world for own, slash, world in (name.partition("/") for name in names) if slash and own == metric]


def find(name: str) -> Metric:
    """The metric called ``name``; one without unit and sentence where the name is not ours.

    A number at the name's end says which of several things it is of, a world after a slash that it is of that alone.
    """
    own, slash, world = name.partition("/")
    found = REGISTER.get(own) or REGISTER.get(re.sub(r"_\d+$", "", own))
    if found is None or not slash:
        return found or Metric(name)
    return replace(found, name=name, shown=NOWHERE, caption=f"{found.caption}, {world}")


def shown_in(place: Display) -> list[Metric]:
    """The metrics of a place, in the order of the register."""
    return [metric for metric in REGISTER.values() if place in metric.shown]


HEAD = """# Metrics

Every iteration adds a line to the run's `metrics.jsonl`: the metrics below that its algorithm and engine measure.
Report, viewer, `gagpo view --follow` and the trackers use the same names. A share lies between 0 and 1. A nat is
information in units of the natural logarithm. A run of several environments also logs the numbers of each environment,
as `success_rate/NAME`.

`python -m gagpo.runs.register > docs/metrics.md` makes this page from the code."""


def page() -> str:
    """The reference as Markdown."""
    parts = [HEAD]
    for title, metrics in SECTIONS.items():
        rows = [[f"`{metric.name}`", metric.unit, metric.sentence] for metric in metrics]
        parts += [f"\n## {title}\n", *Table(["metric", "unit", "meaning"], rows).markdown()]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())
